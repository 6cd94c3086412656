//! The planner, which assigns keys and values to blocks, once per step for all layers.
//!
//! A *stream* is the keys and values of one KV head for one sequence, read for as many query heads as fit a tile of the
//! tensor cores. It is divided into *tiles* of [`TILE`] tokens. All tiles of a batch are numbered consecutively: by
//! sequence, then by stream, then by token.
//!
//! The planner cuts these numbers into ranges of equal length (to within one tile), one per block of the attention
//! kernel's fixed grid, whatever the lengths of the sequences. A range covers the end of one stream, whole streams, and
//! the start of another. So a stream has partial results from consecutive ranges, and each range has at most two
//! partial results. Their location follows from the range numbers alone, so the plan lists only sequences and ranges.
//!
//! If the batch has too few tiles for [`MIN_RANGE`] tiles per range, there are fewer ranges, and the remaining blocks
//! are idle.
//!
//! The plan in global memory, in vectors of four `u32`:
//!
//! | vectors | of | content |
//! | --- | --- | --- |
//! | 1 | the batch | number of ranges, tiles in each, number of ranges with one more, total tiles |
//! | slots | range r | its first tile, its end, the first tile's sequence, 0 |
//! | sequences | sequence s | number of its first tile, tiles in each stream, first visible token, length |
//!
//! Grid: one block of [`PLAN_THREADS`]. Floor: 16 bytes read and written per sequence and range. The time is latency,
//! several microseconds per step, and that is why layers share the plan.

use cuda_std::prelude::*;
use cuda_std::vector::Vector;
use cuda_std::warp::{FULL_MASK, WARP_SIZE};

/// Tokens per tile: the unit of a warp's work, and the depth of an `mma`.
pub const TILE: u32 = 16;

/// Minimum number of tiles per range, if the batch has enough: 256 tokens. Shorter ranges cost more to merge than they
/// save.
pub const MIN_RANGE: u32 = 256 / TILE;

/// Threads of [`plan_paged_attention()`], which runs as one block.
pub const PLAN_THREADS: u32 = 256;

/// Returns the number of vectors in a plan.
pub const fn plan_vectors(slots: u32, sequences: u32) -> u32 {
    1 + slots + sequences
}

/// A division of tiles `0..total` into ranges whose lengths differ by at most one tile. The first `remainder` ranges
/// have `quotient + 1` tiles, the others `quotient`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// The number of ranges.
    pub count: u32,
    /// Tiles in a shorter range.
    pub quotient: u32,
    /// The number of ranges with one tile more. They come first.
    pub remainder: u32,
}

impl Ranges {
    /// Divides `total` tiles into at most `slots` ranges.
    #[inline(always)]
    pub const fn of(total: u32, slots: u32) -> Ranges {
        let wanted = total / MIN_RANGE;
        let most = if wanted < slots { wanted } else { slots };
        let count = if most == 0 { 1 } else { most };
        Ranges { count, quotient: total / count, remainder: total % count }
    }

    /// Returns the first tile of a range, which is also the end of the previous range.
    #[inline(always)]
    pub const fn begin(self, range: u32) -> u32 {
        range * self.quotient + if range < self.remainder { range } else { self.remainder }
    }

    /// Returns the range that contains a tile.
    #[inline(always)]
    pub const fn holding(self, tile: u32) -> u32 {
        let longer = self.remainder * (self.quotient + 1);
        if tile < longer {
            divide(tile, self.quotient + 1)
        } else {
            self.remainder + divide(tile - longer, self.quotient)
        }
    }
}

/// Divides by a number that is never zero. Replacing zero by one spares the kernels a panic path.
#[inline(always)]
pub const fn divide(number: u32, by: u32) -> u32 {
    number / if by == 0 { 1 } else { by }
}

/// A sequence's entry in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    /// The number of its first tile.
    pub start: u32,
    /// Tiles in each of its streams.
    pub tiles: u32,
    /// The first token that any of its queries sees.
    pub first: u32,
    /// Tokens in the cache. The last of them is the last query's token.
    pub length: u32,
}

/// A plan in global memory.
#[derive(Clone, Copy)]
pub struct DecodePlan {
    vectors: *const Vector,
    slots: u32,
}

impl DecodePlan {
    /// Creates a plan for a grid of `slots` blocks.
    #[inline(always)]
    pub const fn new(vectors: *const Vector, slots: u32) -> DecodePlan {
        DecodePlan { vectors, slots }
    }

    /// Returns the division of tiles into ranges.
    ///
    /// # Safety
    /// The plan has been computed for a grid of this size.
    #[inline(always)]
    pub unsafe fn ranges(self) -> Ranges {
        // SAFETY: by this function's contract, the plan has been computed. This is its first vector.
        let Vector([count, quotient, remainder, _]) = unsafe { *self.vectors };
        Ranges { count, quotient, remainder }
    }

    /// Returns a range's first tile, its end, and the first tile's sequence. The range is empty if the slot has none.
    ///
    /// # Safety
    /// As for [`DecodePlan::ranges`], and `slot` is a block of the grid.
    #[inline(always)]
    pub unsafe fn range(self, slot: u32) -> (u32, u32, u32) {
        // SAFETY: the plan has a vector for each slot of the grid, and by this function's contract `slot` is one.
        let Vector([begin, end, sequence, _]) = unsafe { *self.vectors.add(1 + slot as usize) };
        (begin, end, sequence)
    }

