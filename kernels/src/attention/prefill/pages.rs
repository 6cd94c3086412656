//! Copies of keys and values from the pages to shared memory.
//!
//! There a tile is `[K or V][head_size / 8][tile_keys][8]`; in 8 bits `[K or V][head_size / 16][tile_keys][16]`, and behind
//! them the scales, `[K or V][tile_keys]`. That is the pages' own order: eight tokens of eight
//! elements are 128 contiguous bytes, which `cp.async` writes and `ldmatrix` reads without bank conflicts. A thread
//! copies vectors of one token, and looks up one block a tile.

use core::marker::PhantomData;

use cuda_std::thread;
use cuda_std::vector::Vector;

use super::shape::{STAGES, THREADS, part_bytes, stage_bytes, tile_keys};
use super::tile::Sight;
use super::{Batch, Cache};
use crate::kv_element::KvElement;
use crate::layout::{KeyOrValue, Pages, VECTOR};
use cuda_std::ptx::cp_async;

/// Bytes of a vector.
const VECTOR_BYTES: u32 = size_of::<Vector>() as u32;

/// The tiles of keys and values that a block reads, in order of position.
pub struct KvTiles<T, const D: u32> {
    /// The KV head's keys in the first page, from the thread's first chunk on.
    head: *const Vector,
    page_vectors: u32,
    block_size: u32,
    table: *const u32,
    /// The keys that rows of this block see. For the other keys of a tile nothing is read, not even the block table.
    first_key: u32,
    keys: u32,
    /// The thread's token in the next tile, and the block that it is in.
    token: u32,
    block: u32,
    /// Where the thread's first vector goes in the first stage.
    to: u32,
    element: PhantomData<T>,
}

impl<T: KvElement, const D: u32> KvTiles<T, D> {
    /// The tiles that hold the keys in `sight`, to stages from `to` on, an offset in shared memory.
    ///
    /// # Safety
    /// `sequence` is one of the batch, in whose context `sight` is, `head` is a KV head, and the rest is as for
    /// [`paged_prefill()`](super::paged_prefill()).
    #[inline(always)]
    pub unsafe fn new(batch: &Batch, cache: &Cache, sequence: u32, head: u32, sight: Sight, to: u32) -> Self {
        let Cache { pages, vectors } = *cache;
        let (chunk, place) =
            (thread::thread_idx_x() / tile_keys(D, T::FORMAT), thread::thread_idx_x() % tile_keys(D, T::FORMAT));
        let first_key = sight.first_key();
        // SAFETY: `sequence` is one of the batch and `head` a KV head, by this function's contract, so that offsets are
        // within the arrays.
        unsafe {
            let mut stream = Self {
                head: vectors.add(pages.vector(0, head, KeyOrValue::Key, chunk, 0)),
                page_vectors: pages.page_vectors(),
                block_size: pages.block_size,
                table: batch.tables.add(*batch.table_starts.add(sequence as usize) as usize),
                first_key,
                keys: sight.last + 1 - first_key,
                token: first_key / tile_keys(D, T::FORMAT) * tile_keys(D, T::FORMAT) + place,
                block: 0,
                to: to + thread::thread_idx_x() * VECTOR_BYTES,
                element: PhantomData,
            };
            stream.look_up();
            stream
        }
    }

    /// Whether any row sees the thread's token in the next tile.
    #[inline(always)]
    fn in_sight(&self) -> bool {
        self.token.wrapping_sub(self.first_key) < self.keys
    }

    /// Whether any row sees any of the eight tokens in the next tile whose scales are copied together with those of the
    /// thread's token.
    #[inline(always)]
    fn group_in_sight(&self) -> bool {
        (self.token | (VECTOR - 1)).wrapping_sub(self.first_key) < self.keys + VECTOR - 1
    }

    /// Reads the table for the next tile: one tile ahead, so that no copy waits for it.
    ///
    /// # Safety
    /// As for [`Self::new`].
    #[inline(always)]
    unsafe fn look_up(&mut self) {
        // Scales are copied by the first thread of eight, whose own token need not be seen; the block is that of all eight.
        if if T::FORMAT.is_coded() { self.group_in_sight() } else { self.in_sight() } {
            // Block sizes are powers of two.
            let entry = self.token >> self.block_size.trailing_zeros();
            // SAFETY: the token is within the context, which the table covers.
            self.block = unsafe { *self.table.add(entry as usize) };
        }
    }

