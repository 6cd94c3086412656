//! Copies keys and values from pages to shared memory.
//!
//! In shared memory a tile is `[K or V][head_size / 8][tile_keys][8]`. In 8 bits it is
//! `[K or V][head_size / 16][tile_keys][16]`, followed by the scales, `[K or V][tile_keys]`. This is the pages' own
//! order. Latent keys contain the values, so only keys are copied. Eight tokens of eight elements are 128 contiguous
//! bytes, which `cp.async` writes and `ldmatrix` reads without bank conflicts. A thread copies vectors of one token, and
//! looks up one block per tile.

use core::marker::PhantomData;

use cuda_std::thread;
use cuda_std::vector::Vector;

use super::shape::{STAGES, THREADS, part_bytes, stage_bytes, tile_keys};
use super::tile::Sight;
use super::{Batch, Cache};
use crate::attention::is_latent;
use crate::kv_element::KvElement;
use crate::layout::{KeyOrValue, Pages, VECTOR};
use cuda_std::ptx::cp_async;

/// Bytes per vector.
const VECTOR_BYTES: u32 = size_of::<Vector>() as u32;

/// The tiles of keys and values that a thread block reads, in order of position.
pub struct KvTiles<T, const D: u32> {
    /// The KV head's keys in the first page, starting at this thread's first chunk.
    head: *const Vector,
    page_vectors: u32,
    block_size: u32,
    table: *const u32,
    /// The keys that rows of this block see. Other keys of a tile are not read, and neither are their block table
    /// entries.
    first_key: u32,
    keys: u32,
    /// This thread's token in the next tile, and the cache block that contains it.
    token: u32,
    block: u32,
    /// The destination of this thread's first vector in the first stage.
    to: u32,
    element: PhantomData<T>,
}

impl<T: KvElement, const D: u32> KvTiles<T, D> {
    /// Creates the tiles that hold the keys in `sight`. Stages begin at the shared-memory offset `to`.
    ///
    /// # Safety
    /// `sequence` is a sequence of the batch, and `sight` is within its context. `head` is a KV head. The rest is as
    /// for [`paged_prefill()`](super::paged_prefill()).
    #[inline(always)]
    pub unsafe fn new(batch: &Batch, cache: &Cache, sequence: u32, head: u32, sight: Sight, to: u32) -> Self {
        let Cache { pages, vectors } = *cache;
        let (chunk, place) =
            (thread::thread_idx_x() / tile_keys(D, T::FORMAT), thread::thread_idx_x() % tile_keys(D, T::FORMAT));
        let first_key = sight.first_key();
        // SAFETY: by this function's contract, `sequence` is in the batch and `head` is a KV head, so offsets are
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

    /// Returns whether any row sees this thread's token in the next tile.
    #[inline(always)]
    fn in_sight(&self) -> bool {
        self.token.wrapping_sub(self.first_key) < self.keys
    }

    /// Returns whether any row sees any token in this token's group of eight, whose scales are copied together.
    #[inline(always)]
    fn group_in_sight(&self) -> bool {
        (self.token | (VECTOR - 1)).wrapping_sub(self.first_key) < self.keys + VECTOR - 1
    }

    /// Reads the block table for the next tile, one tile ahead so that no copy waits for it.
    ///
    /// # Safety
    /// As for [`Self::new`].
    #[inline(always)]
    unsafe fn look_up(&mut self) {
        // The first thread of eight copies the scales, even if no row sees its own token. All eight tokens are in the
        // same block.
        if if T::FORMAT.is_coded() { self.group_in_sight() } else { self.in_sight() } {
            // Block sizes are powers of two.
            let entry = self.token >> self.block_size.trailing_zeros();
            // SAFETY: the token is within the context, which the table covers.
            self.block = unsafe { *self.table.add(entry as usize) };
        }
    }

    /// Starts the copies of the next tile, and commits their group.
    ///
    /// Keys and values that no row sees become zeros. A weight of zero would not be enough, because the memory may hold
    /// NaN.
    ///
    /// # Safety
    /// As for [`Self::new`], and no thread still reads the stage.
    #[inline(always)]
    pub unsafe fn copy(&mut self, stage: u32) {
        const { assert!(THREADS.is_multiple_of(tile_keys(D, T::FORMAT)), "each thread copies vectors of one token") };
        let chunks_at_once = THREADS / tile_keys(D, T::FORMAT);
        let pages = Pages { heads: 1, head_size: D, block_size: self.block_size, format: T::FORMAT, padding: 0 };
        let bytes = if self.in_sight() { VECTOR_BYTES } else { 0 };
        let offset = self.token & (self.block_size - 1);
        let to = self.to + stage * stage_bytes(D, T::FORMAT);
        // SAFETY: the block is in the cache, or no byte is read. By this function's contract, no thread still reads the
        // stage.
        unsafe {
            let page = self.head.add(self.block as usize * self.page_vectors as usize + offset as usize);
            for i in 0..pages.chunks().div_ceil(chunks_at_once) {
                // Every thread has a chunk in each turn, except perhaps the last.
                if !pages.chunks().is_multiple_of(chunks_at_once)
                    && i * chunks_at_once + thread::thread_idx_x() / tile_keys(D, T::FORMAT) >= pages.chunks()
                {
                    break;
                }
                let to = to + i * THREADS * VECTOR_BYTES;
                let [key, value] = [KeyOrValue::Key, KeyOrValue::Value]
                    .map(|part| page.add(pages.vector(0, 0, part, i * chunks_at_once, 0)));
                cp_async::copy_cg_zero_fill(to, key.cast(), bytes);
                if !is_latent(D) {
                    cp_async::copy_cg_zero_fill(to + part_bytes(D, T::FORMAT), value.cast(), bytes);
                }
            }
            if T::FORMAT.is_coded() {
                self.copy_scales(page, pages, to);
            }
            cp_async::commit();
            self.token += tile_keys(D, T::FORMAT);
            self.look_up();
        }
    }

    /// Starts the copies of the next tile's scales, eight at a time.
    ///
    /// One thread in eight does this: threads with the first chunk copy key scales, and threads with the second copy
    /// value scales. Tokens before the first visible one are in the same cache block, so their scales are copied too.
    /// Scales after the last visible token become zeros.
    ///
    /// `page` is the thread's first vector in the page, and `to` its first in the stage.
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
        // SAFETY: if any of the eight tokens is visible, the page is their block's, which holds whole groups of eight.
        // Otherwise no byte is read.
        unsafe {
            let head = page.sub(pages.vector(0, 0, KeyOrValue::Key, chunk, offset));
            let from = head.cast::<u16>().add(pages.scale(0, 0, part, offset));
            cp_async::copy_cg_zero_fill(to, from.cast(), bytes);
        }
    }
}

const _: () = assert!(STAGES == 2, "stages alternate with the parity of the tile number");
