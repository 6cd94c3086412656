//! Up to 64 tokens on Hopper: tensor copies stream the weight, which is `wgmma`'s first operand.
//!
//! A block computes [`ROWS`] rows of the weight with all tokens over a part of `k`. One lane fetches tiles of both
//! operands into a ring in shared memory. Two warp groups multiply 64 rows each with the tokens as columns, so the work
//! is proportional to the tokens, padded to 8, 16, 32 or 64. Splits of `k` give two blocks for each SM. At the end the
//! sums reuse the ring's memory, one row for each token, and the code that all kernels share stores them.
//!
//! | | |
//! | --- | --- |
//! | shapes | `x [m][k]`, `weight [n][k]`, `out [m][n]`, `m` up to `TOKENS`, any `n`, `k` a multiple of 8 |
//! | grid | x: tiles of [`ROWS`] weight rows. y: splits of `k`. [`THREADS`] threads |
//! | shared memory | [`shared_bytes`]: 81 to 109 KiB, two blocks an SM |
//! | floor | `2 n k` bytes of weight and `2 m n k` flops |
//!
//! # What limits it
//!
//! Reading the weight. With two blocks an SM, 128 to 192 KiB of weight are requested at a time, and each block
//! multiplies at most one tile of them. That is many times the product of latency and bandwidth. A `wgmma` of 64 x
//! `TOKENS` x 16 reads 2 KiB of weight from shared memory. This takes 16 clocks for any number of tokens up to 32.
//! Activations come from L2, at most half a byte for each byte of weight.
//!
//! # Ladder
//!
//! 1. [`gemm_decode`](crate::gemm::decode::gemm_decode()): each thread copies, loads fragments and multiplies in turn,
//!    with a barrier of the block for every tile.
//! 2. (here) One lane fetches, and `wgmma` reads shared memory. `docs/benchmarks` has the counts.

use cuda_std::prelude::*;
use cuda_std::ptx::tensor::{self, CuTensorMap};
use cuda_std::ptx::{control, wgmma};
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::unroll;
use cuda_std::vector::Vector;
use cuda_std::warp::FULL_MASK;

use super::ring::{self, Ring, RingPlace};
use super::token_products::TokenProducts;
use super::{ALIGNMENT, GROUP_ROWS, READERS};
use crate::element::{Bf16, F16};
use crate::gemm::epilogue::{ProductOutput, Staged};
use crate::gemm::operand::{DEPTH, ROW_BYTES};
use crate::gemm::split::{Meeting, share, tiles};
use crate::norm::following::FollowingNorm;

/// Rows of the weight that a block computes.
pub const ROWS: u32 = 2 * GROUP_ROWS;

/// Elements along `k` in a ring slot: two tiles of [`DEPTH`].
pub const TILE_DEPTH: u32 = 2 * DEPTH;

/// Threads that multiply: two warp groups.
pub const READING_THREADS: u32 = READERS * warp::WARP_SIZE;

/// Threads of a block: the threads that multiply, and a warp whose elected lane fetches.
pub const THREADS: u32 = READING_THREADS + warp::WARP_SIZE;

/// Slots in the ring.
pub const fn stages(tokens: u32) -> u32 {
    if tokens <= 16 { 3 } else { 2 }
}

/// Bytes of a ring slot: two tiles of the weight, then two of the activations.
const fn stage_bytes(tokens: u32) -> u32 {
    2 * (ROWS + tokens) * ROW_BYTES
}

/// Returns the byte offset of part `part` of the weight in a ring slot.
const fn weight_at(part: u32) -> u32 {
    part * ROWS * ROW_BYTES
}

/// Returns the byte offset of part `part` of the activations in a ring slot.
const fn x_at(tokens: u32, part: u32) -> u32 {
    weight_at(2) + part * tokens * ROW_BYTES
}

/// Dynamic shared memory, in bytes: alignment padding, the ring (which the sums reuse at the end) and the barriers.
pub const fn shared_bytes(tokens: u32) -> u32 {
    ALIGNMENT + stages(tokens) * stage_bytes(tokens) + ring::barrier_bytes(stages(tokens))
}

