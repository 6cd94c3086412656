//! The projections between heads and latent vectors (DeepSeek-V2, 2024), next to
//! [`paged_latent_attention`](crate::attention::prefill::paged_latent_attention()).
//!
//! | kernel | computes | shapes |
//! | --- | --- | --- |
//! | [`multiply_heads()`] | `out[t][h] = weight[h] x[t][h]` | `x [T][H][K]`, `weight [H][N][K]`, `out [T][H][N]` |
//! | [`join_latents()`] | the parts of queries and keys that are not projected, in their places | |
//!
//! A row of queries and keys is `[heads + 1][rotated + rank]`: for each head the rotated part of the query and a latent
//! vector, and last the key with the same parts.
//!
//! # Floor
//!
//! Weights are read once, and each row once. With few tokens, the weights' bytes are the floor.
//!
//! # Ladder
//!
//! 1. A launch of the usual product for each head: 128 launches in a layer of DeepSeek V3.
//! 2. (here) All heads in one launch, operands straight from global memory to the registers of `mma`. A lane reads four
//!    bytes at a time, and four lanes read neighbouring ones. A sector has 32 bytes, so the next step of the loop finds
//!    the other half in L1.

use cuda_std::half::Half2;
use cuda_std::launch::LaunchShape;
use cuda_std::prelude::*;
use cuda_std::unroll::unroll;
use cuda_std::vector::Vector;
use cuda_std::warp::lane_id;

use crate::element::{Bf16, Element, F16};

/// Threads per block of [`multiply_heads()`].
pub const PRODUCT_THREADS: u32 = 128;
/// Tokens that a warp computes, the rows of an `mma`.
const ROWS: u32 = 16;
/// Columns that a warp computes.
const COLUMNS: u32 = 32;
/// Columns that an `mma` computes.
const STEP: u32 = 8;
/// Products of a warp in a step of the loop.
const FRAGMENTS: usize = (COLUMNS / STEP) as usize;
/// Columns of a block.
const BLOCK_COLUMNS: u32 = PRODUCT_THREADS / 32 * COLUMNS;
/// Threads per block of [`join_latents()`].
pub const JOIN_THREADS: u32 = 256;

/// Returns the launch of [`multiply_heads()`].
pub const fn product_shape(tokens: u32, heads: u32, outputs: u32) -> LaunchShape {
    LaunchShape::new([tokens.div_ceil(ROWS), outputs.div_ceil(BLOCK_COLUMNS), heads], PRODUCT_THREADS)
}

/// Returns the launch of [`join_latents()`], which copies `vectors` vectors of each row.
pub const fn join_shape(tokens: u32, vectors: u32) -> LaunchShape {
    LaunchShape::linear((tokens * vectors).div_ceil(JOIN_THREADS), JOIN_THREADS)
}

/// Multiplies each head of each row by the head's matrix. Sums are in `f32`, rounded once.
///
/// - `x`: `[tokens][heads][inputs]`, with `x_stride` elements between tokens.
/// - `weight`: `[heads][outputs][inputs]`.
/// - `out`: `outputs` elements for each token and head, with `out_stride` elements between tokens and `out_pitch` between
///   heads.
///
/// # Safety
/// The arrays have these shapes. `inputs` is a multiple of 16, `outputs` of 8, and all strides are even. Arrays are
/// aligned to four bytes. The launch is the one that [`product_shape`] returns.
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16]))]
pub unsafe fn multiply_heads<T: Element>(
    x: *const u16,
    weight: *const u16,
    out: *mut u16,
    tokens: u32,
    inputs: u32,
    outputs: u32,
    x_stride: u32,
    out_stride: u32,
    out_pitch: u32,
) {
    let head = thread::block_idx_z();
    let (first, column) =
        (thread::block_idx_x() * ROWS, thread::block_idx_y() * BLOCK_COLUMNS + warp::warp_id() * COLUMNS);
    if column >= outputs {
        return;
    }
    // This lane's row, and its pair of elements among 8, in the fragments of `mma`.
    let (row, pair) = (lane_id() / 4, 2 * (lane_id() % 4));
    // SAFETY: rows past the last token and columns past the last output are not accessed. All lanes of a warp have the
    // same columns, so they reach each `mma` together. Elements are within the arrays by this kernel's contract.
    unsafe {
        let at = |token: u32| x.add(token as usize * x_stride as usize + (head * inputs + pair) as usize);
        let [low, high] = [first + row, first + row + 8];
        let matrix = weight.add((head * outputs + column + row) as usize * inputs as usize + pair as usize);
        let read = |from: *const u16, k: u32| *from.add(k as usize).cast::<u32>();
        let read_row = |token: u32, k: u32| if token < tokens { read(at(token), k) } else { 0 };
        let mut sums = [[0.0; 4]; FRAGMENTS];
        let mut k = 0;
        while k < inputs {
            let factors = [read_row(low, k), read_row(high, k), read_row(low, k + 8), read_row(high, k + 8)];
            unroll::<FRAGMENTS>(|n| {
                if column + n as u32 * STEP < outputs {
                    let from = matrix.add(n * STEP as usize * inputs as usize);
                    sums[n] = T::mma(factors, [read(from, k), read(from, k + 8)], sums[n]);
                }
            });
            k += 16;
        }
        unroll::<FRAGMENTS>(|n| {
            let [a, b, c, d] = sums[n];
            let column = column + n as u32 * STEP;
            for (token, pair_of_sums) in [(low, [a, b]), (high, [c, d])] {
                if token < tokens && column < outputs {
                    let to = token as usize * out_stride as usize + (head * out_pitch + column + pair) as usize;
                    *out.add(to).cast::<u32>() = T::Pair::from_f32(pair_of_sums).to_bits();
                }
            }
        });
    }
}

/// Copies the rotated parts of queries, the rotated keys and the latent vectors of new tokens to rows of queries and keys.
///
/// - `query`: `[tokens][heads][rotated]`, `key`: `[tokens][rotated]`, `latent`: `[tokens][rank]`.
/// - `out`: `[tokens][heads + 1][rotated + rank]`.
///
/// `rotated` and `rank` are in vectors.
///
/// # Safety
/// The arrays have these shapes and are aligned to 16 bytes. The launch is the one that [`join_shape`] returns for
/// `(heads + 1) * rotated + rank` vectors.
#[kernel(dependent, max_threads = 256)]
pub unsafe fn join_latents(
    query: *const Vector,
    key: *const Vector,
    latent: *const Vector,
    out: *mut Vector,
    tokens: u32,
    heads: u32,
    rotated: u32,
    rank: u32,
) {
    let (queries, size) = (heads * rotated, rotated + rank);
    let vectors = queries + size;
    let index = thread::index_1d();
    if index >= tokens * vectors {
        return;
    }
    // SAFETY: a token's vectors are not empty, and neither are rotated parts. All indices are within the arrays, because
    // the token is below `tokens` and the vector is in its row.
    unsafe {
        core::hint::assert_unchecked(vectors != 0 && rotated != 0);
        let (token, vector) = (index / vectors, index % vectors);
        let row = out.add(token as usize * ((heads + 1) * size) as usize);
        if vector < queries {
            let to = vector / rotated * size + vector % rotated;
            *row.add(to as usize) = *query.add((token * queries + vector) as usize);
            return;
        }
        let part = vector - queries;
        let from = match part < rotated {
            true => key.add((token * rotated + part) as usize),
            false => latent.add((token * rank + part - rotated) as usize),
        };
        *row.add((heads * size + part) as usize) = *from;
    }
}
