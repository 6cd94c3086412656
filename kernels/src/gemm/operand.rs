//! Tiles of the operands of a product: copied to shared memory by `cp.async`, and loaded from there as the fragments
//! that `mma` takes.
//!
//! Activations and weights are alike here: row-major, with the summed index last. A tile is some rows by [`DEPTH`]
//! elements, 128 bytes a row. The eight vectors of row `r` are stored with their numbers xor `r % 8`: so a row that
//! eight lanes store, and eight rows of which `ldmatrix` reads the same vector, each touch every bank once.

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
    /// Rows from the thread's first one to the end of the matrix; none if it starts behind the end.
    rows: u32,
    /// The thread's first element along the summed index.
    column: u32,
    /// Length of the summed index.
    k: u32,
    /// Where its first vector goes in a tile.
    to: u32,
}

impl<const THREADS: u32> TileCopy<THREADS> {
    /// Rows between those that a thread copies.
    const STRIDE: u32 = THREADS / VECTORS;

    /// Copies a thread makes for a tile of `rows` rows.
    pub const fn copies(rows: u32) -> u32 {
        rows / Self::STRIDE
    }

    /// For tiles that begin at row `first` of a matrix `[rows][k]`, whose rows are `stride` elements apart.
    #[inline(always)]
    pub fn new(matrix: *const u16, stride: u32, rows: u32, k: u32, first: u32) -> Self {
        Self::of_thread(thread::thread_idx_x(), matrix, stride, rows, k, first)
    }

    /// [`new`](Self::new), for the thread of this number.
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

    /// The thread's part of the tile whose summed index begins at `start`.
    #[inline(always)]
    pub fn of(&self, start: u32) -> TilePart<THREADS> {
        // Hidden, since the compiler would compare it for every copy ahead of the loop over tiles, and has no registers for that.
        let rows = hidden(if start + self.column < self.k { self.rows } else { 0 });
        TilePart { from: self.from.wrapping_add(start as usize * 2), rows, step: self.step, to: self.to }
    }
}

/// What a thread copies of one tile.
#[derive(Clone, Copy)]
pub struct TilePart<const THREADS: u32> {
    /// The vector in its first row.
    from: *const u8,
    /// Rows from there to the end of the matrix; none if the vector is not in it.
    rows: u32,
    /// As for [`TileCopy`].
    step: u32,
    /// As for [`TileCopy`].
    to: u32,
}

impl<const THREADS: u32> TilePart<THREADS> {
    /// Starts the copies of numbers `range` to the tile at `tile` in shared memory. What is outside of the matrix becomes zero.
    ///
    /// # Safety
    /// The tile is in shared memory and no thread still reads it; the matrix is as [`TileCopy::new`] was told.
    #[inline(always)]
    pub unsafe fn copy(&self, tile: u32, range: core::ops::Range<u32>) {
        for i in range {
            let row = i * TileCopy::<THREADS>::STRIDE;
            let from = self.from.wrapping_add((i * self.step) as usize);
            // SAFETY: tile and matrix are valid, by this function's contract; the row and the place in it are checked, and a row
            // is a whole number of vectors.
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

/// Where a lane's row of a 16 x 16 fragment lies in a tile, for `mma`'s first operand; the fragment starts at `row`.
#[inline(always)]
pub fn place_a(row: u32) -> u32 {
    let lane = warp::lane_id();
    (row + lane % 16) * ROW_BYTES + (((lane / 16) ^ (lane % 8)) * 16)
}

/// [`place_a`] of two fragments of `mma`'s second operand, 8 columns of 16 each.
#[inline(always)]
pub fn place_b(row: u32) -> u32 {
    let lane = warp::lane_id();
    (row + lane / 16 * 8 + lane % 8) * ROW_BYTES + (((lane / 8 % 2) ^ (lane % 8)) * 16)
}

/// [`place_a`] of one fragment of `mma`'s second operand, 8 columns of 16, for two steps: of the first 8 rows.
#[inline(always)]
pub fn place_steps() -> u32 {
    let lane = warp::lane_id();
    lane % 8 * ROW_BYTES + (((lane / 8) ^ (lane % 8)) * 16)
}

/// Loads the `fragment`th 16 rows after a lane's place, at step `step` along the tile at `tile` in shared memory.
///
/// # Safety
/// All lanes of the warp call this together; `place` is the lane's in the tile, from [`place_a`], [`place_b`] or
/// [`place_steps`].
#[inline(always)]
pub unsafe fn load(tile: u32, place: u32, step: u32, fragment: u32) -> [u32; 4] {
    // A step is two vectors, whose bit in the number is free of the lane's.
    let row = tile + (place ^ (step * 32)) + fragment * 16 * ROW_BYTES;
    // SAFETY: all lanes are here and the place is within the tile, by this function's contract.
    unsafe { ldmatrix::load_x4_at(row) }
}
