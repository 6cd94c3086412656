//! Copies pages to shared memory, one tile of keys and values at a time.

use cuda_std::prelude::*;
use cuda_std::ptx::tensor::{self, CuTensorMap};
use cuda_std::ptx::{fence, mbarrier};
use cuda_std::vector::HalfVector;
use cuda_std::warp::FULL_MASK;

use super::shape::{KEYS, part_bytes};
use crate::gemm::hopper::ring::{Ring, RingPlace};
use crate::layout::VECTOR;

/// The tiles of keys and values that a thread block reads, in order of position.
pub struct PageTiles<'a, const D: u32> {
    /// The cache as a tensor, see [`pages`](super::shape::pages).
    pub cache: &'a CuTensorMap,
    /// The KV head.
    pub head: u32,
    /// Tokens per page: 8, 16 or 32.
    pub block_size: u32,
    /// The first token of the first tile.
    pub start: u32,
    /// The first token of the first page that any row sees.
    pub first: u32,
    /// The last token that any row sees.
    pub last: u32,
    /// The number of tiles.
    pub tiles: u32,
    /// The destination of the tiles.
    pub ring: Ring,
    /// The generic address of the ring's first byte.
    pub memory: *mut u8,
    /// The mbarrier for the copies of the last tile if some of its values must be zeroed. The tile's own barrier then
    /// completes after that.
    pub patched: u32,
}

impl<const D: u32> PageTiles<'_, D> {
    /// Fetches all tiles. Each lane of the first half of the warp copies one page's keys, and each lane of the second
    /// half one page's values.
    ///
    /// # Safety
    /// All lanes of one warp of the block call this together. `table` has the blocks of the sequence.
    #[inline(always)]
    pub unsafe fn fetch(&self, table: *const u32) {
        let lane = warp::lane_id();
        let (page, part) = (lane % 16, lane / 16);
        // Block sizes are powers of two.
        let shift = self.block_size.trailing_zeros();
        let page_bytes = 2 * D * self.block_size;
        let has_page = page * self.block_size < KEYS;
        let behind_last = (self.last + 1) & (self.block_size - 1);
        let mut token = self.start + page * self.block_size;
        let mut at = RingPlace::default();
        let mut index = 0;
        while index < self.tiles {
            index += 1;
            let is_patched = index == self.tiles && behind_last != 0;
            let full = self.ring.full(at);
            let arrives = if is_patched { self.patched } else { full };
            let to = self.ring.tiles + at.stage * (2 * part_bytes(D)) + part * part_bytes(D) + page * page_bytes;
            // SAFETY: the table has the blocks of all tokens in the pages that are seen, and block -1 reads nothing. All readers
            // are done with the stage, or it was never filled. All lanes are here.
            unsafe {
                let is_seen = self.first <= token && token <= self.last;
                let block = if is_seen { *table.add((token >> shift) as usize) as i32 } else { -1 };
                mbarrier::wait(self.ring.empty(at), at.parity ^ 1);
                if lane == 0 {
                    // Other lanes' copies may already have started. The phase does not complete before this arrival.
                    mbarrier::arrive_expect(arrives, 2 * part_bytes(D));
                }
                if has_page {
                    tensor::load_5d(to, self.cache, [0, 0, 0, (2 * self.head + part) as i32, block], arrives);
                }
                if is_patched {
                    mbarrier::wait(self.patched, 0);
                    self.patch(self.memory.add((at.stage * (2 * part_bytes(D)) + part_bytes(D)) as usize).cast());
                    fence::proxy_async_shared();
                    warp::sync_warp(FULL_MASK);
                    if lane == 0 {
                        mbarrier::arrive(full);
                    }
                }
            }
            token += KEYS;
            at.advance(self.ring.stages);
        }
    }

    /// Zeroes the values after the last token within its page. `values` are the tile's values.
    ///
    /// # Safety
    /// All lanes of the warp call this together, after the values have arrived.
    #[inline(always)]
    unsafe fn patch(&self, values: *mut HalfVector) {
        let first = (self.last + 1 - self.start) % KEYS;
        let behind = (first + self.block_size - 1) & !(self.block_size - 1);
        // Half-vectors in memory order: eight tokens, then the next eight elements of the same tokens, and so on.
        let mut at = first / VECTOR * (2 * D) + warp::lane_id();
        while at < behind / VECTOR * (2 * D) {
            if at / (2 * D) * VECTOR + at / 2 % VECTOR >= first {
                // SAFETY: the token is within the tile.
                unsafe { *values.add(at as usize) = HalfVector([0; 2]) };
            }
            at += warp::WARP_SIZE;
        }
    }
}
