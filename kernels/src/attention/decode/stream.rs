//! Iteration over a range: its streams in order, and a warp's tiles, which are fetched ahead of their use.

use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use super::plan::{DecodePlan, PlanEntry, TILE, divide};
use crate::kv_element::KvElement;
use crate::layout::{KeyOrValue, KvFormat, Pages, VECTOR};
use cuda_std::ptx::cp_async;

/// The keys and values of one KV head for one sequence, read for one tile of query heads.
#[derive(Clone, Copy)]
pub struct KvStream {
    /// The sequence.
    pub sequence: u32,
    /// The stream's index within its sequence.
    pub index: u32,
    /// The number of its first tile.
    pub begin: u32,
    /// The sequence's entry in the plan.
    pub span: PlanEntry,
    /// The index of a tile within the sequence, minus its number. Kept because every copy needs it.
    shift: u32,
}

impl KvStream {
    /// Returns the stream that contains tile `tile` of `sequence`.
    ///
    /// # Safety
    /// The plan has been computed. `tile` and `sequence` are as [`DecodePlan::range`] returns them.
    #[inline(always)]
    pub unsafe fn containing(plan: DecodePlan, tile: u32, sequence: u32) -> KvStream {
        // SAFETY: by this function's contract, the plan has been computed and `sequence` is in the batch.
        let span = unsafe { plan.span(sequence) };
        let index = divide(tile - span.start, span.tiles);
        let begin = span.start + index * span.tiles;
        KvStream { sequence, index, begin, span, shift: (span.first / TILE).wrapping_sub(begin) }
    }

    /// Returns the number of the tile after the stream's last.
    #[inline(always)]
    pub const fn end(self) -> u32 {
        self.begin + self.span.tiles
    }

    /// Advances to the next stream that has tiles.
    ///
    /// # Safety
    /// Such a stream exists, and the plan has been computed.
    #[inline(always)]
    pub unsafe fn advance(&mut self, plan: DecodePlan, streams: u32) {
        self.begin = self.end();
        self.index += 1;
        if self.index == streams {
            self.index = 0;
            loop {
                self.sequence += 1;
                // SAFETY: by this function's contract, a stream with tiles follows, so `sequence` stays within the
                // batch.
                self.span = unsafe { plan.span(self.sequence) };
                if self.span.tiles > 0 {
                    break;
                }
            }
        }
        self.shift = (self.span.first / TILE).wrapping_sub(self.begin);
    }

    /// Returns the position of a tile's first token within the sequence.
    #[inline(always)]
    pub const fn position(self, tile: u32) -> u32 {
        self.shift.wrapping_add(tile) * TILE
    }
}

/// One layer's cache, and the block tables of all sequences.
#[derive(Clone, Copy)]
pub struct Cache {
    /// The layer's pages.
    pub vectors: *const Vector,
    /// The shape of the pages. The block size is a power of two.
    pub pages: Pages,
    /// All block tables.
    pub tables: *const u32,
    /// The start of each sequence's table in `tables`.
    pub table_starts: *const u32,
    /// Streams per KV head.
    pub head_tiles: u32,
}

impl Cache {
    /// Returns the number of streams per sequence.
    #[inline(always)]
    pub const fn streams(self) -> u32 {
        self.pages.heads * self.head_tiles
    }
}

/// Copies every n-th tile of a range to a warp's ring in shared memory, one tile at a time.
///
/// In the ring a tile has the layout of a page with 16 tokens: K as `[D / 8][16][8]`, then V, then the scales if there
/// are any. A lane copies vectors of one token: either those with an even index or those with an odd one.
///
/// Keys and values outside the queries' view are not read, and become zeros in the ring. Their memory may hold NaN,
/// which a zero weight would not hide. Scales are copied eight at a time. The eight may include scales from before the
/// window, which are safe to read because their tokens are in a block that is still cached.
pub struct Reader<T, const D: u32> {
    plan: DecodePlan,
    cache: Cache,
    /// The distance between two consecutive tiles of this warp, in tiles.
    step: u32,
    /// The next tile to fetch, its stream, and the end of the range.
    tile: u32,
    stream: KvStream,
    end: u32,
    /// The stream's block table.
    table: *const u32,
    /// The cache block of the lane's token in the next tile. It is looked up one tile ahead because the copy depends on
    /// it.
    block: u32,
    /// The shared-memory offset of the lane's first vector in the ring's first stage.
    target: u32,
    element: PhantomData<T>,
}

