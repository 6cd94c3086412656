//! Clusters of one or two blocks. Two blocks have neighbouring tiles of tokens and the same rows of the weight, and
//! each fetches half of these rows for both.

use cuda_std::prelude::*;
use cuda_std::ptx::tensor::{self, CuTensorMap};
use cuda_std::ptx::{cluster, mbarrier};
use cuda_std::warp::FULL_MASK;

use super::ring::{Ring, RingPlace};
use crate::gemm::operand::ROW_BYTES;

/// A block's cluster, and its rank in it.
#[derive(Clone, Copy)]
pub struct Pair {
    /// Base-2 logarithm of the cluster's blocks, which are 1 or 2. The compiler then divides by shifting.
    pub shift: u32,
    /// The block's rank in the cluster.
    pub rank: u32,
}

impl Pair {
    /// Returns the cluster of the calling block.
    #[inline(always)]
    pub fn of_block() -> Self {
        Pair { shift: u32::from(cluster::size() != 1), rank: cluster::rank() }
    }

    /// Returns the number of blocks in the cluster.
    #[inline(always)]
    pub fn blocks(self) -> u32 {
        1 << self.shift
    }

    /// Starts to load this block's share of a weight tile into the same slot of all blocks in the cluster. In each
    /// block, `full` counts the bytes that arrive there.
    ///
    /// The tile begins at `at` and has `ROWS` rows. The map's box has exactly the rows of the share.
    ///
    /// # Safety
    /// The slot is free in all blocks, and no block has ended.
    #[inline(always)]
    pub unsafe fn load_weight<const ROWS: u32>(self, to: u32, weight: &CuTensorMap, at: [i32; 2], full: u32) {
        // SAFETY: the slot is free, by this function's contract.
        unsafe {
            if self.shift == 0 {
                tensor::load_2d(to, weight, at, full);
            } else {
                let row = self.rank * (ROWS / 2);
                tensor::load_2d_multicast(to + row * ROW_BYTES, weight, [at[0], at[1] + row as i32], full, 0b11);
            }
        }
    }
}

/// The readers' view of a ring whose slots are filled by all blocks of a cluster.
#[derive(Clone, Copy)]
pub struct SharedRing {
    ring: Ring,
    /// Blocks of the cluster.
    blocks: u32,
    /// The ring of the block whose rank is this lane's number, modulo the cluster's blocks.
    theirs: Ring,
}

impl SharedRing {
    /// Wraps `ring`, which has the same offset in all blocks.
    #[inline(always)]
    pub fn new(ring: Ring, pair: Pair) -> Self {
        let barriers = cluster::map(ring.barriers, warp::lane_id() & pair.shift);
        SharedRing { ring, blocks: pair.blocks(), theirs: Ring { barriers, ..ring } }
    }

    /// Does the same as [`Ring::read`], but releases the slot to all blocks of the cluster.
    ///
    /// # Safety
    /// As for [`Ring::read`], and no block of the cluster has ended.
    #[inline(always)]
    pub unsafe fn read<R>(self, at: &mut RingPlace, work: impl FnOnce() -> R) -> R {
        let give_back = |at| {
            // A different lane notifies each block, on behalf of the whole warp.
            // SAFETY: all lanes of the warp are here.
            unsafe { warp::sync_warp(FULL_MASK) };
            if warp::lane_id() < self.blocks {
                // SAFETY: the barriers are set up, and in every warp each lane arrives once at its block's barrier.
                unsafe { mbarrier::arrive_remote_after_reads(self.theirs.empty(at)) };
            }
        };
        // SAFETY: the contract is the same, and every warp arrives once at each block's barrier.
        unsafe { self.ring.read_giving(at, work, give_back) }
    }
}
