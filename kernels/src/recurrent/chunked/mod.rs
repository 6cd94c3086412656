//! The recurrence of heads in chunks of 64 tokens, on the tensor cores.
//!
//! | file | kernel | computes |
//! | --- | --- | --- |
//! | [`prepare`] | [`prepare_chunks`](prepare::prepare_chunks()) | what does not depend on states, for all chunks at once |
//! | [`pass`] | [`pass_chunks`](pass::pass_chunks()) | states and results, chunk by chunk |
//!
//! # A chunk
//!
//! Let `g[i]` be the sum of the logarithms of a chunk's decays up to row `i`, `S` the state before the chunk, and
//! `D[i][j] = exp(g[i] - g[j])` for `j <= i` and otherwise 0. `k` and `q` are keys and queries with their lengths, `b` the
//! rates. A gated delta net adds the values `w` to the state:
//!
//! ```text
//! A = b[i] (k[i] . k[j]) D[i][j] for j < i        T = (1 + A)^-1        w = T b (v - exp(g) k S)
//! y = exp(g) q S + P w                            P[i][j] = (q[i] . k[j]) D[i][j]
//! S' = exp(g[63]) S + sum over i of exp(g[63] - g[i]) k[i] w[i]^T
//! ```
//!
//! Mamba-2 has `w = v`. Its rates are factors of the columns of `P` and of the rows in `S'`, and its skips are on the
//! diagonal of `P`. `T` and `P` do not depend on states, so `prepare_chunks` computes them for all chunks of all sequences
//! in parallel.
//!
//! # Tiles and pieces
//!
//! A *tile* is 64 tokens from a multiple of 64 on. If a present block of the state table ends within a tile, its state is
//! stored, and the tile consists of several chunks, the *pieces*. `T` and `P` of a tile are then 0 outside the pieces'
//! own squares, so only the pass treats pieces one by one. Rows of other pieces and rows outside the sequence add exact
//! zeros, and rows have their places in a tile by position. The same chunks therefore give the same bits, whether the
//! tokens before them are known or computed in the same launch.
//!
//! # Precision
//!
//! Keys, queries and values enter products as they are, in 16 bits, and their lengths are factors of `f32` afterwards.
//! States, `T`, `P` and the added values are sums of two 16-bit numbers, see `parts.rs`, so a product takes two or three
//! `mma`. States stay in `f32` registers. In `bf16` the parts have 16 bits together. States and results before their
//! rounding were within 1.1e-5 of the largest one over 1,024 tokens in a model of this arithmetic, and within 4e-6 in
//! `f16`, whose parts have 22 bits. With single 16-bit states, as in flash-linear-attention, they would be within some 4e-3.
//! The tests allow 2e-5, the bound of [`recur_heads`](super::heads::recur_heads()).
//!
//! Sums of logarithms are exact, see `decays.rs`. Decays below 2^-126 count as 2^-126.
//!
//! # Workspace
//!
//! A tile of a head has [`unit_vectors()`]: the blocks of `P`, high parts and then low parts, [`SCALARS`] numbers for each row,
//! and in a delta net the blocks of `T`. A matrix has ten blocks of 16 x 16 on and below its diagonal, `(i, j)` at
//! `i (i + 1) / 2 + j`. A block is four matrices of 8 x 8, `[row / 8][column / 8][8][8]`, as `ldmatrix` loads them.
//!
//! A sequence's tiles have consecutive numbers. The first follows from the sequence's first row alone, so that the host
//! uploads nothing, and the size of the workspace from the number of rows.

pub mod copies;
mod decays;
mod inverse;
mod memory;
mod parts;
pub mod pass;
pub mod prepare;
mod scores;
#[cfg(not(target_arch = "nvptx64"))]
pub mod shape;
mod tile;
mod warp_columns;

/// Tokens of a tile.
pub const ROWS: u32 = 64;

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Columns of values of a block of threads, 16 for each warp.
pub const COLUMNS: u32 = 64;

/// Bytes of a block of 16 x 16 elements.
const BLOCK: u32 = 512;

/// Bytes of one part of a matrix in the workspace.
const MATRIX: u32 = 10 * BLOCK;

/// Offset of the numbers of rows in a unit of the workspace.
const ROW_NUMBERS: u32 = 2 * MATRIX;

/// Numbers for each row: `[SCALARS][ROWS]`.
pub const SCALARS: u32 = 8;

/// Offset of `T` in a unit of the workspace.
const INVERSE: u32 = ROW_NUMBERS + SCALARS * ROWS * 4;

/// Vectors of a tile of a head in the workspace.
pub const fn unit_vectors(is_delta: bool) -> u32 {
    if is_delta { (INVERSE + 2 * MATRIX) / 16 } else { INVERSE / 16 }
}

/// The factor of a value in `b (v - exp(g) k S)`.
const OF_VALUE: u32 = 0;
/// The factor of `k S`, with the key's length.
const OF_STATE: u32 = 1;
/// The factor of `q S`, with the query's length, over the row's factor in `P`.
const OF_QUERY: u32 = 2;
/// The factor of an added value in the piece's last state, with the key's length.
const OF_ADDED: u32 = 3;
/// The factor of a row of `P`. It is a power of two, and 1 in a delta net.
const OF_OUTPUT: u32 = 4;
/// The product of the decays of a piece up to the row.
const DECAY: u32 = 5;
/// The end of the row's piece, as an integer.
const END: u32 = 6;
/// The block that the state after the row's piece is stored in, as an integer.
const STORED: u32 = 7;