impl<T: KvElement, const D: u32> Reader<T, D> {
    /// Starts at `tile`, which is in `stream` or after it. `ring` is an offset in shared memory.
    ///
    /// # Safety
    /// Plan, cache and stream are the launch's. All lanes of the warp call this together, and likewise
    /// [`Reader::fetch`].
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
        // SAFETY: by this function's contract, cache and stream are the launch's, so the sequence has a block table.
        unsafe {
            let table = cache.tables.add(*cache.table_starts.add(stream.sequence as usize) as usize);
            let mut reader =
                Reader { plan, cache, step, tile, stream, end, table, block: 0, target, element: PhantomData };
            reader.look_up();
            reader
        }
    }

    /// Starts to copy the next tile to a stage of the ring, and commits the copies as one group. After the range's end
    /// the group is empty.
    ///
    /// # Safety
    /// As for [`Reader::new`]. No other code uses the stage until the group has been waited for.
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
            // Each iteration copies two vectors of each token.
            let (from_step, to_step) = (2 * 16 * block_size as usize, 2 * 16 * TILE);
            let vectors = 2 * D / T::FORMAT.vector_elements();
            let stage = stage * tile_bytes(D, T::FORMAT);
            // SAFETY: the block contains the lane's token. If the token is not visible, the copy reads no bytes.
            unsafe {
                let mut from = self.cache.vectors.add(vector).cast::<u8>();
                let mut to = self.target + stage;
                // V follows K, both in the page and in the ring.
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

    /// Starts to copy the scales of eight tokens, beginning with the lane's own `token`. The first half of the warp
    /// copies key scales, and the second half value scales.
    ///
    /// `at` is the offset of a tile's scales in the ring. Each lane's own scale has two bytes there, in lane order.
    ///
    /// # Safety
    /// As for [`Reader::fetch`], but only every eighth lane calls this.
    #[inline(always)]
    unsafe fn copy_scales(&self, at: u32, head: u32, token: u32) {
        let (lane, pages) = (warp::lane_id(), self.cache.pages);
        let PlanEntry { first, length, .. } = self.stream.span;
        let part = if lane < TILE { KeyOrValue::Key } else { KeyOrValue::Value };
        let bytes = if first < token + VECTOR && token < length { 2 * (length - token).min(VECTOR) } else { 0 };
        let scale = pages.scale(self.block, head, part, token & (pages.block_size - 1));
        // SAFETY: if any of the tokens is visible, the block is theirs, since it holds whole groups of eight. Otherwise
        // the copy reads no bytes.
        unsafe {
            let from = self.cache.vectors.cast::<u16>().add(scale);
            cp_async::copy_cg_zero_fill(self.target - lane * 16 + at + lane * 2, from.cast(), bytes);
        }
    }

    /// Looks up the cache block of the lane's token in the next tile to fetch.
    ///
    /// # Safety
    /// As for [`Reader::new`].
    #[inline(always)]
    unsafe fn look_up(&mut self) {
        if self.tile >= self.end {
            return;
        }
        // SAFETY: the tile is in the range, so its stream is in the batch. The table has its tokens' blocks.
        unsafe {
            if self.tile >= self.stream.end() {
                while self.tile >= self.stream.end() {
                    self.stream.advance(self.plan, self.cache.streams());
                }
                let start = *self.cache.table_starts.add(self.stream.sequence as usize);
                self.table = self.cache.tables.add(start as usize);
            }
            // The block table ends with the sequence. A block before the window may have been freed, but nothing is
            // read from it.
            let token = self.stream.position(self.tile) + warp::lane_id() % TILE;
            let last = self.stream.span.length - 1;
            self.block = *self.table.add(divide(token.min(last), self.cache.pages.block_size) as usize);
        }
    }
}

/// Returns the bytes of a tile: keys and values of 16 tokens, and their scales.
pub const fn tile_bytes(head_size: u32, format: KvFormat) -> u32 {
    2 * TILE * format.head_bytes(head_size)
}
