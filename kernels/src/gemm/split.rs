//! Sums that several blocks compute in parts (split-k). The last block to arrive adds up the parts.
//!
//! Every block stores its part in the workspace, in the order of its registers, and counts itself as arrived. The block
//! that arrives last adds all parts in the order of the summed index. The result is therefore the same whichever block
//! is last. That block leaves the counter at zero for the next launch.

use cuda_std::block::is_last_group_to_arrive;
use cuda_std::prelude::*;
use cuda_std::unroll::unroll;
use cuda_std::vector::Vector;

use cuda_std::ptx::memory::{load_l2, store_l2};

/// The workspace of a launch, where blocks or groups of their threads exchange partial sums.
#[derive(Clone, Copy)]
pub struct Meeting {
    /// `[tiles][splits][COUNT][THREADS]` vectors of four sums.
    pub workspace: *mut Vector,
    /// `[tiles]`, all zero.
    pub counters: *mut u32,
    /// The tile that these threads compute.
    pub tile: u32,
    /// Index of the part that these threads compute.
    pub split: u32,
    /// Number of parts of a tile.
    pub splits: u32,
    /// The calling thread's number among these threads.
    pub thread: u32,
}

/// Returns how many tiles of `length` cover `size`. The last one may be shorter.
#[allow(clippy::manual_div_ceil)] // `div_ceil` divides with remainder, for sizes near 2^32
#[inline(always)]
pub const fn tiles(size: u32, length: u32) -> u32 {
    (size + length - 1) / length
}

/// Returns this block's share of the `depth` tiles along the summed index: the first tile, and the one after the last.
/// The grid's y dimension counts the splits.
#[inline(always)]
pub fn share(depth: u32) -> (u32, u32) {
    let (split, splits) = (thread::block_idx_y(), thread::grid_dim_y());
    // SAFETY: a grid has at least one block along each axis.
    unsafe { core::hint::assert_unchecked(splits != 0) };
    (depth * split / splits, depth * (split + 1) / splits)
}

impl Meeting {
    /// Returns the workspace for a grid whose x dimension counts tiles and whose y dimension counts splits.
    #[inline(always)]
    pub fn of_block(workspace: *mut Vector, counters: *mut u32) -> Self {
        let (tile, split, splits) = (thread::block_idx_x(), thread::block_idx_y(), thread::grid_dim_y());
        Meeting { workspace, counters, tile, split, splits, thread: thread::thread_idx_x() }
    }

    /// Stores this thread's part of `COUNT` times four sums, and returns whether its block or group is the last to
    /// arrive. The last one then has the complete sums. `sync` is a barrier of these threads, and `flag` returns a word
    /// of shared memory that they share.
    ///
    /// # Safety
    /// All `THREADS` threads call this together. Workspace and counters have the sizes that the fields state, and
    /// `sums` has at least `COUNT` elements. The flag is used for nothing else until the next barrier.
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
        // SAFETY: the workspace has room for every part, by this function's contract. No other thread uses this part
        // before it is counted. All threads are here for the barriers.
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

/// Adds two arrays of four numbers. Written out, since an array stays in registers only if no loop over it is left.
#[inline(always)]
pub fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
}
