//! Iteration over a range: its streams one after the other, and a warp's tiles, fetched ahead of their use.

use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use super::plan::{DecodePlan, PlanEntry, TILE, divide};
use crate::kv_element::KvElement;
use crate::layout::{KeyOrValue, KvFormat, Pages, VECTOR};
use cuda_std::ptx::cp_async;

/// A stream: the keys and values of one KV head for one sequence, read for one tile of query heads.
#[derive(Clone, Copy)]
pub struct KvStream {
    /// The sequence.
    pub sequence: u32,
    /// Which of the sequence's streams it is.
    pub index: u32,
    /// The number of its first tile.
    pub begin: u32,
    /// The sequence's entry in the plan.
    pub span: PlanEntry,
}

impl KvStream {
    /// The stream that holds tile `tile`, which is of `sequence`.
    ///
    /// # Safety
    /// The plan was made, and `tile` and `sequence` are as [`DecodePlan::range`] gives them.
    #[inline(always)]
    pub unsafe fn holding(plan: DecodePlan, tile: u32, sequence: u32) -> KvStream {
        // SAFETY: the plan was made and `sequence` is one of the batch, by this function's contract.
        let span = unsafe { plan.span(sequence) };
        let index = divide(tile - span.start, span.tiles);
        KvStream { sequence, index, begin: span.start + index * span.tiles, span }
    }

    /// The number of the tile after its last.
    #[inline(always)]
    pub const fn end(self) -> u32 {
        self.begin + self.span.tiles
    }

    /// Goes on to the next stream that has tiles.
    ///
    /// # Safety
    /// There is such a stream, and the plan was made.
    #[inline(always)]
    pub unsafe fn advance(&mut self, plan: DecodePlan, streams: u32) {
        self.begin = self.end();
        self.index += 1;
        if self.index == streams {
            self.index = 0;
            loop {
                self.sequence += 1;
                // SAFETY: a stream with tiles follows, by this function's contract, so that `sequence` stays within the
                // batch.
                self.span = unsafe { plan.span(self.sequence) };
                if self.span.tiles > 0 {
                    break;
                }
            }
        }
    }

    /// The position in the sequence of a tile's first token.
    #[inline(always)]
    pub const fn position(self, tile: u32) -> u32 {
        (self.span.first / TILE + tile - self.begin) * TILE
    }
}

/// One layer's cache, and the block tables of all sequences.
#[derive(Clone, Copy)]
pub struct Cache {
    /// The layer's pages.
    pub vectors: *const Vector,
    /// Their shape; the block size is a power of two.
    pub pages: Pages,
    /// All block tables.
    pub tables: *const u32,
    /// Where in `tables` each sequence's table begins.
    pub table_starts: *const u32,
    /// Streams of a KV head.
    pub head_tiles: u32,
}

impl Cache {
    /// Streams of a sequence.
    #[inline(always)]
    pub const fn streams(self) -> u32 {
        self.pages.heads * self.head_tiles
    }
}

/// Copies every n-th tile of a range to a warp's ring in shared memory, a tile at a time.
///
/// In the ring a tile is as in a page of 16 tokens: K as `[D / 8][16][8]`, then V, and the scales if there are any. A lane
/// copies one token's vectors, those with an even or those with an odd index. What the query does not see becomes zeros, and
/// is not read: it may be anything, and zero weights would not hide a NaN. Scales are copied eight at a time, of which those
/// before a window are read with the others: they are those of tokens that are in the cache.
pub struct Reader<T, const D: u32> {
    plan: DecodePlan,
    cache: Cache,
    /// Tiles from one of the warp's to the next.
    step: u32,
    /// The tile that is fetched next, its stream, and the end of the range.
    tile: u32,
    stream: KvStream,
    end: u32,
    /// The stream's block table.
    table: *const u32,
    /// The block that holds the lane's token of the next tile: looked up a tile ahead, since all else waits for it.
    block: u32,
    /// Where in the ring the lane's first vector goes.
    target: u32,
    element: PhantomData<T>,
}

impl<T: KvElement, const D: u32> Reader<T, D> {
    /// Begins with `tile`, which need not be in `stream` but is not before it. `ring` is an offset in shared memory.
    ///
    /// # Safety
    /// Plan, cache and stream are those of the launch; all lanes of the warp call this together, and [`Reader::fetch`],
    /// too.
    #[inline(always)]
    pub unsafe fn new(
        plan: DecodePlan,
        cache: Cache,
        stream: KvStream,
        tile: u32,
        end: u32,
        step: u32,
        ring: u32,
    ) -> Self {
        let target = ring + warp::lane_id() * 16;
        // SAFETY: cache and stream are those of the launch, by this function's contract, so that the sequence has a
        // block table.
        unsafe {
            let table = cache.tables.add(*cache.table_starts.add(stream.sequence as usize) as usize);
            let mut reader =
                Reader { plan, cache, step, tile, stream, end, table, block: 0, target, element: PhantomData };
            reader.look_up();
            reader
        }
    }

