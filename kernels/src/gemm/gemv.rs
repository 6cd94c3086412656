//! Very few tokens, up to 4: reading the weight takes almost all the time.
//!
//! A warp has four rows of the weight. Its lanes copy their vectors by `cp.async` into their own slots in shared
//! memory, [`STAGES`] deep, and read them back after waiting. No two lanes share a slot, so no barrier is needed.
//! Activations come from L1 and are widened once for the four rows.
//!
//! | | |
//! | --- | --- |
//! | shapes | `x [m][k]`, `weight [n][k]`, `out [m][n]`, `m` up to `TOKENS`, any `n`, `k` a multiple of 8 |
//! | grid | [`blocks`] blocks of [`THREADS`] threads |
//! | shared memory | [`SHARED_BYTES`]: 48 KiB, four blocks an SM on an H200 |
//! | floor | `2 n k` bytes of weight |
//!
//! # What limits it
//!
//! A warp has 10 KiB in flight at all times. LLaMA-3-8B's smallest matrices (4096 rows) make 7.8 warps an SM, and thus
//! 78 KiB in flight, where the product of latency and bandwidth is 33 KiB. An element of the weight costs a conversion,
//! and for each token a multiply-add and a quarter of another conversion. At 10 elements a clock and SM, 4 tokens
//! occupy 60 of 128 lanes. Prediction for an H200: 90 % of a read-only stream for matrices of 50 MB.
//!
//! # Ladder
//!
//! 1. One thread for each row: every vector is in a sector of its own, and no two threads share a cache line.
//! 2. One warp for each row: whole lines, but one load at a time, and the activations are loaded as often as the
//!    weight.
//! 3. Four rows by four vectors, all loaded into registers before the first is used. That is what the source says, but
//!    `ptxas` moves loads to their first use, and leaves only six at the head of the loop. Between the loads of one
//!    round and the next, nothing is in flight.
//! 4. (here) `cp.async`: copies in flight take no registers, and `ptxas` does not reorder them.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::unroll;
use cuda_std::vector::Vector;
use cuda_std::warp::FULL_MASK;

use super::epilogue::{GATED_ROWS, ProductOutput};
use crate::element::{Bf16, Element, F16};
use crate::norm::following::FollowingNorm;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use cuda_std::ptx::control;
use cuda_std::ptx::{cp_async, memory::load_constant};

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Numbers of tokens that have a kernel.
pub const TOKENS: [u32; 3] = [1, 2, 4];

/// Rows of the weight that a warp has: two adjacent rows, and the two rows eight further. In a gated product the latter
/// are the up rows of the former.
const ROWS: u32 = 4;

/// Rows of the weight that a block computes.
pub const BLOCK_ROWS: u32 = THREADS / warp::WARP_SIZE * ROWS;

/// Slots in shared memory that a lane has for the vectors of each row. One is used while the others fill.
pub const STAGES: u32 = 6;

/// Vectors in a block's stage: one for each lane and each row of its warp.
const STAGE: u32 = THREADS * ROWS;

/// Dynamic shared memory, in bytes.
pub const SHARED_BYTES: u32 = STAGES * STAGE * 16;

/// Blocks of a launch for a weight of `n` rows.
pub const fn blocks(n: u32) -> u32 {
    n.div_ceil(BLOCK_ROWS)
}

/// Multiplies up to `TOKENS` activations with a weight: `out = epilogue(x weight^T)`. See [`super`] for the arguments.
///
/// # Safety
/// As for [`gemm`](super::prefill::gemm()), and `m` is at most `TOKENS`. No launch writes the weight.
#[kernel(dependent = "waits", max_threads = 128, instances(T = [F16, Bf16], TOKENS = [1, 2, 4]))]
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
    norm: u32,
    norm_weight: *const Vector,
    norm_bias: *const Vector,
    normed: *mut Vector,
    eps: f32,
    arrivals: *mut u32,
) {
    // Splits of `k` would use these, but this kernel has no splits.
    let _ = (workspace, counters);
    let (warp, lane) = (thread::block_idx_x() * (THREADS / warp::WARP_SIZE) + warp::warp_id(), warp::lane_id());
    let first = warp / 4 * 16 + warp % 4 * 2;
    let row = |i: u32| first + i % 2 + i / 2 * GATED_ROWS;
    let vectors = k / 8;
    let weight_row = |i: u32| weight.wrapping_add(row(i) as usize * k as usize).cast::<Vector>();
    let weights = [weight_row(0), weight_row(1), weight_row(2), weight_row(3)];
    // Tokens from `m` on read the last one's data, and their sums are not stored.
    let x_row = |token: u32| {
        let token = if token < m { token } else { m - 1 };
        x.wrapping_add(token as usize * x_stride as usize).cast::<Vector>()
    };
    let xs = [x_row(0), x_row(1), x_row(2), x_row(3)];

    let places: *mut Vector = dynamic_shared_mem::<Vector>().wrapping_add(thread::thread_idx_x() as usize);
    let place = |stage: u32, i: u32| places.wrapping_add((stage * STAGE + i * THREADS) as usize);
    let copy = |stage: u32, at: u32| {
        unroll!(i in [0 1 2 3] {
            let inside = at < vectors && row(i) < n;
            let from = weights[i as usize].wrapping_add(at as usize).cast();
            // SAFETY: the slot belongs to this lane, which has read it. The copy is from within the row, or reads
            // nothing.
            unsafe { cp_async::copy_cg_zero_fill(shared_offset(place(stage, i)), from, if inside { 16 } else { 0 }) };
        });
        cp_async::commit();
    };
    // No launch writes the weight, so on Hopper its first vectors load while earlier launches still run.
    unroll!(stage in [0 1 2 3 4] { copy(stage, lane + stage * warp::WARP_SIZE) });
    #[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
    control::begin_dependent();

    // The sums of token t and row i are at 4 t + i.
    let mut sums = [0.0f32; 16];
    let (mut at, mut stage, mut free) = (lane, 0, STAGES - 1);
    while at < vectors {
        cp_async::wait::<{ STAGES - 2 }>();
        // SAFETY: the slots belong to this lane, and their copies have been waited for. The vector is within the rows.
        unsafe {
            let loaded = [*place(stage, 0), *place(stage, 1), *place(stage, 2), *place(stage, 3)];
            copy(free, at + (STAGES - 1) * warp::WARP_SIZE);
            multiply::<T, TOKENS>(&mut sums, loaded, xs, at as usize);
        }
        free = stage;
        stage = if stage + 1 == STAGES { 0 } else { stage + 1 };
        at += warp::WARP_SIZE;
    }

    // SAFETY: all lanes of the warp are here together for the sums and the shuffle. Tokens and rows are checked against
    // the output before they are stored.
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
        let output = ProductOutput { out, stride: out_stride, bias, m, n, epilogue };
        let (token, i) = (lane / ROWS, lane % ROWS);
        let is_up = output.is_gated() && i >= 2;
        if lane < TOKENS * ROWS && token < m && row(i) < n && !is_up {
            output.store_one::<T>(token, row(i), mine, up);
        }
        let following = FollowingNorm { norm, weight: norm_weight, bias: norm_bias, out: normed, eps, arrivals };
        if following.is_some() {
            // The last copies read nothing, but are still in flight.
            cp_async::wait::<0>();
            let memory = dynamic_shared_mem();
            following.apply::<T, THREADS>(out.cast(), (m, n), thread::thread_idx_x(), memory, thread::sync_threads);
        }
    }
}

/// Adds the products of one vector of each row with the same vector of each token.
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
            // SAFETY: `at` is within the rows of activations, by this function's contract.
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
