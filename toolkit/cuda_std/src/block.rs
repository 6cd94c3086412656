//! Reductions over the threads of a block, and a count of the blocks that have arrived.

use crate::prelude::*;
use crate::warp::WARP_SIZE;
use crate::{atomic, warp};

/// The number of warps up to which each thread combines all of their results by itself: that takes fewer instructions
/// than shuffles.
const FEW_WARPS: u32 = 4;

/// Combines a value of every thread of the block, and gives all of them the result, in an order that depends on the
/// block's size alone.
///
/// First within each warp, by shuffles; then the warps' results go through shared memory. What threads wrote to shared
/// memory before is visible to all of them afterwards: the barrier is for that, too. `MOST_WARPS` is the most that a
/// block may have, and `neutral` is what changes nothing when it is combined.
///
/// # Safety
/// All threads of the block call this together, in whole warps. `room` is `MOST_WARPS` numbers of shared memory that
/// are used for nothing else until the next barrier.
#[inline(always)]
pub unsafe fn reduce<const MOST_WARPS: u32>(
    value: f32,
    room: *mut f32,
    neutral: f32,
    combine: impl Fn(f32, f32) -> f32,
) -> f32 {
    // SAFETY: all lanes are here; each warp writes its own number, and all are read behind the barrier.
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

/// Whether this block is the last of `all` blocks that get here; if so, it sees what the others stored before. Leaves
/// the counter at zero for the next launch.
///
/// # Safety
/// `arrivals` counts blocks that work on the same thing, and is zero before the first of them; no block calls this
/// twice for them. All threads of the block call this together.
#[inline(always)]
pub unsafe fn is_last_to_arrive(arrivals: *mut u32, all: u32) -> bool {
    let is_last = shared_array![u32; 1];
    // SAFETY: the threads are those of the block, and the flag is theirs, by this function's contract.
    unsafe { is_last_group_to_arrive(arrivals, all, thread::thread_idx_x() == 0, is_last, thread::sync_threads) }
}

/// [`is_last_to_arrive`] of groups of threads, for which `sync` is a barrier, and which have a flag each.
///
/// # Safety
/// As for blocks; `is_first` is true for one thread of the group, and `flag` is shared memory that is used for nothing else
/// until the group's next barrier.
#[inline(always)]
pub unsafe fn is_last_group_to_arrive(
    arrivals: *mut u32,
    all: u32,
    is_first: bool,
    flag: *mut u32,
    sync: impl Fn(),
) -> bool {
    // SAFETY: one thread writes between two barriers, which all threads reach, by this function's contract.
    unsafe {
        // What the threads stored comes before the count, and the count of all before what is loaded.
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
