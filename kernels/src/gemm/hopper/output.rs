//! 16-bit outputs: sums become tiles in shared memory, and tensor copies store the tiles.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::ptx::tensor::{self, CuTensorMap};
use cuda_std::ptx::{bulk, fence, ldmatrix, stmatrix};
use cuda_std::unroll;
use cuda_std::unroll::unroll;

use super::{GROUP_ROWS, GROUP_THREADS};
use crate::element::Element;
use crate::gemm::epilogue::{ADD, ProductOutput};
use crate::gemm::fragment::{Identity, finish};
use crate::gemm::operand::ROW_BYTES;

/// Bit of a kernel's epilogue that says that `tiles` is the tensor of the output.
pub const TILED: u32 = 64;

/// Returns whether the epilogue adds the product to an output in tiles.
#[inline(always)]
pub fn adds_tiles(epilogue: u32) -> bool {
    epilogue & (TILED | ADD) == TILED | ADD
}

/// Columns of the output that a warp group stores at a time: two tiles of 64.
pub const PASS: u32 = 128;

/// Columns of a tile.
pub const TILE: u32 = 64;

/// Bytes of a tile.
pub const TILE_BYTES: u32 = GROUP_ROWS * ROW_BYTES;

/// Bytes of the tiles of a pass.
pub const PASS_BYTES: u32 = 2 * TILE_BYTES;

/// A 16-bit output that tensor copies store.
#[derive(Clone, Copy)]
pub struct TiledOutput<'a> {
    /// Tensor of the output, in tiles of 64 rows by 64 columns.
    pub tiles: &'a CuTensorMap,
    /// Offset of the group's tiles in shared memory. They have [`PASS_BYTES`] bytes and are aligned to the swizzle
    /// pattern.
    pub at: u32,
    /// The thread's number in its group.
    pub thread: u32,
}

impl TiledOutput<'_> {
    /// Adds the previous output in [`PASS`] columns to their sums, which begin at index `FIRST`. `at` is the offset of
    /// the previous output's tiles of 64 rows.
    ///
    /// # Safety
    /// All threads of the group call this together, and the tiles have arrived.
    #[inline(always)]
    pub unsafe fn add_before<T: Element, const FIRST: usize>(&self, sums: &mut [[f32; 4]; 32], at: u32) {
        let (from, identity) = (place(at, self.thread), Identity::new::<T>());
        // SAFETY: all lanes of each warp are here, and the rows are within the group's tiles.
        unsafe {
            unroll::<8>(|pair| {
                let tile = pair as u32 / 4 * TILE_BYTES;
                let elements = ldmatrix::load_x4_at((from ^ (pair as u32 % 4 * 32)) + tile);
                identity.add::<T>(elements, sums, FIRST + 2 * pair);
            });
        }
    }

    /// Finishes the sums of a tile of `COLUMNS` weight rows from `column` on, and starts to store them from row `row`
    /// on. Elements outside the output are not stored.
    ///
    /// # Safety
    /// All threads of the group call this together, `sync` is a barrier of the group, and no other thread uses the
    /// group's tiles. The epilogue is [light](crate::gemm::fragment::is_light), and `n` is a multiple of 8.
    #[inline(always)]
    pub unsafe fn store<T: Element, const COLUMNS: u32>(
        &self,
        sums: &mut [[f32; 4]; 32],
        [row, column]: [u32; 2],
        output: ProductOutput,
        sync: impl Fn(),
    ) {
        // SAFETY: as promised by this function's contract.
        unsafe {
            if COLUMNS == 256 {
                finish::<T, 16, 256>(sums, column, output);
            } else {
                finish::<T, 16, 128>(sums, column, output);
            }
            if output.is_gated() {
                self.store_pass::<T, 0>(sums, [row, column / 2], COLUMNS / 2, sync);
                return;
            }
            self.store_pass::<T, 0>(sums, [row, column], PASS, &sync);
            if COLUMNS == 256 && column + PASS < output.n {
                self.store_pass::<T, 16>(sums, [row, column + PASS], PASS, &sync);
            }
        }
    }

    /// Starts to store finished sums from index `FIRST` on, for `columns` columns of the output: [`PASS`] or half of
    /// it.
    ///
    /// # Safety
    /// As for [`store`](Self::store).
    #[inline(always)]
    unsafe fn store_pass<T: Element, const FIRST: usize>(
        &self,
        sums: &[[f32; 4]; 32],
        [row, column]: [u32; 2],
        columns: u32,
        sync: impl Fn(),
    ) {
        if self.thread == 0 {
            // Wait until the copies of the previous pass have read the tiles.
            bulk::wait_read::<0>();
        }
        sync();
        // SAFETY: all threads are here, and the rows are within the group's tiles. One thread starts the copies, after
        // a fence by all threads and a barrier.
        unsafe {
            put_tiles::<T, FIRST>(sums, place(self.at, self.thread), columns);
            fence::proxy_async_shared();
            sync();
            if self.thread == 0 {
                tensor::store_2d(self.tiles, [column as i32, row as i32], self.at);
                if TILE < columns {
                    tensor::store_2d(self.tiles, [(column + TILE) as i32, row as i32], self.at + TILE_BYTES);
                }
                bulk::commit();
            }
        }
    }

    /// Waits until the copies have read their source in shared memory. A block must do this before it ends.
    #[inline(always)]
    pub fn finish(&self) {
        if self.thread == 0 {
            bulk::wait_read::<0>();
        }
    }
}

/// Returns the address of a matrix row in the tiles at `at` for the lane of thread `thread` of a group. The four matrices
/// are rows 0 to 7 and 8 to 15 of eight columns, then the same rows of the next eight columns.
#[inline(always)]
pub(crate) fn place(at: u32, thread: u32) -> u32 {
    let lane = warp::lane_id();
    at + (thread / 32 * 16 + lane % 16) * ROW_BYTES + ((lane % 8) ^ (lane / 16)) * 16
}

/// Rounds finished sums from index `FIRST` on to 16 bits, and stores `columns` columns of them, [`PASS`] or half of it, in
/// tiles. `to` is the lane's [`place`].
///
/// # Safety
/// All lanes of the warp call this together, and no other thread uses its rows of the tiles.
#[inline(always)]
pub(crate) unsafe fn put_tiles<T: Element, const FIRST: usize>(sums: &[[f32; 4]; 32], to: u32, columns: u32) {
    unroll!(pair in [0 1 2 3 4 5 6 7] {
        if pair * 16 < columns {
            let [low, high] = [0, 1].map(|i| {
                let [a, b, c, d] = sums[FIRST + 2 * pair as usize + i];
                [T::Pair::from_f32([a, b]).to_bits(), T::Pair::from_f32([c, d]).to_bits()]
            });
            let tile = pair as u32 / 4 * TILE_BYTES;
            // SAFETY: all lanes are here, and the rows are the warp's, by this function's contract.
            unsafe { stmatrix::store_x4((to ^ (pair as u32 % 4 * 32)) + tile, [low[0], low[1], high[0], high[1]]) };
        }
    });
}

const _: () = assert!(GROUP_THREADS == 128 && TILE * 2 == ROW_BYTES);
