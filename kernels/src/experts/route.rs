//! Routers: which experts a token uses, and how much each of them counts. A warp routes a token.
//!
//! | | |
//! | --- | --- |
//! | shapes | `logits [T][E]` in `f32`, `chosen [T][top_k]`, `factors [T][uses]` |
//! | grid | x: tokens, [`WARPS`] for each block. [`THREADS`] threads |
//! | floor | `4 T E` bytes of logits |
//!
//! Experts are ranked by logits, or by scores plus corrections. Of experts with equal numbers, the first ranks higher.
//! NaN ranks above all numbers. The token's factors are then NaN too. This is the order of the CPU's router.
//!
//! # What limits it
//!
//! The latency of one pass over the logits for each expert that a token uses. The logits are in the first-level cache
//! after the first pass. With 8 of 128 experts, a pass takes four loads and two reductions: about 2 us in total.

use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, WARP_SIZE, warp_max, warp_shuffle_idx, warp_sum};

use crate::arithmetic::{exp, rank, token as expert_of};
use crate::sampling::warp_max_u64;

/// Warps of a block.
pub const WARPS: u32 = 4;

/// Threads of a block.
pub const THREADS: u32 = WARPS * WARP_SIZE;

/// The most experts that a token may use, and the most groups of experts: the lanes of a warp.
pub const MOST: u32 = WARP_SIZE;

/// Bit of `flags`: scores are logistic functions of logits instead of their softmax.
pub(super) const SIGMOID: u32 = 1;
/// Bit of `flags`: the scores of the chosen experts are divided by their sum.
pub(super) const RENORMALISED: u32 = 2;
/// Bit of `flags`: a further factor belongs to a shared expert.
pub(super) const SHARED: u32 = 4;
/// Bit of `flags`: the shared expert has a gate, whose logit follows the experts' logits.
pub(super) const GATED: u32 = 8;

/// The expert of slots of padding. No layer has it.
pub const NO_EXPERT: u32 = u32::MAX;

/// Added to the sum of scores before division by it. Scores of zero then stay zero.
const TINY: f32 = 1e-20;

/// Chooses `top_k` experts for each of `tokens` tokens.
///
/// Rows of `logits` are `stride` numbers apart. Tokens whose number in `kv_slots` is negative are padding, and use no
/// experts. Without padding, `kv_slots` is null. `correction` is added to scores for the choice only, and `expert_scale`
/// multiplies the scores of chosen experts. Both have a number for each expert, or are null. The experts form `groups`
/// groups of equal size. A group's score is the sum of its `best` highest numbers, and tokens use only experts of the
/// `top_groups` best groups. `flags` has the bits above.
///
/// # Safety
/// The arrays have these shapes. The launch is one of a [`Router`](super::plan::Router) that has been checked.
#[kernel(dependent, max_threads = 128)]
pub unsafe fn route(
    logits: *const f32,
    kv_slots: *const i32,
    correction: *const f32,
    expert_scale: *const f32,
    chosen: *mut u32,
    factors: *mut f32,
    stride: u32,
    tokens: u32,
    experts: u32,
    top_k: u32,
    groups: u32,
    top_groups: u32,
    best: u32,
    scale: f32,
    flags: u32,
) {
    let token = thread::block_idx_x() * WARPS + warp::warp_id();
    if token >= tokens {
        return;
    }
    let lane = warp::lane_id();
    // SAFETY: the token was just checked. All lanes of the warp stay together, and read logits of the token only.
    unsafe {
        let row = factors.add(token as usize * (top_k + u32::from(flags & SHARED != 0)) as usize);
        if !kv_slots.is_null() && *kv_slots.add(token as usize) < 0 {
            if lane < top_k {
                *chosen.add((token * top_k + lane) as usize) = NO_EXPERT;
                *row.add(lane as usize) = 0.0;
            }
            if lane == 0 && flags & SHARED != 0 {
                *row.add(top_k as usize) = 0.0;
            }
            return;
        }
        let scores = Scores::new(logits.add(token as usize * stride as usize), correction, experts, flags);
        // SAFETY: there is at least one group.
        core::hint::assert_unchecked(groups != 0);
        let size = experts / groups;
        let used = if groups == 1 { 1 } else { scores.best_groups(groups, size, top_groups, best) };
        let (mut below, mut sum, mut own) = (u64::MAX, 0.0, u32::MAX);
        let mut i = 0;
        while i < top_k {
            let mut highest = 0;
            let mut group = 0;
            while group < groups {
                if used >> group & 1 == 1 {
                    highest = scores.highest(group * size, size, below, highest);
                }
                group += 1;
            }
            below = warp_max_u64(highest);
            let expert = expert_of(below);
            sum += scores.score(expert);
            own = if lane == i { expert } else { own };
            i += 1;
        }
        // The expert's position in order of numbers.
        let (mut place, mut i) = (0, 0);
        while i < top_k {
            place += u32::from(warp_shuffle_idx(FULL_MASK, own, i, WARP_SIZE) < own);
            i += 1;
        }
        if lane < top_k {
            let divisor = if flags & RENORMALISED != 0 { sum + TINY } else { 1.0 };
            let own_scale = if expert_scale.is_null() { 1.0 } else { *expert_scale.add(own as usize) };
            *chosen.add((token * top_k + place) as usize) = own;
            *row.add(place as usize) = scores.score(own) / divisor * scale * own_scale;
        }
        if lane == 0 && flags & SHARED != 0 {
            let gate = if flags & GATED != 0 { sigmoid(*scores.logits.add(experts as usize)) } else { 1.0 };
            *row.add(top_k as usize) = gate;
        }
    }
}

