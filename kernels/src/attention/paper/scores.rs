//! Phase 1: computes each token's logit, `scale * log2(e) * (query . key)`.
//!
//! # One warp per block, one thread group per token
//!
//! The block's keys for one head are `[head_size / 8][block_size][8]`. A *chunk* is eight neighbouring elements of one
//! token, 16 bytes. The same chunk of the next token follows it. Each token belongs to a **thread group** of
//! `32 / block_size` threads. The group reads a chunk together, and each thread reads its *share*. With blocks of 16
//! (groups of 2, shares of 4 elements, 8 bytes), for every chunk:
//!
//! ```text
//! token in block      0         1         2                15
//! chunk c          |e0-3 e4-7|e0-3 e4-7|e0-3 e4-7|  ...  |e0-3 e4-7|     256 contiguous bytes
//! lane               0    1    2    3    4    5            30   31       lane l reads at byte 8 * l
//! ```
//!
//! With any block size, one instruction of a warp reads `16 * block_size` contiguous bytes, and all of them are used.
//! That is why the paper's layout cuts the keys into chunks of 16 bytes and puts the tokens inside. With keys stored
//! row by row, a warp would touch `block_size` rows at once, one sector of each.
//!
//! Each thread thus processes `head_size * block_size / 32` elements of its token: its share of each chunk. Shuffles
//! add the group's sums. Blocks of 32 need no shuffles, because each thread has a whole token.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::vector::{HalfVector, Vector};
use cuda_std::warp::{FULL_MASK, WARP_SIZE, lane_id, warp_id, warp_shuffle_xor};

use super::head::Head;
use super::{WARPS, group_size};
use crate::element::Element;
use crate::layout::VECTOR;
use cuda_std::unroll::unroll;

/// Writes the logits of all slots of `head`'s blocks, and returns the greatest logit that this thread computed.
///
/// Tokens outside the span get minus infinity, so that their weight is 0.
///
/// # Safety
/// `query` and `logits` are in shared memory. `query` is `D` numbers, visible to all threads and aligned to 16 bytes.
/// `logits` has room for `head.span.slots(B)`. All threads of the block call this together.
#[inline(always)]
pub unsafe fn scores<T: Element, const D: u32, const B: u32>(
    head: &Head<D, B>,
    query: *const f32,
    logits: *mut f32,
) -> f32 {
    let (token, member) = (lane_id() / group_size(B), lane_id() % group_size(B));
    let mut greatest = f32::NEG_INFINITY;
    let mut block = head.span.first_block(B) + warp_id();
    while block < head.span.end_block(B) {
        // SAFETY: `block` is a block of the sequence and the same for all lanes. `slot` is below `slots(B)`.
        unsafe {
            let dot = group_dot::<T, D, B>(head.keys(block), query, member);
            let position = block * B + token;
            // The cache after the last token may hold anything, even NaN. So such a logit is replaced here, not
            // multiplied by zero.
            let logit = if head.span.sees(position) { dot } else { f32::NEG_INFINITY };
            if member == 0 {
                *logits.add(head.span.slot(position, B) as usize) = logit;
            }
            greatest = greatest.max(logit);
        }
        block += WARPS;
    }
    greatest
}

/// Returns the dot product of the query with the key of the thread group's token, in all threads of the group.
///
/// # Safety
/// `keys` are the head's keys in one block. `query` is as for [`scores`]. All lanes of the warp call this together.
#[inline(always)]
unsafe fn group_dot<T: Element, const D: u32, const B: u32>(
    keys: *const Vector,
    query: *const f32,
    member: u32,
) -> f32 {
    let mut dot = 0.0;
    let (mut first, batch) = (0, const { at_once(D / VECTOR) });
    while first < D / VECTOR {
        unroll::<AT_ONCE>(|i| {
            if i as u32 >= batch {
                return;
            }
            let chunk = first + i as u32;
            // SAFETY: the chunk is below the key's `D / VECTOR` chunks.
            let (key, query) = unsafe {
                (
                    load_keys::<B>(keys.add((chunk * B) as usize), lane_id()),
                    load_query::<B>(query.add((chunk * VECTOR) as usize), member),
                )
            };
            unroll::<{ VECTOR as usize / 2 }>(|pair| {
                if 2 * (pair as u32) < share(B) {
                    let [a, b] = T::Pair::from_bits(key[pair]).to_f32();
                    dot = GpuFloat::mul_add(a, query[2 * pair], dot);
                    dot = GpuFloat::mul_add(b, query[2 * pair + 1], dot);
                }
            });
        });
        first += batch;
    }
    let mut distance = group_size(B) / 2;
    while distance > 0 {
        // SAFETY: all lanes of the warp are here together, by this function's contract.
        dot += unsafe { warp_shuffle_xor(FULL_MASK, dot, distance, WARP_SIZE) };
        distance /= 2;
    }
    dot
}

/// Returns the elements of a chunk that each thread of a group reads.
const fn share(block_size: u32) -> u32 {
    VECTOR / group_size(block_size)
}

/// Maximum number of chunks with loads in flight together.
const AT_ONCE: usize = 8;

/// Returns the number of chunks with loads in flight together: the largest divisor of `chunks` that is at most
/// [`AT_ONCE`].
const fn at_once(chunks: u32) -> u32 {
    let mut count = if chunks < AT_ONCE as u32 { chunks } else { AT_ONCE as u32 };
    while !chunks.is_multiple_of(count) {
        count -= 1;
    }
    count
}

/// Loads the lane's share of a chunk of its token's key, two elements per register. Only the first `share(B) / 2`
/// registers are used.
///
/// # Safety
/// `chunk` points to this chunk of all `B` tokens.
#[inline(always)]
unsafe fn load_keys<const B: u32>(chunk: *const Vector, lane: u32) -> [u32; 4] {
    let lane = lane as usize;
    // SAFETY: the shares of the 32 lanes make up the `B` vectors of the chunk, and each is aligned to its own size.
    unsafe {
        match share(B) {
            8 => (*chunk.add(lane)).0,
            4 => {
                let HalfVector([a, b]) = *chunk.cast::<HalfVector>().add(lane);
                [a, b, 0, 0]
            }
            _ => [*chunk.cast::<u32>().add(lane), 0, 0, 0],
        }
    }
}

/// Loads the same share of the query's chunk, into the first `share(B)` of the eight numbers.
///
/// Members of a group read neighbouring addresses, and all groups read the same ones: a broadcast, without bank
/// conflicts.
///
/// # Safety
/// `chunk` points to eight numbers, aligned to 16 bytes.
#[inline(always)]
unsafe fn load_query<const B: u32>(chunk: *const f32, member: u32) -> [f32; 8] {
    // SAFETY: the shares of a thread group make up the chunk, and each is aligned for the loads that read it.
    unsafe {
        let from = chunk.add((member * share(B)) as usize);
        match share(B) {
            8 => {
                let ([a, b, c, d], [e, f, g, h]) =
                    ((*from.cast::<Vector>()).to_f32(), (*from.add(4).cast::<Vector>()).to_f32());
                [a, b, c, d, e, f, g, h]
            }
            4 => {
                let [a, b, c, d] = (*from.cast::<Vector>()).to_f32();
                [a, b, c, d, 0.0, 0.0, 0.0, 0.0]
            }
            _ => {
                let [a, b] = (*from.cast::<HalfVector>()).to_f32();
                [a, b, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
            }
        }
    }
}
