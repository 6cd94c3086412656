//! The planner: which block reads which keys and values, once a step and for all layers.
//!
//! A *stream* is the keys and values of one KV head for one sequence, read for as many query heads as fit a tile of the
//! tensor cores; it is cut into *tiles* of [`TILE`] tokens. All tiles of a batch are numbered consecutively: by
//! sequence, then by stream, then by token. These numbers are cut into ranges of equal length, to a tile, one for each
//! block of the attention kernel's fixed grid, whatever the lengths of the sequences. A range takes the end of one
//! stream, whole streams, and the beginning of another; so a stream has partial results from neighbouring ranges, at
//! most two from each range, and where they lie follows from the numbers of the ranges alone: nothing but sequences and
//! ranges needs to be listed.
//!
//! With less than [`MIN_RANGE`] tiles for each there are fewer ranges, and the remaining blocks have nothing to do.
//!
//! The plan in global memory, in vectors of four `u32`:
//!
//! | vectors | of | content |
//! | --- | --- | --- |
//! | 1 | the batch | ranges, tiles in each, ranges that have one more, all tiles |
//! | slots | range r | its first tile, its end, the first tile's sequence, 0 |
//! | sequences | sequence s | number of its first tile, tiles in each stream, first token seen, length |
//!
//! Grid: one block of [`PLAN_THREADS`]. Floor: 16 bytes read and written a sequence and range; this is latency, some
//! microseconds a step, and the reason why layers share the plan.

use cuda_std::prelude::*;
use cuda_std::vector::Vector;
use cuda_std::warp::{FULL_MASK, WARP_SIZE};

/// Tokens of a tile: what a warp takes at a time, and the depth of an `mma`.
pub const TILE: u32 = 16;

/// Tiles that a range has at least, if there are as many: 256 tokens. Shorter ones cost more to merge than they save.
pub const MIN_RANGE: u32 = 256 / TILE;

/// Threads of [`plan_paged_attention()`], which is launched with one block.
pub const PLAN_THREADS: u32 = 256;

/// Vectors of a plan.
pub const fn plan_vectors(slots: u32, sequences: u32) -> u32 {
    1 + slots + sequences
}

/// Tiles `0..total` in ranges that differ by one tile at most: `remainder` of `quotient + 1` tiles, then the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// How many there are.
    pub count: u32,
    /// Tiles of the shorter ones.
    pub quotient: u32,
    /// How many have one more; they come first.
    pub remainder: u32,
}

impl Ranges {
    /// Cuts `total` tiles into at most `slots` ranges.
    #[inline(always)]
    pub const fn of(total: u32, slots: u32) -> Ranges {
        let wanted = total / MIN_RANGE;
        let most = if wanted < slots { wanted } else { slots };
        let count = if most == 0 { 1 } else { most };
        Ranges { count, quotient: total / count, remainder: total % count }
    }

    /// The first tile of a range, which is the end of the one before.
    #[inline(always)]
    pub const fn begin(self, range: u32) -> u32 {
        range * self.quotient + if range < self.remainder { range } else { self.remainder }
    }

    /// The range that holds a tile.
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

/// A quotient whose divisor is never zero. The code rules zero out so that the compiler does not include a panic.
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
    /// The first token that one of its queries sees.
    pub first: u32,
    /// Tokens in the cache; that of the last query is the last.
    pub length: u32,
}

/// A plan in global memory.
#[derive(Clone, Copy)]
pub struct DecodePlan {
    vectors: *const Vector,
    slots: u32,
}

impl DecodePlan {
    /// A plan for a grid of `slots`.
    #[inline(always)]
    pub const fn new(vectors: *const Vector, slots: u32) -> DecodePlan {
        DecodePlan { vectors, slots }
    }

    /// How the tiles were cut into ranges.
    ///
    /// # Safety
    /// The plan was made, for a grid of this size.
    #[inline(always)]
    pub unsafe fn ranges(self) -> Ranges {
        // SAFETY: the plan was made, by this function's contract, and this is its first vector.
        let Vector([count, quotient, remainder, _]) = unsafe { *self.vectors };
        Ranges { count, quotient, remainder }
    }

    /// The first tile of a range, its end, and the first tile's sequence. Empty for a slot that has no range.
    ///
    /// # Safety
    /// As for [`DecodePlan::ranges`], and `slot` is one of the grid.
    #[inline(always)]
    pub unsafe fn range(self, slot: u32) -> (u32, u32, u32) {
        // SAFETY: the plan has a vector for each slot of the grid, and `slot` is one, by this function's contract.
        let Vector([begin, end, sequence, _]) = unsafe { *self.vectors.add(1 + slot as usize) };
        (begin, end, sequence)
    }

    /// The entry of a sequence.
    ///
    /// # Safety
    /// As for [`DecodePlan::ranges`], and `sequence` is one of the batch.
    #[inline(always)]
    pub unsafe fn span(self, sequence: u32) -> PlanEntry {
        // SAFETY: the plan has a vector for each sequence of the batch, and `sequence` is one, by this function's
        // contract.
        let Vector([start, tiles, first, length]) =
            unsafe { *self.vectors.add(1 + self.slots as usize + sequence as usize) };
        PlanEntry { start, tiles, first, length }
    }
}

/// Plans a step of decode attention.
///
/// - `lengths`: tokens in the cache of each sequence, those of its queries included; 0 for padding, for which nothing
///   will be read or written.
/// - `query_starts`: `[sequences + 1]`, sequence s has query tokens `query_starts[s] .. query_starts[s + 1]`: one at least, and of
///   padding any. They are read with a window only.
/// - `window`: with w > 0 a query sees the last w tokens up to its own; with 0 all.
/// - `streams`: of each sequence, see [`DecodeLaunch::streams`](super::DecodeLaunch::streams).
/// - `slots`: the attention kernel's grid.
///
/// # Safety
/// `lengths` has `sequences` elements, `query_starts` one more, `plan` the size of [`plan_vectors`], the batch has less than 2^32
/// tiles, and the launch is of one block of [`PLAN_THREADS`].
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
    // SAFETY: indices are below `sequences` and `slots`; all threads take part in each sum.
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
        // The spans are read by threads that did not write them.
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

/// The sum over the block's threads before this one, and over all.
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
        // The sums of an earlier pass have been read by now.
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

/// The sequence that a tile belongs to: the last that begins at it or before. Those without tiles come before the one
/// that begins with them.
///
/// # Safety
/// `spans` has an entry for each of `sequences` sequences, the first of which begins at tile 0.
#[inline(always)]
unsafe fn sequence_of(spans: *const Vector, sequences: u32, tile: u32) -> u32 {
    let (mut from, mut to) = (0, sequences);
    while to - from > 1 {
        let middle = from + (to - from) / 2;
        // SAFETY: `middle` is below `sequences`, for which there are spans, by this function's contract.
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