    /// Starts copying the next tile to a stage of the ring, as a group of its own; an empty one behind the range.
    ///
    /// # Safety
    /// As for [`Reader::new`]; nothing else uses the stage until the group has been waited for.
    #[inline(always)]
    pub unsafe fn fetch(&mut self, stage: u32) {
        if self.tile < self.end {
            let PlanEntry { first, length, .. } = self.stream.span;
            let Pages { block_size, .. } = self.cache.pages;
            let lane = warp::lane_id();
            let token = self.stream.position(self.tile) + lane % TILE;
            let bytes = if first <= token && token < length { 16 } else { 0 };
            let head = divide(self.stream.index, self.cache.head_tiles);
            let vector =
                self.cache.pages.vector(self.block, head, KeyOrValue::Key, lane / TILE, token & (block_size - 1));
            // A step of this loop copies two vectors of each token.
            let (from_step, to_step) = (2 * 16 * block_size as usize, 2 * 16 * TILE);
            let vectors = 2 * D / T::FORMAT.vector_elements();
            let stage = stage * tile_bytes(D, T::FORMAT);
            // SAFETY: the block is the token's, and where the lane's token is not seen nothing is read.
            unsafe {
                let mut from = self.cache.vectors.add(vector).cast::<u8>();
                let mut to = self.target + stage;
                // K and V follow each other, in the page as in the ring.
                for _ in 0..vectors / 2 {
                    cp_async::copy_cg_zero_fill(to, from, bytes);
                    from = from.add(from_step);
                    to += to_step;
                }
                if T::FORMAT.is_coded() && lane.is_multiple_of(VECTOR) {
                    self.copy_scales(stage + vectors * TILE * 16, head, token);
                }
                self.tile += self.step;
                self.look_up();
            }
        }
        cp_async::commit();
    }

    /// Starts copying the scales of the eight tokens from `token` on, which is the lane's: the keys' in the first half of the
    /// warp, the values' in the second. They go to the vector of the ring that is the lane's share of those from `at` on.
    ///
    /// # Safety
    /// As for [`Reader::fetch`], by every eighth lane.
    #[inline(always)]
    unsafe fn copy_scales(&self, at: u32, head: u32, token: u32) {
        let (lane, pages) = (warp::lane_id(), self.cache.pages);
        let PlanEntry { first, length, .. } = self.stream.span;
        let part = if lane < TILE { KeyOrValue::Key } else { KeyOrValue::Value };
        let bytes = if first < token + VECTOR && token < length { 2 * (length - token).min(VECTOR) } else { 0 };
        let scale = pages.scale(self.block, head, part, token & (pages.block_size - 1));
        // SAFETY: if one of the tokens is seen, the block is theirs: it holds whole groups of eight; else nothing is read.
        unsafe {
            let from = self.cache.vectors.cast::<u16>().add(scale);
            cp_async::copy_cg_zero_fill(self.target - lane * 16 + at + lane * 2, from.cast(), bytes);
        }
    }

    /// Finds the block of the lane's token in the tile that is fetched next.
    ///
    /// # Safety
    /// As for [`Reader::new`].
    #[inline(always)]
    unsafe fn look_up(&mut self) {
        if self.tile >= self.end {
            return;
        }
        // SAFETY: the tile is in the range, so that its stream is in the batch; its tokens' blocks are in the table.
        unsafe {
            if self.tile >= self.stream.end() {
                while self.tile >= self.stream.end() {
                    self.stream.advance(self.plan, self.cache.streams());
                }
                let start = *self.cache.table_starts.add(self.stream.sequence as usize);
                self.table = self.cache.tables.add(start as usize);
            }
            // Tables end with the sequence. A block that lies before the window may have been freed, but nothing is
            // read of it.
            let token = self.stream.position(self.tile) + warp::lane_id() % TILE;
            let last = self.stream.span.length - 1;
            self.block = *self.table.add(divide(token.min(last), self.cache.pages.block_size) as usize);
        }
    }
}

/// Bytes of a tile: keys and values of 16 tokens, and their scales.
pub const fn tile_bytes(head_size: u32, format: KvFormat) -> u32 {
    2 * TILE * format.head_bytes(head_size)
}
