//! The stream of tiles and the tail that [`gemm_decode`](super::decode::gemm_decode()) and
//! [`gemm_quantised`](super::quantised::gemm_quantised()) share.
//!
//! A block copies tiles of both operands through a ring in shared memory by `cp.async`, and multiplies one while the
//! others arrive. At the end it adds up the parts of other blocks, and its sums reuse the ring's memory.

use cuda_std::prelude::*;
use cuda_std::ptx::cp_async;
use cuda_std::unroll;
use cuda_std::vector::Vector;

use super::epilogue::{ProductOutput, Staged};
use super::operand::{ROW_BYTES, load};
use super::split::Meeting;
use crate::element::Element;

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Warps of a block, which share its rows.
pub const WARPS: u32 = THREADS / warp::WARP_SIZE;

/// Sums of a warp: 16 rows of the weight by 8 tokens in each array. All tokens with the first 16 rows come first, then
/// all tokens with the next 16. The rest is unused.
pub type WarpSums = [[f32; 4]; 16];

/// Calls `multiply` for each of the tiles `first .. last` when it has arrived. `copy` starts the copies of a tile to a
/// slot. Both take the slot's offset in the ring, which has `stages` slots of `slot_bytes`.
///
/// # Safety
/// All threads of the block call this together, with constant `stages`: 4, 6 or 8. No other code uses the ring.
#[inline(always)]
pub unsafe fn stream(
    (stages, slot_bytes): (u32, u32),
    (first, last): (u32, u32),
    copy: impl Fn(u32, u32),
    mut multiply: impl FnMut(u32),
) {
    let mut stage = 0;
    while stage + 1 < stages {
        if first + stage < last {
            copy(stage * slot_bytes, first + stage);
        }
        // Commit even without copies, since waits count groups.
        cp_async::commit();
        stage += 1;
    }
    let (mut now, mut free) = (0, (stages - 1) * slot_bytes);
    let mut tile = first;
    while tile < last {
        // After the barrier this tile has arrived, and all warps have read the previous one.
        match stages {
            8 => cp_async::wait::<6>(),
            6 => cp_async::wait::<4>(),
            _ => cp_async::wait::<2>(),
        }
        thread::sync_threads();
        if tile + stages - 1 < last {
            copy(free, tile + stages - 1);
        }
        cp_async::commit();
        multiply(now);
        free = now;
        now = if now == (stages - 1) * slot_bytes { 0 } else { now + slot_bytes };
        tile += 1;
    }
}

/// Adds up the parts of all blocks that share a tile of the product, for `TOKENS` tokens. Returns whether this block is
/// the last to arrive. If it is, it has the complete sums, and no thread reads the ring any more.
///
/// # Safety
/// All threads of the block call this together. Workspace and counters are the launch's.
#[inline(always)]
pub unsafe fn add_up<const TOKENS: u32>(sums: &mut WarpSums, workspace: *mut Vector, counters: *mut u32) -> bool {
    let flag = || shared_array![u32; 1];
    let meeting = Meeting::of_block(workspace, counters);
    // SAFETY: all threads of the block are here, and the workspace has room for them, by this function's contract.
    unsafe {
        let is_last = match TOKENS {
            8 => meeting.add_up::<THREADS, 1>(sums, flag, thread::sync_threads),
            16 => meeting.add_up::<THREADS, 2>(sums, flag, thread::sync_threads),
            32 => meeting.add_up::<THREADS, 8>(sums, flag, thread::sync_threads),
            _ => meeting.add_up::<THREADS, 16>(sums, flag, thread::sync_threads),
        };
        if is_last {
            thread::sync_threads();
        }
        is_last
    }
}

/// Adds the products of a tile of 16-bit elements: [`DEPTH`](super::operand::DEPTH) columns of the block's `rows` rows of
/// the weight and of `TOKENS` tokens. The tile is at `at` in shared memory. `weight_place` and `x_place` are the lane's
/// places in it.
///
/// # Safety
/// All lanes of the warp call this together, and the tile has arrived.
#[inline(always)]
pub unsafe fn multiply_tile<T: Element, const TOKENS: u32>(
    sums: &mut WarpSums,
    at: u32,
    (rows, weight_place): (u32, u32),
    x_place: u32,
) {
    let (fragments, eighths) = (rows / WARPS / 16, TOKENS / 8);
    // SAFETY: all lanes are here, and the tile has arrived, by this function's contract.
    unsafe {
        unroll!(pair in [0 1] {
            let (even, odd) = (2 * pair, 2 * pair + 1);
            let a = [load(at, weight_place, even, 0), load(at, weight_place, odd, 0)];
            let mut further = a;
            if fragments == 2 {
                further = [load(at, weight_place, even, 1), load(at, weight_place, odd, 1)];
            }
            unroll!(j in [0 1 2 3 4 5 6 7] {
                if j * 8 < TOKENS {
                    let b = load(at, x_place + j * 8 * ROW_BYTES, even, 0);
                    let (j, [b0, b1, b2, b3]) = (j as usize, b);
                    sums[j] = T::mma(a[1], [b2, b3], T::mma(a[0], [b0, b1], sums[j]));
                    if fragments == 2 {
                        let j = j + eighths as usize;
                        sums[j] = T::mma(further[1], [b2, b3], T::mma(further[0], [b0, b1], sums[j]));
                    }
                }
            });
        });
    }
}

/// Stores the block's complete sums of `TOKENS` tokens by `rows` rows of the weight in shared memory, and returns them.
/// `put` stores an array of the warp's sums, given the tile in shared memory, the array's first token and the index of
/// its 16 rows among the warp's.
///
/// # Safety
/// All threads of the block call this together, and no thread reads the ring any more. `ring` has room for all sums.
#[inline(always)]
pub unsafe fn stage<const TOKENS: u32>(
    ring: *mut u8,
    rows: u32,
    sums: &WarpSums,
    put: impl Fn(Staged, u32, u32, [f32; 4]),
) -> Staged {
    // One row for each token. The pitch keeps the lanes' rows and tokens in different banks.
    let staged = Staged { sums: ring.cast(), rows: TOKENS, columns: rows, pitch: rows + 4, is_permuted: false };
    let (fragments, eighths) = (rows / WARPS / 16, TOKENS / 8);
    unroll!(j in [0 1 2 3 4 5 6 7] {
        unroll!(i in [0 1] {
            if j * 8 < TOKENS && i < fragments {
                put(staged, j * 8, i, sums[((i * eighths + j) % 16) as usize]);
            }
        });
    });
    thread::sync_threads();
    staged
}

/// [Stages](stage) the block's sums and stores them. The first sum belongs to token and row `origin` of the output.
///
/// # Safety
/// As for [`stage`], and the output is as declared.
#[inline(always)]
pub unsafe fn store<T: Element, const TOKENS: u32>(
    ring: *mut u8,
    rows: u32,
    sums: &WarpSums,
    put: impl Fn(Staged, u32, u32, [f32; 4]),
    output: ProductOutput,
    origin: [u32; 2],
) {
    // SAFETY: all threads of the block are here, and the ring has room, by this function's contract. The barrier in
    // `stage` has made their sums visible.
    unsafe {
        let staged = stage::<TOKENS>(ring, rows, sums, put);
        output.store::<T, THREADS, 8>(staged, thread::thread_idx_x(), origin[0], origin[1]);
    }
}
