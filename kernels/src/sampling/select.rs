//! The likeliest tokens of a row, without sorting the row.
//!
//! Tokens are compared by [`rank`]: the score, then the id. No two ranks are equal. The search is for the last of the
//! likeliest tokens that together reach a count (top-k) or a share of the weight (top-p). In one pass, the block counts
//! and weighs the tokens above each of a few pivots. It keeps the interval between two pivots that contains the token.
//! It repeats this until at most [`CANDIDATES`] tokens are left, usually after one pass. These are gathered in shared
//! memory and sorted. Counts and weights are integers, so no result depends on the order of threads.

use cuda_std::atomic::add_u32;
use cuda_std::prelude::*;

use super::scan::{LogitRow, THREADS, Team};
use crate::arithmetic::{order, part, rank, score, weight};
use cuda_std::unroll::unroll;

/// Tokens that can be sorted: 32 KiB of shared memory.
pub const CANDIDATES: u32 = 4096;

/// Distances of the first pivots below the greatest score. Most top-k and top-p choices are within the first or second.
const DISTANCES: [f32; 3] = [4.0, 8.0, 16.0];

/// Returns the rank of the last of the likeliest tokens that together reach `target`. Only tokens of rank `lowest` and
/// above count. `target` is a number of tokens, or with `BY_WEIGHT` a share of these tokens' weight in units of 2^-64.
/// `greatest` is the greatest score.
///
/// # Safety
/// All threads of the block call this together, the row is valid, and no thread writes to it. Enough tokens exist to
/// reach `target`.
#[inline(always)]
pub unsafe fn threshold<const BY_WEIGHT: bool>(
    team: &mut Team,
    scores: &LogitRow,
    greatest: f32,
    lowest: u64,
    mut target: u64,
) -> u64 {
    let measure = |score: f32| if BY_WEIGHT { weight(score) } else { 1 };
    let (mut low, mut high, mut above) = (lowest, u64::MAX, 0);
    let mut pivots = DISTANCES.map(|distance| (u64::from(order(greatest - distance)) << 32).max(lowest));
    let mut first = true;
    // SAFETY: the row is valid and all threads of the block are here, by this function's contract. Branches depend on
    // sums that are the same for all threads, so the threads reach each barrier together.
    unsafe {
        let inside = loop {
            let bounds = [pivots[0], pivots[1], pivots[2], low];
            let (mut counts, mut sums) = ([0; 4], [0; 4]);
            scores.each(|token, score| {
                let rank = rank(score, token);
                if rank >= low && rank < high {
                    let measure = measure(score);
                    unroll::<4>(|i| {
                        if rank >= bounds[i] {
                            counts[i] += 1;
                            sums[i] += measure;
                        }
                    });
                }
            });
            let (counts, sums) = (team.sum(counts), team.sum(sums));
            if BY_WEIGHT && first {
                target = part(sums[3], target);
            }
            first = false;
            // The target is between the last bound that does not reach it and the first bound that does.
            let (mut passed, mut passed_sum, mut reached) = (0, 0, 0);
            unroll::<4>(|i| {
                if above + sums[i] < target {
                    (high, passed, passed_sum) = (bounds[i], counts[i], sums[i]);
                }
            });
            unroll::<4>(|i| {
                if above + sums[3 - i] >= target {
                    (low, reached) = (bounds[3 - i], counts[3 - i]);
                }
            });
            let inside = reached - passed;
            above += passed_sum;
            if inside <= u64::from(CANDIDATES) {
                break inside as u32;
            }
            let step = (high - low) / 4;
            pivots = [low + 3 * step, low + 2 * step, low + step];
        };
        let ranks = collect(scores, low, high, inside);
        // Each thread adds up a run of neighbours. If the token that reaches the target is among them, the thread finds
        // it.
        let run = inside.div_ceil(THREADS);
        let start = (thread::thread_idx_x() * run).min(inside);
        let end = (start + run).min(inside);
        let (mut own, mut at) = (0, start);
        while at < end {
            own += measure(score(*ranks.add(at as usize)));
            at += 1;
        }
        let mut before = above + team.sum_below(own);
        let mut found = 0;
        at = start;
        while at < end {
            let rank = *ranks.add(at as usize);
            let next = before + measure(score(rank));
            if before < target && next >= target {
                found = rank;
            }
            before = next;
            at += 1;
        }
        team.max(found)
    }
}

/// Collects the `count` ranks from `low` up to but not including `high` in shared memory, sorted with the greatest
/// first. They stay valid until the next call. A barrier must separate the two calls.
///
/// # Safety
/// All threads of the block call this together, the row is valid, and no thread writes to it. `count` is the number of
/// these ranks, and at most [`CANDIDATES`].
#[inline(always)]
pub unsafe fn collect(scores: &LogitRow, low: u64, high: u64, count: u32) -> *const u64 {
    let ranks = shared_array![u64; 4096];
    let size = count.next_power_of_two();
    // SAFETY: exactly `count` ranks are in this range, by this function's contract, and each takes its own slot. The
    // slots after them, up to `size`, are filled here.
    unsafe {
        scores.each(|token, score| {
            let rank = rank(score, token);
            if rank >= low && rank < high {
                *ranks.add(add_u32(cursor(), 1) as usize) = rank;
            }
        });
        let mut at = count + thread::thread_idx_x();
        while at < size {
            *ranks.add(at as usize) = 0;
            at += THREADS;
        }
        thread::sync_threads();
        reset();
        sort(ranks, size);
    }
    ranks
}

/// Returns the index at which [`collect`] stores the next rank that it finds.
#[inline(always)]
fn cursor() -> *mut u32 {
    shared_array![u32; 1]
}

/// Resets the cursor to 0, at the start of a kernel and after each use. A barrier must precede the next use.
///
/// # Safety
/// No thread uses the cursor meanwhile.
#[inline(always)]
pub unsafe fn reset() {
    if thread::thread_idx_x() == 0 {
        // SAFETY: no thread uses the cursor meanwhile, by this function's contract.
        unsafe { *cursor() = 0 };
    }
}

/// Sorts `size` numbers (a power of two) by Batcher's bitonic network, the greatest first. Every stage ends with a
/// barrier.
///
/// # Safety
/// All threads of the block call this together, after a barrier.
#[inline(always)]
unsafe fn sort(numbers: *mut u64, size: u32) {
    let mut length = 2;
    while length <= size {
        let mut stride = length / 2;
        while stride > 0 {
            let mut pair = thread::thread_idx_x();
            while pair < size / 2 {
                let at = 2 * pair - (pair & (stride - 1));
                // SAFETY: indices are below `size`, and between two barriers only this thread accesses this pair.
                unsafe {
                    let (a, b) = (numbers.add(at as usize), numbers.add((at + stride) as usize));
                    if (*a < *b) == (at & length == 0) {
                        core::ptr::swap(a, b);
                    }
                }
                pair += THREADS;
            }
            thread::sync_threads();
            stride /= 2;
        }
        length *= 2;
    }
}