    /// Starts the copies of the next tile, and closes their group. What no row sees becomes zeros: a weight of zero
    /// does not undo the NaN that may lie there.
    ///
    /// # Safety
    /// As for [`Self::new`], and no thread still reads the stage.
    #[inline(always)]
    pub unsafe fn copy(&mut self, stage: u32) {
        const { assert!(THREADS.is_multiple_of(tile_keys(D, T::FORMAT)), "a thread has one token") };
        let chunks_at_once = THREADS / tile_keys(D, T::FORMAT);
        let pages = Pages { heads: 1, head_size: D, block_size: self.block_size, format: T::FORMAT };
        let bytes = if self.in_sight() { VECTOR_BYTES } else { 0 };
        let offset = self.token & (self.block_size - 1);
        let to = self.to + stage * stage_bytes(D, T::FORMAT);
        // SAFETY: the block is one of the cache's, or no byte is read; no thread still reads the stage, by this
        // function's contract.
        unsafe {
            let page = self.head.add(self.block as usize * self.page_vectors as usize + offset as usize);
            for i in 0..pages.chunks().div_ceil(chunks_at_once) {
                // All threads have a chunk but perhaps in the last turn.
                if !pages.chunks().is_multiple_of(chunks_at_once)
                    && i * chunks_at_once + thread::thread_idx_x() / tile_keys(D, T::FORMAT) >= pages.chunks()
                {
                    break;
                }
                let to = to + i * THREADS * VECTOR_BYTES;
                let [key, value] = [KeyOrValue::Key, KeyOrValue::Value]
                    .map(|part| page.add(pages.vector(0, 0, part, i * chunks_at_once, 0)));
                cp_async::copy_cg_zero_fill(to, key.cast(), bytes);
                cp_async::copy_cg_zero_fill(to + part_bytes(D, T::FORMAT), value.cast(), bytes);
            }
            if T::FORMAT.is_coded() {
                self.copy_scales(page, pages, to);
            }
            cp_async::commit();
            self.token += tile_keys(D, T::FORMAT);
            self.look_up();
        }
    }

    /// Starts the copies of the next tile's scales, eight at a time: one thread in eight of those that have the first two
    /// chunks copies those of keys, or of values. Of the tokens before the first that is seen they are read with the others,
    /// since these tokens are in the cache; those behind the last become zeros.
    ///
    /// `page` is the thread's first vector in the page, `to` its first in the stage.
    ///
    /// # Safety
    /// As for [`Self::copy`].
    #[inline(always)]
    unsafe fn copy_scales(&self, page: *const Vector, pages: Pages, to: u32) {
        let thread = thread::thread_idx_x();
        let (chunk, place) = (thread / tile_keys(D, T::FORMAT), thread % tile_keys(D, T::FORMAT));
        if chunk > 1 || !place.is_multiple_of(VECTOR) {
            return;
        }
        let part = if chunk == 0 { KeyOrValue::Key } else { KeyOrValue::Value };
        let left = self.first_key + self.keys - self.token;
        let bytes = if self.group_in_sight() { 2 * left.min(VECTOR) } else { 0 };
        let to =
            to - thread * VECTOR_BYTES + 2 * part_bytes(D, T::FORMAT) + 2 * (chunk * tile_keys(D, T::FORMAT) + place);
        let offset = self.token & (self.block_size - 1);
        // SAFETY: if one of the eight tokens is seen, the page is that of their block, which holds whole groups of eight;
        // else no byte is read.
        unsafe {
            let head = page.sub(pages.vector(0, 0, KeyOrValue::Key, chunk, offset));
            let from = head.cast::<u16>().add(pages.scale(0, 0, part, offset));
            cp_async::copy_cg_zero_fill(to, from.cast(), bytes);
        }
    }
}

const _: () = assert!(STAGES == 2, "tiles take turns by whether their number is odd");