    /// Returns the plan's entry for a sequence.
    ///
    /// # Safety
    /// As for [`DecodePlan::ranges`], and `sequence` is in the batch.
    #[inline(always)]
    pub unsafe fn span(self, sequence: u32) -> PlanEntry {
        // SAFETY: the plan has a vector for each sequence of the batch, and by this function's contract `sequence` is
        // one.
        let Vector([start, tiles, first, length]) =
            unsafe { *self.vectors.add(1 + self.slots as usize + sequence as usize) };
        PlanEntry { start, tiles, first, length }
    }
}

/// Plans a step of decode attention.
///
/// - `lengths`: each sequence's tokens in the cache, including its queries. 0 marks padding, which the attention kernel
///   ignores.
/// - `query_starts`: `[sequences + 1]`. Sequence s has query tokens `query_starts[s] .. query_starts[s + 1]`: at least
///   one, or any number for padding. Read only if there is a window.
/// - `window`: with w > 0 a query sees the last w tokens up to its own; with 0 it sees all.
/// - `streams`: streams per sequence, see [`DecodeLaunch::streams`](super::DecodeLaunch::streams).
/// - `slots`: blocks in the attention kernel's grid.
///
/// # Safety
/// `lengths` has `sequences` elements, `query_starts` has one more, and `plan` has the size of [`plan_vectors`]. The
/// batch has fewer than 2^32 tiles. The launch is one block of [`PLAN_THREADS`].
#[kernel(dependent, max_threads = 256)]
pub unsafe fn plan_paged_attention(
    lengths: *const u32,
    query_starts: *const u32,
    plan: *mut Vector,
    sequences: u32,
    window: u32,
    streams: u32,
    slots: u32,
) {
    let thread = thread::thread_idx_x();
    // SAFETY: indices are below `sequences` and `slots`. All threads take part in each sum.
    unsafe {
        let spans = plan.add(1 + slots as usize);
        let (mut total, mut first_of_pass) = (0, 0);
        while first_of_pass < sequences {
            let sequence = first_of_pass + thread;
            let length = if sequence < sequences { *lengths.add(sequence as usize) } else { 0 };
            let first = if window > 0 && length > 0 {
                let starts = query_starts.add(sequence as usize);
                (length + 1).saturating_sub(window).saturating_sub(*starts.add(1) - *starts)
            } else {
                0
            };
            let tiles = length.div_ceil(TILE) - first / TILE;
            let (before, sum) = block_sum(tiles * streams);
            if sequence < sequences {
                *spans.add(sequence as usize) = Vector([total + before, tiles, first, length]);
            }
            total += sum;
            first_of_pass += PLAN_THREADS;
        }
        // Threads read spans that other threads wrote.
        thread::sync_threads();

        let ranges = Ranges::of(total, slots);
        if thread == 0 {
            *plan = Vector([ranges.count, ranges.quotient, ranges.remainder, total]);
        }
        let mut slot = thread;
        while slot < slots {
            let begin = ranges.begin(slot);
            *plan.add(1 + slot as usize) = if slot < ranges.count && begin < total {
                Vector([begin, ranges.begin(slot + 1), sequence_of(spans, sequences, begin), 0])
            } else {
                Vector([0; 4])
            };
            slot += PLAN_THREADS;
        }
    }
}

/// Returns the sum over the block's threads before this one, and the sum over all threads.
///
/// # Safety
/// All threads of a block of [`PLAN_THREADS`] call this together.
#[inline(always)]
unsafe fn block_sum(own: u32) -> (u32, u32) {
    const WARPS: u32 = PLAN_THREADS / WARP_SIZE;
    let sums = shared_array![u32; 8];
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    let mut upto = own;
    let mut step = 1;
    // SAFETY: all lanes take part, and there is a sum for each warp.
    unsafe {
        while step < WARP_SIZE {
            let below = warp::warp_shuffle_up(FULL_MASK, upto, step, WARP_SIZE);
            upto += if lane >= step { below } else { 0 };
            step *= 2;
        }
        // Wait until all threads have read the sums of the previous pass.
        thread::sync_threads();
        if lane == WARP_SIZE - 1 {
            *sums.add(warp as usize) = upto;
        }
        thread::sync_threads();
        let (mut before, mut total) = (upto - own, 0);
        for other in 0..WARPS {
            let sum = *sums.add(other as usize);
            before += if other < warp { sum } else { 0 };
            total += sum;
        }
        (before, total)
    }
}

/// Returns the sequence that contains a tile: the last one that begins at the tile or before it. Empty sequences with
/// the same start come before it.
///
/// # Safety
/// `spans` has an entry for each of `sequences` sequences. The first begins at tile 0.
#[inline(always)]
unsafe fn sequence_of(spans: *const Vector, sequences: u32, tile: u32) -> u32 {
    let (mut from, mut to) = (0, sequences);
    while to - from > 1 {
        let middle = from + (to - from) / 2;
        // SAFETY: by this function's contract, `spans` has an entry for each sequence. `middle` is below `sequences`.
        if unsafe { (*spans.add(middle as usize)).0[0] } <= tile { from = middle } else { to = middle }
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all_tiles_evenly() {
        for (total, slots) in [(0, 7), (1, 7), (15, 7), (31, 7), (32, 7), (1000, 7), (1001, 264), (123_457, 396)] {
            let ranges = Ranges::of(total, slots);
            assert!(ranges.count <= slots);
            assert_eq!((ranges.begin(0), ranges.begin(ranges.count)), (0, total));
            for range in 0..ranges.count {
                let (begin, end) = (ranges.begin(range), ranges.begin(range + 1));
                assert!(end - begin >= MIN_RANGE || ranges.count == 1, "{total} tiles for {slots}: {begin}..{end}");
                assert!((end - begin).abs_diff(total / ranges.count) <= 1);
                for tile in begin..end {
                    assert_eq!(ranges.holding(tile), range);
                }
            }
        }
    }
}
