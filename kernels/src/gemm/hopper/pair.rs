//! Clusters of one block or two, which have neighbouring tiles of tokens and the same rows of the weight: each of two fetches
//! half of these rows for both.

use cuda_std::prelude::*;
use cuda_std::ptx::tensor::{self, CuTensorMap};
use cuda_std::ptx::{cluster, mbarrier};
use cuda_std::warp::FULL_MASK;

use super::ring::{Ring, RingPlace};
use crate::gemm::operand::ROW_BYTES;

/// The cluster of a block.
#[derive(Clone, Copy)]
pub struct Pair {
    /// Blocks of the cluster, 1 or 2, as a power of two: the compiler then divides by shifts.
    pub shift: u32,
    /// The block's number in it.
    pub rank: u32,
}

impl Pair {
    /// That of this block.
    #[inline(always)]
    pub fn of_block() -> Self {
        Pair { shift: u32::from(cluster::size() != 1), rank: cluster::rank() }
    }

    /// Blocks of the cluster.
    #[inline(always)]
    pub fn blocks(self) -> u32 {
        1 << self.shift
    }

    /// Starts to load this block's share of a tile of the weight, whose box has just its rows, to the same place of all blocks;
    /// `full` is told of the bytes there. The tile begins at `at`, and has `ROWS` rows.
    ///
    /// # Safety
    /// The place is free in all blocks, and none has ended.
    #[inline(always)]
    pub unsafe fn load_weight<const ROWS: u32>(self, to: u32, weight: &CuTensorMap, at: [i32; 2], full: u32) {
        // SAFETY: the place is free, by this function's contract.
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

/// A ring whose places are filled by all blocks of a cluster, as its readers have it.
#[derive(Clone, Copy)]
pub struct SharedRing {
    ring: Ring,
    /// Blocks of the cluster.
    blocks: u32,
    /// The ring of the block whose rank is the number of this lane.
    theirs: Ring,
}

impl SharedRing {
    /// The ring, which lies at the same place in all blocks.
    #[inline(always)]
    pub fn new(ring: Ring, pair: Pair) -> Self {
        let barriers = cluster::map(ring.barriers, warp::lane_id() & pair.shift);
        SharedRing { ring, blocks: pair.blocks(), theirs: Ring { barriers, ..ring } }
    }

    /// [`Ring::read`], which gives the place back to all blocks.
    ///
    /// # Safety
    /// As for that; none of the blocks has ended.
    #[inline(always)]
    pub unsafe fn read<R>(self, at: &mut RingPlace, work: impl FnOnce() -> R) -> R {
        let give_back = |at| {
            // Each block hears of it from another lane, which speaks for all.
            // SAFETY: all lanes of the warp are here.
            unsafe { warp::sync_warp(FULL_MASK) };
            if warp::lane_id() < self.blocks {
                // SAFETY: the barriers are set up, and of every warp each lane arrives once at its block's.
                unsafe { mbarrier::arrive_remote_after_reads(self.theirs.empty(at)) };
            }
        };
        // SAFETY: this function's contract is the same.
        unsafe { self.ring.read_giving(at, work, give_back) }
    }
}
