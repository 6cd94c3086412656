//! Plain outputs in 16 bits: sums become tiles in shared memory, which tensor copies store.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::ptx::tensor::{self, CuTensorMap};
use cuda_std::ptx::{bulk, fence, stmatrix};
use cuda_std::unroll;

use super::{GROUP_ROWS, GROUP_THREADS};
use crate::element::Element;
use crate::gemm::operand::ROW_BYTES;

/// The bit of a kernel's epilogue that says that `tiles` are those of the output, and no activation is wanted.
pub const TILED: u32 = 64;

/// Columns that a warp group stores at a time: two tiles of 64.
pub const PASS: u32 = 128;

/// Columns of a tile.
const TILE: u32 = 64;

/// Bytes of a tile.
const TILE_BYTES: u32 = GROUP_ROWS * ROW_BYTES;

/// Bytes of the tiles of a pass.
pub const PASS_BYTES: u32 = 2 * TILE_BYTES;

/// An output `[m][n]` of 16 bits.
#[derive(Clone, Copy)]
pub struct TiledOutput<'a> {
    /// The output, in tiles of 64 rows and columns.
    pub tiles: &'a CuTensorMap,
    /// `[n]`, aligned to 8 bytes, or null.
    pub bias: *const u16,
    /// Rows of the weight, a multiple of 8.
    pub n: u32,
    /// Where the group's tiles are in shared memory: [`PASS_BYTES`], aligned to their pattern.
    pub at: u32,
    /// The thread's number in its group.
    pub thread: u32,
}

impl TiledOutput<'_> {
    /// Adds the bias to the sums of [`PASS`] columns from `column` on, and starts to store them from row `row` on. What is
    /// outside of the output is not stored.
    ///
    /// # Safety
    /// All threads of the group call this together, and `sync` is a barrier of theirs; nobody else uses the group's tiles.
    #[inline(always)]
    pub unsafe fn store<T: Element>(
        &self,
        sums: &mut [[f32; 4]; 32],
        first: usize,
        row: u32,
        column: u32,
        sync: impl Fn(),
    ) {
        let lane = warp::lane_id();
        // The row of matrices whose address this lane gives: rows 0 to 7 and 8 to 15 of eight columns, then of the next eight.
        let in_tile = self.thread / 32 * 16 + lane % 16;
        let to = self.at + in_tile * ROW_BYTES + ((lane % 8) ^ (lane / 16)) * 16;
        if self.thread == 0 {
            // The tiles of the pass before have been read.
            bulk::wait_read::<0>();
        }
        sync();
        // SAFETY: all threads are here, and the rows are those of the group's tiles. One thread starts the copies, behind a fence
        // of all and a barrier.
        unsafe {
            if !self.bias.is_null() {
                unroll!(j in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
                    let [x, y] = self.bias_of::<T>(column + j as u32 * 8 + lane % 4 * 2);
                    let [a, b, c, d] = sums[first + j];
                    sums[first + j] = [a + x, b + y, c + x, d + y];
                });
            }
            unroll!(pair in [0 1 2 3 4 5 6 7] {
                let [low, high] = [0, 1].map(|i| {
                    let [a, b, c, d] = sums[first + 2 * pair as usize + i];
                    [T::Pair::from_f32([a, b]).to_bits(), T::Pair::from_f32([c, d]).to_bits()]
                });
                let tile = pair as u32 / 4 * TILE_BYTES;
                stmatrix::store_x4((to ^ (pair as u32 % 4 * 32)) + tile, [low[0], low[1], high[0], high[1]]);
            });
            fence::proxy_async_shared();
            sync();
            if self.thread == 0 {
                tensor::store_2d(self.tiles, [column as i32, row as i32], self.at);
                tensor::store_2d(self.tiles, [(column + TILE) as i32, row as i32], self.at + TILE_BYTES);
                bulk::commit();
            }
        }
    }

    /// The bias of two columns from `column` on, an even number.
    ///
    /// # Safety
    /// The bias is as declared, and not null.
    #[inline(always)]
    unsafe fn bias_of<T: Element>(&self, column: u32) -> [f32; 2] {
        if column >= self.n {
            return [0.0; 2];
        }
        // SAFETY: both columns are below `n`, a multiple of 8, and the bias is aligned to 8 bytes.
        unsafe { T::Pair::from_bits(*self.bias.add(column as usize).cast()).to_f32() }
    }

    /// Waits until the copies have read what they store: before the block ends.
    #[inline(always)]
    pub fn finish(&self) {
        if self.thread == 0 {
            bulk::wait_read::<0>();
        }
    }
}

const _: () = assert!(GROUP_THREADS == 128 && TILE * 2 == ROW_BYTES);