/// The scores of a token's experts.
#[derive(Clone, Copy)]
struct Scores {
    logits: *const f32,
    correction: *const f32,
    flags: u32,
    /// The greatest logit, and the sum of the exponentials of all differences to it. Unused with [`SIGMOID`].
    greatest: f32,
    sum: f32,
}

impl Scores {
    /// Reads a token's logits.
    ///
    /// # Safety
    /// All lanes of the warp call this together. `logits`, and `correction` unless it is null, have `experts` numbers.
    #[inline(always)]
    unsafe fn new(logits: *const f32, correction: *const f32, experts: u32, flags: u32) -> Self {
        let (mut greatest, mut sum) = (f32::NEG_INFINITY, 0.0);
        if flags & SIGMOID == 0 {
            // SAFETY: experts are below `experts`, and all lanes are here, by this function's contract.
            unsafe {
                let mut expert = warp::lane_id();
                while expert < experts {
                    greatest = f32::max(greatest, *logits.add(expert as usize));
                    expert += WARP_SIZE;
                }
                greatest = warp_max(greatest);
                let mut expert = warp::lane_id();
                while expert < experts {
                    sum += exp(*logits.add(expert as usize) - greatest);
                    expert += WARP_SIZE;
                }
                sum = warp_sum(sum);
            }
        }
        Scores { logits, correction, flags, greatest, sum }
    }

    /// Returns the score of an expert.
    ///
    /// # Safety
    /// The expert exists.
    #[inline(always)]
    unsafe fn score(&self, expert: u32) -> f32 {
        // SAFETY: the expert has a logit, by this function's contract.
        let logit = unsafe { *self.logits.add(expert as usize) };
        if self.flags & SIGMOID != 0 { sigmoid(logit) } else { exp(logit - self.greatest) / self.sum }
    }

    /// Returns the number that ranks an expert.
    ///
    /// # Safety
    /// The expert exists.
    #[inline(always)]
    unsafe fn key(&self, expert: u32) -> f32 {
        // SAFETY: the expert has a logit and a correction, by this function's contract.
        unsafe {
            if self.correction.is_null() {
                // Scores have the order of logits, but may be equal where logits differ.
                *self.logits.add(expert as usize)
            } else {
                self.score(expert) + *self.correction.add(expert as usize)
            }
        }
    }

    /// Returns the highest rank that is below `below` among a lane's part of the `count` experts from `first` on, or
    /// `highest` if that is higher.
    ///
    /// # Safety
    /// The experts exist.
    #[inline(always)]
    unsafe fn highest(&self, first: u32, count: u32, below: u64, mut highest: u64) -> u64 {
        let mut i = warp::lane_id();
        while i < count {
            let expert = first + i;
            // SAFETY: the expert exists, by this function's contract.
            let rank = total_rank(unsafe { self.key(expert) }, expert);
            highest = if rank < below && rank > highest { rank } else { highest };
            i += WARP_SIZE;
        }
        highest
    }

    /// Returns a mask of the `top_groups` best of `groups` groups of `size` experts. A group's score is the sum of its
    /// `best` highest numbers.
    ///
    /// # Safety
    /// All lanes of the warp call this together. There are at most [`MOST`] groups, `top_groups` are at most `groups`,
    /// and `best` is at most `size`.
    #[inline(always)]
    unsafe fn best_groups(&self, groups: u32, size: u32, top_groups: u32, best: u32) -> u32 {
        // The lane's group.
        let mut own = 0;
        // SAFETY: all lanes are here, and the experts exist, by this function's contract.
        unsafe {
            let mut group = 0;
            while group < groups {
                let (mut below, mut sum) = (u64::MAX, 0.0);
                let mut i = 0;
                while i < best {
                    below = warp_max_u64(self.highest(group * size, size, below, 0));
                    sum += self.key(expert_of(below));
                    i += 1;
                }
                own = if warp::lane_id() == group { total_rank(sum, group) } else { own };
                group += 1;
            }
            let (mut used, mut below) = (0, u64::MAX);
            let mut i = 0;
            while i < top_groups {
                below = warp_max_u64(if own < below { own } else { 0 });
                used |= 1 << (expert_of(below) % WARP_SIZE);
                i += 1;
            }
            used
        }
    }
}

/// Returns the rank of a number at an index. All NaN are equal, above all numbers. So are both zeros.
#[inline(always)]
fn total_rank(key: f32, index: u32) -> u64 {
    rank(if key.is_nan() { f32::NAN } else { key + 0.0 }, index)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}
