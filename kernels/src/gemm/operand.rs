//! Tiles of a product's operands. `cp.async` copies them to shared memory, and `ldmatrix` loads them from there as the
//! fragments that `mma` takes.
//!
//! Activations and weights have the same layout: row-major, with the summed index last. A tile is some rows of
//! [`DEPTH`] elements, 128 bytes each. Vector `v` of row `r` is stored at position `v ^ (r % 8)`. Eight lanes that
//! store a row then touch every bank once. So does `ldmatrix`, which reads the same vector of eight rows.

use cuda_std::prelude::*;

use cuda_std::ptx::{cp_async, ldmatrix};
use cuda_std::unroll::hidden;

/// Elements of the summed index in a tile.
pub const DEPTH: u32 = 64;

/// Bytes of a tile's row.
pub const ROW_BYTES: u32 = 2 * DEPTH;

/// Elements of the summed index that one `mma` takes.
pub const STEP: u32 = 16;

/// `mma`s along a tile's rows.
pub const STEPS: u32 = DEPTH / STEP;

/// Vectors in a tile's row.
const VECTORS: u32 = DEPTH / 8;

/// One thread's part in copying a matrix's tiles: the same vector of every `THREADS / 8`th row.
#[derive(Clone, Copy)]
pub struct TileCopy<const THREADS: u32> {
    /// The thread's vector in its first row, at the beginning of the summed index.
    from: *const u8,
    /// Bytes between rows that the thread copies.
    step: u32,
    /// Rows from the thread's first one to the end of the matrix, or 0 if it starts past the end.
    rows: u32,
    /// The thread's first element along the summed index.
    column: u32,
    /// Length of the summed index.
    k: u32,
    /// Byte offset of the thread's first vector in a tile.
    to: u32,
}

impl<const THREADS: u32> TileCopy<THREADS> {
    /// Distance between the rows that a thread copies.
    const STRIDE: u32 = THREADS / VECTORS;

    /// Returns how many copies a thread makes for a tile of `rows` rows.
    pub const fn copies(rows: u32) -> u32 {
        rows / Self::STRIDE
    }

    /// Prepares copies of tiles that begin at row `first` of a matrix `[rows][k]`, whose rows are `stride` elements
    /// apart.
    #[inline(always)]
    pub fn new(matrix: *const u16, stride: u32, rows: u32, k: u32, first: u32) -> Self {
        Self::of_thread(thread::thread_idx_x(), matrix, stride, rows, k, first)
    }

    /// Does the same as [`new`](Self::new), for thread number `thread`.
    #[inline(always)]
    pub fn of_thread(thread: u32, matrix: *const u16, stride: u32, rows: u32, k: u32, first: u32) -> Self {
        let (row, vector) = (thread / VECTORS, thread % VECTORS);
        let offset = (first + row) as usize * stride as usize + (vector * 8) as usize;
        TileCopy {
            from: matrix.wrapping_add(offset).cast(),
            step: Self::STRIDE * stride * 2,
            rows: rows.saturating_sub(first + row),
            column: vector * 8,
            k,
            to: row * ROW_BYTES + ((vector ^ (row % 8)) * 16),
        }
    }

    /// Returns the thread's part of the tile whose summed index begins at `start`.
    #[inline(always)]
    pub fn of(&self, start: u32) -> TilePart<THREADS> {
        // Hidden, since the compiler would compare it for every copy before the loop over tiles, and lacks the
        // registers for that.
        let rows = hidden(if start + self.column < self.k { self.rows } else { 0 });
        TilePart { from: self.from.wrapping_add(start as usize * 2), rows, step: self.step, to: self.to }
    }
}

/// A thread's share of one tile's copies.
#[derive(Clone, Copy)]
pub struct TilePart<const THREADS: u32> {
    /// The vector in the thread's first row.
    from: *const u8,
    /// Rows from there to the end of the matrix, or 0 if the vector is outside it.
    rows: u32,
    /// As for [`TileCopy`].
    step: u32,
    /// As for [`TileCopy`].
    to: u32,
}

impl<const THREADS: u32> TilePart<THREADS> {
    /// Starts the copies numbered `range` to the tile at `tile` in shared memory. Elements outside the matrix become
    /// zero.
    ///
    /// # Safety
    /// The tile is in shared memory, and no thread still reads it. The matrix is as described to [`TileCopy::new`].
    #[inline(always)]
    pub unsafe fn copy(&self, tile: u32, range: core::ops::Range<u32>) {
        for i in range {
            let row = i * TileCopy::<THREADS>::STRIDE;
            let from = self.from.wrapping_add((i * self.step) as usize);
            // SAFETY: tile and matrix are valid, by this function's contract. The row and the column are checked, and a
            // row is a whole number of vectors.
            unsafe {
                cp_async::copy_cg_zero_fill(
                    tile + self.to + row * ROW_BYTES,
                    from,
                    if row < self.rows { 16 } else { 0 },
                );
            }
        }
    }
}

/// Returns the offset in a tile of this lane's row of a 16 x 16 fragment, for `mma`'s first operand. The fragment
/// starts at row `row`.
#[inline(always)]
pub fn place_a(row: u32) -> u32 {
    let lane = warp::lane_id();
    (row + lane % 16) * ROW_BYTES + (((lane / 16) ^ (lane % 8)) * 16)
}

/// Does the same as [`place_a`] for two fragments of `mma`'s second operand, each 8 columns of 16.
#[inline(always)]
pub fn place_b(row: u32) -> u32 {
    let lane = warp::lane_id();
    (row + lane / 16 * 8 + lane % 8) * ROW_BYTES + (((lane / 8 % 2) ^ (lane % 8)) * 16)
}

/// Does the same as [`place_a`] for one fragment of `mma`'s second operand, 8 columns of 16, over two steps. The
/// fragment starts at row 0.
#[inline(always)]
pub fn place_steps() -> u32 {
    let lane = warp::lane_id();
    lane % 8 * ROW_BYTES + (((lane / 8) ^ (lane % 8)) * 16)
}

/// Loads the `fragment`th 16 rows after a lane's place, at step `step` along the tile at `tile` in shared memory.
///
/// # Safety
/// All lanes of the warp call this together. `place` is the lane's offset in the tile, from [`place_a`], [`place_b`] or
/// [`place_steps`].
#[inline(always)]
pub unsafe fn load(tile: u32, place: u32, step: u32, fragment: u32) -> [u32; 4] {
    // A step is two vectors. The lane's own vector number uses lower bits, so XOR adds the step to it.
    let row = tile + (place ^ (step * 32)) + fragment * 16 * ROW_BYTES;
    // SAFETY: all lanes are here, and the row is within the tile, by this function's contract.
    unsafe { ldmatrix::load_x4_at(row) }
}
