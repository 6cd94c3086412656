//! Sums of which several blocks compute a part each (split-k): the last block to arrive adds the parts up.
//!
//! Every block stores its part in the workspace, in the order of its registers, and counts itself as arrived. The block
//! that finds that all others have arrived adds all parts, in the order of the summed index, so that the result does
//! not depend on which block it is. It leaves the counter at zero for the next launch.

use cuda_std::block::is_last_group_to_arrive;
use cuda_std::prelude::*;
use cuda_std::unroll::unroll;
use cuda_std::vector::Vector;

use cuda_std::ptx::memory::{load_l2, store_l2};

/// The workspace of a launch, where blocks, or groups of their threads, exchange their parts of sums.
#[derive(Clone, Copy)]
pub struct Meeting {
    /// `[tiles][splits][COUNT][THREADS]` vectors of four sums.
    pub workspace: *mut Vector,
    /// `[tiles]`, all zero.
    pub counters: *mut u32,
    /// The tile of these threads.
    pub tile: u32,
    /// Their part.
    pub split: u32,
    /// Parts of a tile.
    pub splits: u32,
    /// The thread's number among them.
    pub thread: u32,
}

/// How many tiles of `length` there are in `size`, the last of which may be shorter.
#[allow(clippy::manual_div_ceil)] // `div_ceil` divides with remainder, for sizes near 2^32
#[inline(always)]
pub const fn tiles(size: u32, length: u32) -> u32 {
    (size + length - 1) / length
}

/// This block's share of the `depth` tiles along the summed index: the first, and the one after the last. The grid's y
/// are the splits.
#[inline(always)]
pub fn share(depth: u32) -> (u32, u32) {
    let (split, splits) = (thread::block_idx_y(), thread::grid_dim_y());
    // SAFETY: a grid has at least one block along each axis.
    unsafe { core::hint::assert_unchecked(splits != 0) };
    (depth * split / splits, depth * (split + 1) / splits)
}

impl Meeting {
    /// The workspace of a grid whose x are tiles, and whose y are splits.
    #[inline(always)]
    pub fn of_block(workspace: *mut Vector, counters: *mut u32) -> Self {
        let (tile, split, splits) = (thread::block_idx_x(), thread::block_idx_y(), thread::grid_dim_y());
        Meeting { workspace, counters, tile, split, splits, thread: thread::thread_idx_x() }
    }

    /// Stores a part of `COUNT` times four sums a thread. True in the last block, or group of threads, to arrive, which then
    /// has the whole sums. `sync` is a barrier of these threads, and `flag` gives a word of shared memory for them.
    ///
    /// # Safety
    /// All `THREADS` threads call this together; workspace and counters have the sizes that the fields state; `sums` has at
    /// least `COUNT` elements; the flag is used for nothing else until the next barrier.
    #[inline(always)]
    pub unsafe fn add_up<const THREADS: u32, const COUNT: usize>(
        &self,
        sums: &mut [[f32; 4]],
        flag: impl FnOnce() -> *mut u32,
        sync: impl Fn(),
    ) -> bool {
        if self.splits == 1 {
            return true;
        }
        let part = |split: u32, i: usize| {
            let part = (self.tile * self.splits + split) as usize * COUNT + i;
            self.workspace.wrapping_add(part * THREADS as usize + self.thread as usize)
        };
        // SAFETY: the workspace has room for every part, by this function's contract; nobody else uses this part before it
        // is counted. All threads are here, for the barriers.
        unsafe {
            unroll::<COUNT>(|i| store_l2(part(self.split, i), Vector::from_f32(sums[i])));
            let arrivals = self.counters.add(self.tile as usize);
            if !is_last_group_to_arrive(arrivals, self.splits, self.thread == 0, flag(), sync) {
                return false;
            }
            unroll::<COUNT>(|i| sums[i] = load_l2(part(0, i)).to_f32());
            let mut split = 1;
            while split < self.splits {
                unroll::<COUNT>(|i| sums[i] = add(sums[i], load_l2(part(split, i)).to_f32()));
                split += 1;
            }
        }
        true
    }
}

/// Sums of four pairs. Written out: an array stays in registers only if no loop is left over it.
#[inline(always)]
pub fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
}
