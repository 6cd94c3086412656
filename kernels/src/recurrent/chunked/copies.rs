//! Copies of a tile's keys, queries and values to shared memory, and the addresses of their matrices.
//!
//! A tile of keys or queries is `[64][16]` vectors. Vector `v` of row `r` has the place `v xor (r % 8)`, so that
//! `ldmatrix` reads eight rows without bank conflicts. Elements beyond the layer's keys are zeros.
//!
//! A warp's values are `[64][2]` vectors. Vector `v` of row `r` has the place `v xor (r / 4 % 2)`.
//!
//! Addresses are computed again for each tile. The compiler would otherwise keep all of them in registers.

use cuda_std::prelude::*;
use cuda_std::ptx::{cp_async, ldmatrix};
use cuda_std::unroll::hidden;
use cuda_std::vector::Vector;

use super::tile::Tile;
use super::{ROWS, THREADS};

/// Vectors of a row of keys in shared memory.
const KEY_VECTORS: u32 = 16;

/// Bytes of a tile of keys or queries.
pub const KEY_BYTES: u32 = ROWS * KEY_VECTORS * 16;

/// Bytes of a warp's values.
pub const VALUE_BYTES: u32 = ROWS * 2 * 16;

/// Starts the copies of a tile's keys or queries. Rows of `mixed` have `channels` vectors, and `vectors` of them are copied
/// from vector `from` on. All threads of a block take part.
///
/// # Safety
/// The sequence's rows are rows of `mixed`, and no thread reads the shared memory at `to`.
#[inline(always)]
pub unsafe fn copy_keys(tile: &Tile, mixed: *const Vector, channels: u32, [from, vectors]: [u32; 2], to: u32) {
    let thread = hidden(thread::thread_idx_x());
    let (vector, first) = (thread % KEY_VECTORS, thread / KEY_VECTORS);
    for turn in 0..ROWS * KEY_VECTORS / THREADS {
        let row = first + turn * (THREADS / KEY_VECTORS);
        let to = to + (row * KEY_VECTORS + (vector ^ (row % 8))) * 16;
        let has_vector = vector < vectors;
        let (at, bytes) = place(tile, row, channels, from + vector, has_vector);
        // SAFETY: the vector is in a row of the sequence, or no byte is read.
        unsafe { cp_async::copy_cg_zero_fill(to, mixed.wrapping_add(at).cast(), bytes) };
    }
}

/// Starts the copies of a warp's values, which are two vectors of each row from vector `from` on, but only `vectors` exist.
///
/// # Safety
/// As for [`copy_keys`], but only the lanes of one warp read the shared memory at `to`.
#[inline(always)]
pub unsafe fn copy_values(tile: &Tile, mixed: *const Vector, channels: u32, [from, vectors]: [u32; 2], to: u32) {
    let lane = hidden(warp::lane_id());
    let (vector, first) = (lane % 2, lane / 2);
    for turn in 0..ROWS / 16 {
        let row = first + turn * 16;
        let (at, bytes) = place(tile, row, channels, from + vector, vector < vectors);
        // SAFETY: the vector is in a row of the sequence, or no byte is read.
        unsafe { cp_async::copy_cg_zero_fill(to + value_place(row, vector), mixed.wrapping_add(at).cast(), bytes) };
    }
}

/// Returns where a vector of a row is in `mixed`, and the number of bytes to copy.
#[inline(always)]
fn place(tile: &Tile, row: u32, channels: u32, vector: u32, has_vector: bool) -> (usize, u32) {
    match tile.row(row) {
        Some(row) if has_vector => ((tile.span.first_row + row) as usize * channels as usize + vector as usize, 16),
        _ => (0, 0),
    }
}

/// Returns the offset of a vector of a warp's values.
#[inline(always)]
pub fn value_place(row: u32, vector: u32) -> u32 {
    (2 * row + (vector ^ (row / 4 % 2))) * 16
}

/// The matrices of a tile of keys or queries. A square is four of them: 16 rows by 16 elements.
#[derive(Clone, Copy)]
pub struct Squares {
    tile: u32,
    /// The offset of this lane's row in the first square.
    lane: u32,
}

impl Squares {
    /// The squares of the tile at `tile`, each with the halves of its elements next to each other. `mma` takes such squares
    /// as second factors, with rows as columns.
    #[inline(always)]
    pub fn by_rows(tile: u32) -> Squares {
        let lane = hidden(warp::lane_id());
        Self::new(tile, lane, lane / 16, lane / 8 % 2)
    }

    /// The squares of the tile at `tile`, each with the halves of its rows next to each other. `mma` takes such squares as
    /// first factors, and transposed as second factors.
    #[inline(always)]
    pub fn by_elements(tile: u32) -> Squares {
        let lane = hidden(warp::lane_id());
        Self::new(tile, lane, lane / 8 % 2, lane / 16)
    }

    #[inline(always)]
    fn new(tile: u32, lane: u32, half: u32, vector: u32) -> Squares {
        let row = lane % 8;
        Squares { tile, lane: (8 * half + row) * KEY_VECTORS * 16 + (vector ^ row) * 16 }
    }

    /// Returns the address of this lane's row in a square.
    #[inline(always)]
    fn at(&self, rows: u32, elements: u32) -> u32 {
        // The number of the first vector is even, so it changes other bits than the lane's half.
        self.tile + (self.lane ^ (32 * elements)) + rows * 16 * KEY_VECTORS * 16
    }

    /// Loads a square: number `rows` along the rows, and `elements` along the elements.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and the tile is in shared memory.
    #[inline(always)]
    pub unsafe fn load(&self, rows: u32, elements: u32) -> [u32; 4] {
        // SAFETY: the square is in the tile.
        unsafe { ldmatrix::load_x4_at(self.at(rows, elements)) }
    }

    /// Loads a square and transposes its matrices.
    ///
    /// # Safety
    /// As for [`load`](Self::load).
    #[inline(always)]
    pub unsafe fn load_transposed(&self, rows: u32, elements: u32) -> [u32; 4] {
        // SAFETY: the square is in the tile.
        unsafe { ldmatrix::load_x4_trans_at(self.at(rows, elements)) }
    }
}
