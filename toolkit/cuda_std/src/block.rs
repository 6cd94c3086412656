//! Reductions over the threads of a block, and a counter of blocks that have arrived.

use crate::prelude::*;
use crate::warp::WARP_SIZE;
use crate::{atomic, warp};

/// Up to this number of warps, each thread combines all warps' results by itself, because that takes fewer instructions
/// than shuffles.
const FEW_WARPS: u32 = 4;

/// Combines one value per thread of the block and returns the result to all threads. The order depends only on the
/// block's size.
///
/// The threads of each warp combine their values with shuffles. The warps' results then go through shared memory. The
/// barrier in between also makes all earlier writes to shared memory visible to all threads. `MOST_WARPS` is the
/// maximum number of warps of the block, and `neutral` is the neutral element of `combine`.
///
/// # Safety
/// All threads of the block call this together, in whole warps. `room` points to `MOST_WARPS` numbers of shared memory
/// that nothing else uses until the next barrier. If `MOST_WARPS` is 4 or less, the block has exactly that many warps.
#[inline(always)]
pub unsafe fn reduce<const MOST_WARPS: u32>(
    value: f32,
    room: *mut f32,
    neutral: f32,
    combine: impl Fn(f32, f32) -> f32,
) -> f32 {
    // SAFETY: all lanes execute this. Each warp writes its own number, and all numbers are read after the barrier.
    unsafe {
        let value = warp::warp_all_reduce(value, &combine);
        let lane = warp::lane_id();
        if lane == 0 {
            *room.add(warp::warp_id() as usize) = value;
        }
        thread::sync_threads();
        if MOST_WARPS <= FEW_WARPS {
            let mut result = *room;
            for warp in 1..MOST_WARPS as usize {
                result = combine(result, *room.add(warp));
            }
            return result;
        }
        let warps = thread::block_dim_x() / WARP_SIZE;
        warp::warp_all_reduce(if lane < warps { *room.add(lane as usize) } else { neutral }, &combine)
    }
}

/// Returns whether this block is the last of `all` blocks to arrive. If it is, it sees all earlier stores of the other
/// blocks. Resets the counter to zero for the next launch.
///
/// # Safety
/// `arrivals` counts the blocks that work on the same item, and is zero before the first of them arrives. No block
/// calls this twice for the same item. All threads of the block call this together.
#[inline(always)]
pub unsafe fn is_last_to_arrive(arrivals: *mut u32, all: u32) -> bool {
    let is_last = shared_array![u32; 1];
    // SAFETY: this function's contract requires that all threads of the block call it, and the flag belongs to the
    // block.
    unsafe { is_last_group_to_arrive(arrivals, all, thread::thread_idx_x() == 0, is_last, thread::sync_threads) }
}

/// [`is_last_to_arrive`] for groups of threads. `sync` is a barrier over the group, and each group has its own `flag`.
///
/// # Safety
/// As for blocks. `is_first` is true for one thread of the group, and `flag` is shared memory that nothing else uses
/// until the group's next barrier.
#[inline(always)]
pub unsafe fn is_last_group_to_arrive(
    arrivals: *mut u32,
    all: u32,
    is_first: bool,
    flag: *mut u32,
    sync: impl Fn(),
) -> bool {
    // SAFETY: one thread writes between two barriers, and this function's contract requires that all threads reach
    // both.
    unsafe {
        // The barrier orders this group's stores before its count. The acquiring count orders all groups' stores before
        // later loads.
        sync();
        if is_first {
            let last = atomic::add_u32_acq_rel(arrivals, 1) + 1 == all;
            if last {
                *arrivals = 0;
            }
            *flag = last.into();
        }
        sync();
        *flag != 0
    }
}