/// Multiplies up to `TOKENS` activations with a weight: `out = epilogue(x weight^T)`. See [`gemm`](crate::gemm) for the
/// arguments.
///
/// `x` and `weight` are tensors with tiles of `TOKENS` and [`ROWS`] rows of [`DEPTH`] elements.
///
/// # Safety
/// The arrays have the shapes that the arguments state. The launch is one of a
/// [`GemmPlan`](crate::gemm::plan::GemmPlan), so every block has at least one element of `k`. `m` is at most `TOKENS`.
/// No launch writes the weight.
#[kernel(dependent = "waits", arch = "sm_90a", max_threads = 288, min_blocks = 2, instances(T = [F16, Bf16], TOKENS = [8, 16, 32, 64]))]
pub unsafe fn gemm_hopper_decode<T: TokenProducts, const TOKENS: u32>(
    x: &CuTensorMap,
    weight: &CuTensorMap,
    bias: *const u16,
    out: *mut u8,
    workspace: *mut Vector,
    counters: *mut u32,
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
    let memory: *mut u8 = dynamic_shared_mem();
    let memory = memory.wrapping_add((shared_offset(memory).wrapping_neg() % ALIGNMENT) as usize);
    let start = shared_offset(memory);
    let stages = stages(TOKENS);
    let ring = Ring { tiles: start, barriers: start + stages * stage_bytes(TOKENS), stages };
    // The shuffle tells ptxas that all lanes have the same number.
    // SAFETY: all lanes of the warp are here together.
    let warp = unsafe { warp::warp_shuffle_idx(FULL_MASK, warp::warp_id(), 0, warp::WARP_SIZE) };
    if thread::thread_idx_x() == 0 {
        // SAFETY: no thread uses the barriers before the block's barrier below.
        unsafe { ring.set_up(READERS) };
    }
    thread::sync_threads();

    let row = thread::block_idx_x() * ROWS;
    let (first, last) = share(tiles(k, TILE_DEPTH));
    let mut at = RingPlace::default();
    let mut step = first;
    if warp == READERS {
        // SAFETY: all lanes of the warp are here.
        if !unsafe { control::elect() } {
            return;
        }
        let load_weight = |to: u32, step: u32, full: u32| {
            unroll!(part in [0 1] {
                let along = (step * TILE_DEPTH + part * DEPTH) as i32;
                // SAFETY: the slot is free and has room for the tile, and the map describes the weight.
                unsafe { tensor::load_2d(to + weight_at(part), weight, [along, row as i32], full) };
            });
        };
        let load_x = |to: u32, step: u32, full: u32| {
            unroll!(part in [0 1] {
                let along = (step * TILE_DEPTH + part * DEPTH) as i32;
                // SAFETY: as for the weight.
                unsafe { tensor::load_2d(to + x_at(TOKENS, part), x, [along, 0], full) };
            });
        };
        // No launch writes the weight, so its first ring of tiles loads while earlier launches still run.
        // SAFETY: only this lane fills the ring, and no slot is in use. The copies bring exactly these bytes, and there
        // is a tile.
        step = unsafe { ring.fill_first(&mut at, (first, last), stage_bytes(TOKENS), load_weight, load_x) };
        while step < last {
            let to = ring.tiles + at.stage * stage_bytes(TOKENS);
            let load = |full: u32| {
                load_weight(to, step, full);
                load_x(to, step, full);
            };
            // SAFETY: only this lane fills the ring, and the copies bring exactly these bytes.
            unsafe { ring.fill(&mut at, stage_bytes(TOKENS), load) };
            step += 1;
        }
        return;
    }
    control::begin_dependent();

    // Descriptors of the factors in the first slot. Descriptors count in 16 bytes, so other slots add distance / 16.
    let own = start + warp / 4 * (GROUP_ROWS * ROW_BYTES);
    let [a, b] = [own, start + x_at(TOKENS, 0)].map(wgmma::row_descriptor);
    let factors = |at: RingPlace| {
        let further = at.stage * (stage_bytes(TOKENS) / 16);
        let second = [weight_at(1) / 16, TOKENS * ROW_BYTES / 16];
        ([a + further, a + further + second[0]], [b + further, b + further + second[1]])
    };
    let (a, b) = factors(at);
    // SAFETY: all threads of both groups are here and take the same branches, since `step` and `last` are the same for
    // all. The tile stays in its slot while the products are computed.
    let mut sums = unsafe { ring.read(&mut at, || T::multiply_tokens_first::<TOKENS>(a, b)) };
    step += 1;
    while step < last {
        let (a, b) = factors(at);
        // SAFETY: as for the first.
        unsafe { ring.read(&mut at, || T::multiply_tokens::<TOKENS>(&mut sums, a, b)) };
        step += 1;
    }

    let sync = || {
        // SAFETY: all threads of both groups reach it.
        unsafe { thread::sync_named(1, READING_THREADS) };
    };
    // SAFETY: all threads of both groups are here. After the barrier no thread reads the ring's tiles, all copies have
    // arrived, and the ring has room for the sums.
    unsafe {
        let flag = || shared_array![u32; 1];
        let meeting = Meeting::of_block(workspace, counters);
        let is_last = match TOKENS {
            8 => meeting.add_up::<READING_THREADS, 1>(&mut sums, flag, sync),
            16 => meeting.add_up::<READING_THREADS, 2>(&mut sums, flag, sync),
            32 => meeting.add_up::<READING_THREADS, 4>(&mut sums, flag, sync),
            _ => meeting.add_up::<READING_THREADS, 8>(&mut sums, flag, sync),
        };
        if !is_last {
            return;
        }
        sync();
        // The pitch keeps the lanes' rows and tokens in different banks.
        let staged = Staged { sums: memory.cast(), rows: TOKENS, columns: ROWS, pitch: ROWS + 4, is_permuted: false };
        unroll!(j in [0 1 2 3 4 5 6 7] {
            if j * 8 < TOKENS {
                staged.put_of_weight(j * 8, warp * 16, sums[j as usize]);
            }
        });
        sync();
        let output = ProductOutput { out, stride: out_stride, bias, m, n, epilogue };
        output.store::<T, READING_THREADS, 8>(staged, thread::thread_idx_x(), 0, row);
        let following = FollowingNorm { norm, weight: norm_weight, bias: norm_bias, out: normed, eps, arrivals };
        if following.is_some() {
            following.apply::<T, READING_THREADS>(out.cast(), (m, n), thread::thread_idx_x(), memory.cast(), sync);
        }
    }
}
