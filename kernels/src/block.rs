//! Reductions over a block of threads, in an order that depends on its size alone.

use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, WARP_SIZE};

/// The sum of `value` over the block, in every thread. `SLOT` (0 or 1) names the shared memory it takes: two sums with a
/// barrier between them, such as another sum's, may use the same.
///
/// # Safety
/// All threads of the block come by together, in whole warps.
#[inline(always)]
pub unsafe fn sum<const SLOT: usize>(value: f32) -> f32 {
    let partial = shared_array![f32; 2 * 32];
    // SAFETY: all lanes are here; a warp has an element of its own, and reads the others' behind the barrier.
    unsafe {
        let partial = partial.add(SLOT * WARP_SIZE as usize);
        let own = warp::warp_sum(value);
        let (lane, warp_id) = (warp::lane_id(), warp::warp_id());
        if lane == 0 {
            *partial.add(warp_id as usize) = own;
        }
        thread::sync_threads();
        let warps = thread::block_dim_x() / WARP_SIZE;
        warp::warp_sum(if lane < warps { *partial.add(lane as usize) } else { 0.0 })
    }
}

/// The sum over the warp of a number below 2^59, in every lane.
///
/// # Safety
/// All lanes of the warp come by together.
#[inline(always)]
pub unsafe fn warp_sum_u64(value: u64) -> u64 {
    // Digits of 27 bits, whose sums over 32 lanes fit 32 bits.
    const DIGIT: u32 = 27;
    let digit = |i: u32| (value >> (i * DIGIT)) as u32 & ((1 << DIGIT) - 1);
    // SAFETY: the caller's.
    let sum = |i: u32| u64::from(unsafe { warp::warp_reduce_add(FULL_MASK, digit(i)) });
    sum(0) + (sum(1) << DIGIT) + (sum(2) << (2 * DIGIT))
}
