//! Up to 64 tokens: reading the weight is the limit.
//!
//! The weight is `mma`'s first operand, so tokens need padding only to a multiple of 8. A block of four warps computes
//! [`rows`] rows of the weight with all tokens over a part of `k`. Splits of `k` give two blocks for each SM.
//! `cp.async` brings both operands through a ring of [`stages`] tiles in shared memory.
//!
//! | | |
//! | --- | --- |
//! | shapes | `x [m][k]`, `weight [n][k]`, `out [m][n]`, `m` up to `TOKENS`, any `n`, `k` a multiple of 8 |
//! | grid | x: tiles of [`rows`] weight rows. y: splits of `k`. [`THREADS`] threads |
//! | shared memory | [`shared_bytes`]: 54 to 96 KiB, two blocks an SM on an H200 |
//! | floor | `2 n k` bytes of weight and `2 m n k` flops, 46 % of what `mma.sync` can do at 64 tokens |
//!
//! # What limits it
//!
//! With two blocks an SM, 80 KiB (96 KiB) of weight are in flight, twice the product of latency and bandwidth. The
//! activations come from L2, `m / rows` bytes for each byte of weight, at most half a byte. That is why blocks have 128
//! rows from 32 tokens on. Partial sums cost `2 m splits / k` bytes for each byte of weight, written and read. The plan
//! limits the splits so that each is at most an eighth. Prediction for an H200: 85 to 92 % of a read-only stream for
//! matrices of 50 MB. The rest is the time to fill the ring, and the last block's time to add up parts, together 2 us.
//!
//! # Ladder
//!
//! 1. [`gemm`](super::prefill::gemm()): does the work of 128 tokens, however few there are.
//! 2. Tokens as the second operand: the work is proportional to the tokens, but blocks are few, and most SMs idle.
//! 3. (here) Splits of `k`: every SM streams. One `ldmatrix` loads 8 tokens by two steps of `k`, so the same code
//!    serves 8 to 64 tokens.
//!
//! Next: load weights through L2 with an eviction hint. Give blocks equal shares of the line of all tiles (as Marlin
//! does) where tiles times splits are far from a multiple of the SMs.

use cuda_std::prelude::*;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::vector::Vector;

use super::epilogue::{ProductOutput, Staged};
use super::operand::{DEPTH, ROW_BYTES, TileCopy, place_a, place_steps};
use super::split::{share, tiles};
use super::tiles::{WARPS, WarpSums, add_up, multiply_tile, store, stream};
use crate::element::{Bf16, Element, F16};
use crate::norm::following::FollowingNorm;

pub use super::tiles::THREADS;

/// Numbers of tokens that have a kernel.
pub const TOKENS: [u32; 4] = [8, 16, 32, 64];

/// Rows of the weight that a block computes.
pub const fn rows(tokens: u32) -> u32 {
    if tokens <= 16 { 64 } else { 128 }
}

/// Tiles in the ring.
pub const fn stages(tokens: u32) -> u32 {
    if tokens <= 16 { 6 } else { 4 }
}

/// Dynamic shared memory, in bytes: the ring, which the sums reuse at the end.
pub const fn shared_bytes(tokens: u32) -> u32 {
    stages(tokens) * (rows(tokens) + tokens) * ROW_BYTES
}

/// Multiplies up to `TOKENS` activations with a weight: `out = epilogue(x weight^T)`. See [`super`] for the arguments.
///
/// # Safety
/// As for [`gemm`](super::prefill::gemm()), and `m` is at most `TOKENS`.
#[kernel(dependent, max_threads = 128, min_blocks = 2, instances(T = [F16, Bf16], TOKENS = [8, 16, 32, 64]))]
pub unsafe fn gemm_decode<T: Element, const TOKENS: u32>(
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
    let (rows, stages) = (rows(TOKENS), stages(TOKENS));
    let row = thread::block_idx_x() * rows;
    let (first, last) = share(tiles(k, DEPTH));

    let ring: *mut u8 = dynamic_shared_mem();
    let ring_offset = shared_offset(ring);
    let stage_bytes = (rows + TOKENS) * ROW_BYTES;
    let weight_source = TileCopy::<THREADS>::new(weight, k, n, k, row);
    let x_source = TileCopy::<THREADS>::new(x, x_stride, m, k, 0);
    let copies = TileCopy::<THREADS>::copies(TOKENS);
    let copy = |place: u32, tile: u32| {
        let place = ring_offset + place;
        // SAFETY: all warps have read this slot, or it was never written. The operands have their shapes by this
        // kernel's contract.
        unsafe {
            weight_source.of(tile * DEPTH).copy(place, 0..TileCopy::<THREADS>::copies(rows));
            let x = x_source.of(tile * DEPTH);
            if copies > 0 {
                x.copy(place + rows * ROW_BYTES, 0..copies);
            } else if thread::thread_idx_x() < TOKENS * 8 {
                x.copy(place + rows * ROW_BYTES, 0..1);
            }
        }
    };
    let warp = warp::warp_id();
    let warp_row = warp * (rows / WARPS);
    let (weight_place, x_place) = (place_a(warp_row), rows * ROW_BYTES + place_steps());

    let mut sums: WarpSums = [[0.0; 4]; 16];
    // SAFETY: all lanes of a warp are here together, and the tile's copies have been waited for.
    let multiply = |now: u32| unsafe {
        multiply_tile::<T, TOKENS>(&mut sums, ring_offset + now, (rows, weight_place), x_place);
    };
    // SAFETY: all threads of the block are here. The ring has `stages` slots, and room for the sums.
    unsafe {
        stream((stages, stage_bytes), (first, last), copy, multiply);
        if !add_up::<TOKENS>(&mut sums, workspace, counters) {
            return;
        }
        let put = |staged: Staged, token: u32, fragment: u32, sums: [f32; 4]| {
            staged.put_of_weight(token, warp_row + fragment * 16, sums);
        };
        let output = ProductOutput { out, stride: out_stride, bias, m, n, epilogue };
        store::<T, TOKENS>(ring, rows, &sums, put, output, [0, row]);
        let following = FollowingNorm { norm, weight: norm_weight, bias: norm_bias, out: normed, eps, arrivals };
        if following.is_some() {
            following.apply::<T, THREADS>(
                out.cast(),
                (m, n),
                thread::thread_idx_x(),
                ring.cast(),
                thread::sync_threads,
            );
        }
    }
}
