//! Very few tokens, up to 4: reading the weight is all there is.
//!
//! A warp has four rows of the weight: each lane loads 16 vectors, four of each row, before it uses the first.
//! Activations come from the first-level cache, widened once for the four rows. No shared memory, no barriers.
//!
//! | | |
//! | --- | --- |
//! | shapes | `x [m][k]`, `weight [n][k]`, `out [m][n]`; `m` up to `TOKENS`, any `n`, `k` a multiple of 8 |
//! | grid | [`grid`]; [`THREADS`] threads |
//! | floor | `2 n k` bytes of weight |
//!
//! # What limits it
//!
//! A warp has 8 KiB on their way, and 8 warps an SM are 64 KiB; LLaMA-3-8B's smallest matrices (4096 rows) make 7.8,
//! and registers allow 12 and more. An element of the weight costs a conversion, and for each token a multiply-add and
//! a quarter of another conversion: at 10 elements a clock and SM, 60 of 128 lanes for 4 tokens. Prediction for an
//! H200: 90 % of a read-only stream for matrices of 50 MB.
//!
//! # Ladder
//!
//! 1. A thread a row: a sector for every vector, and no two threads in one line.
//! 2. A warp a row: whole lines, but one load at a time, and the activations are loaded as often as the weight.
//! 3. (here) Four rows by four vectors at a time.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::warp::FULL_MASK;

use super::epilogue::{GATED_ROWS, Output};
use crate::element::{Bf16, Element, F16};
use crate::layout::Vector;
use crate::ptx::memory::{load_constant, load_streaming};

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Numbers of tokens that there are kernels for.
pub const TOKENS: [u32; 3] = [1, 2, 4];

/// Rows of the weight that a warp has: two, and the two that are eight further, which belong to them in a gated
/// product.
const ROWS: u32 = 4;

/// Rows of the weight that a block has.
pub const BLOCK_ROWS: u32 = THREADS / warp::WARP_SIZE * ROWS;

/// Vectors of each row that a lane loads at a time.
const UNROLL: u32 = 4;

/// The grid for a weight of `n` rows.
pub const fn grid(n: u32) -> (u32, u32, u32) {
    (n.div_ceil(BLOCK_ROWS), 1, 1)
}

/// Multiplies up to `TOKENS` activations with a weight: `out = epilogue(x weight^T)`, see [`super`] for the arguments.
///
/// # Safety
/// As for [`gemm`](super::prefill::gemm()), and `m` is at most `TOKENS`.
#[kernel(max_threads = 128, instances(T = [F16, Bf16], TOKENS = [1, 2, 4]))]
pub unsafe fn gemv<T: Element, const TOKENS: u32>(
    x: *const u16,
    weight: *const u16,
    bias: *const u16,
    out: *mut u8,
    workspace: *mut Vector,
    counters: *mut u32,
    x_stride: u32,
    out_stride: u32,
    m: u32,
    n: u32,
    k: u32,
    epilogue: u32,
) {
    // There are no splits to meet in them.
    let _ = (workspace, counters);
    let (warp, lane) = (thread::block_idx_x() * (THREADS / warp::WARP_SIZE) + warp::warp_id(), warp::lane_id());
    let first = warp / 4 * 16 + warp % 4 * 2;
    let row = |i: u32| first + i % 2 + i / 2 * GATED_ROWS;
    let vectors = k / 8;
    // What is outside has the last one's data, and is not stored.
    let weight_row = |i: u32| {
        let row = if row(i) < n { row(i) } else { n - 1 };
        weight.wrapping_add(row as usize * k as usize).cast::<Vector>()
    };
    let x_row = |token: u32| {
        let token = if token < m { token } else { m - 1 };
        x.wrapping_add(token as usize * x_stride as usize).cast::<Vector>()
    };
    let weights = [weight_row(0), weight_row(1), weight_row(2), weight_row(3)];
    let xs = [x_row(0), x_row(1), x_row(2), x_row(3)];

    // The sums of token t and row i are at 4 t + i.
    let mut sums = [0.0f32; 16];
    let mut at = lane;
    while at - lane + UNROLL * warp::WARP_SIZE <= vectors {
        let mut loaded = [[Vector::default(); 4]; 4];
        // SAFETY: the vectors are within the rows.
        unsafe {
            unroll!(v in [0 1 2 3] {
                unroll!(i in [0 1 2 3] {
                    loaded[v][i] = load_streaming(weights[i].add(at as usize + v * 32));
                });
            });
            unroll!(v in [0 1 2 3] {
                multiply::<T, TOKENS>(&mut sums, loaded[v], xs, at as usize + v * 32);
            });
        }
        at += UNROLL * warp::WARP_SIZE;
    }
    while at < vectors {
        // SAFETY: as above.
        unsafe {
            let one = |i: usize| load_streaming(weights[i].add(at as usize));
            multiply::<T, TOKENS>(&mut sums, [one(0), one(1), one(2), one(3)], xs, at as usize);
        }
        at += warp::WARP_SIZE;
    }

    // SAFETY: all lanes come by together, and store what is within the output.
    unsafe {
        let mut mine = 0.0;
        unroll!(i in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
            if i < TOKENS * ROWS {
                let sum = warp::warp_sum(sums[i as usize]);
                if lane == i {
                    mine = sum;
                }
            }
        });
        let up = warp::warp_shuffle_xor(FULL_MASK, mine, 2, warp::WARP_SIZE);
        let output = Output { out, stride: out_stride, bias, m, n, epilogue };
        let (token, i) = (lane / ROWS, lane % ROWS);
        let is_up = output.is_gated() && i >= 2;
        if lane < TOKENS * ROWS && token < m && row(i) < n && !is_up {
            output.store_one::<T>(token, row(i), mine, up);
        }
    }
}

/// Adds the products of one vector of each row with that of each token.
///
/// # Safety
/// The vector is within the rows.
#[inline(always)]
unsafe fn multiply<T: Element, const TOKENS: u32>(
    sums: &mut [f32; 16],
    weights: [Vector; 4],
    xs: [*const Vector; 4],
    at: usize,
) {
    let none = Vector::default();
    let mut x = [none; 4];
    unroll!(t in [0 1 2 3] {
        if t < TOKENS as usize {
            // SAFETY: the caller's.
            x[t] = unsafe { load_constant(xs[t].add(at)) };
        }
    });
    unroll!(word in [0 1 2 3] {
        unroll!(i in [0 1 2 3] {
            let [w0, w1] = T::Pair::from_bits(weights[i].0[word]).to_f32();
            unroll!(t in [0 1 2 3] {
                if t < TOKENS as usize {
                    let [x0, x1] = T::Pair::from_bits(x[t].0[word]).to_f32();
                    let sum = &mut sums[t * 4 + i];
                    *sum = GpuFloat::mul_add(w1, x1, GpuFloat::mul_add(w0, x0, *sum));
                }
            });
        });
    });
}
