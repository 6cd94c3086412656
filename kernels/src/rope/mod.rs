//! Rotary embeddings of fused QKV rows, and the write of their keys and values to the cache, in one launch.
//!
//! [`rope_and_cache()`] reads rows `[heads * D | kv_heads * D | kv_heads * D]` of 16-bit elements, one for each token. It
//! works in three steps.
//!
//! - If it has weights for that (Qwen3), it normalises each query and key head by its root mean square.
//! - If it has a table of angles, it rotates each query and key head by the angles of the token's position (Su et al.,
//!   2021). Element `i` of the first half of a head pairs with element `i` of the second.
//! - It writes queries to `query`, which may be in place, and keys and values to their slots in the layer's pages
//!   ([`layout`](crate::layout)).
//!
//! [`general_rope_and_cache()`] does the same for heads that are larger than 256 elements or rotated in other ways.
//!
//! All arithmetic is in `f32`, rounded once at the end. With neither norms nor table the kernel only splits and caches.
//! If the cache has 8 bits, the kernel first computes the 16-bit keys and values, and then stores their codes exactly
//! as [`eight_bit`](crate::eight_bit) defines them. This takes two more shuffles for the largest element of a head, and
//! one for each vector.
//!
//! Grid [`shape`], block [`THREADS`]: a warp handles one head of [`TOKENS`] tokens. Lanes run along the tokens first,
//! as in [`reshape_and_cache`](crate::cache::reshape_and_cache()), with four lanes to a head. A warp therefore reads 64
//! contiguous bytes from each half of a head. It writes 128 contiguous bytes for each vector of the cache if the slots
//! are neighbours. A lane holds the pairs that it rotates in registers, and the norm is two shuffles.
//!
//! # Floor
//!
//! A token's row is read once and written once: `4 (heads + 2 kv_heads) D` bytes, or less if the cache has 8 bits. `4
//! D` bytes of angles come from L2 after the first warp, and from L1 for the second half of each sector (a lane takes
//! 32 bytes of them by two loads). At about 6 flops an element, memory is the limit.
//!
//! # Ladder
//!
//! 1. Norm of queries, norm of keys, rotation of queries, rotation of keys, cache write: five launches that read and
//!    write the row three times.
//! 2. One kernel, one block a token: one launch, but writes to the cache are of 16 bytes, half a sector, even for
//!    prompts.
//! 3. (here) Eight tokens a warp: whole sectors for prompts. In a decode step slots are scattered, and the layout
//!    allows only half sectors.

mod general;

use cuda_std::launch::LaunchShape;
use cuda_std::prelude::*;
use cuda_std::vector::Vector;
use cuda_std::warp::{FULL_MASK, WARP_SIZE};

use crate::element::{Bf16, Element, F16};
use crate::head_part::{HeadPart, PAIRS, Pairs};
use crate::kv_element::{Bf16Fp8, Bf16Int8, F16Fp8, F16Int8, KvElement};
use crate::kv_write::WriteHead;
use crate::layout::{KeyOrValue, Pages, VECTOR};
use crate::vector::{WidthError, narrow, sum_of_eight, widen};
use cuda_std::unroll::{eight, unroll};
#[cfg(not(target_arch = "nvptx64"))]
use {
    crate::{element::ElementType, layout::KvFormat, with_kv_element},
    cuda_std::launch::KernelCall,
};

pub use crate::head_part::TOKENS;
#[cfg(not(target_arch = "nvptx64"))]
pub use general::HeadOptions;
pub use general::{check_general, general_rope_and_cache};

/// Which elements of a head are rotated together. Kernels take its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Pairing {
    /// Element `i` of the first half of the rotated elements with element `i` of the second, as in GPT-NeoX.
    Halves,
    /// Elements `2 i` and `2 i + 1`, as in GPT-J.
    Interleaved,
}

/// Threads per block of [`rope_and_cache()`].
pub const THREADS: u32 = 128;

/// The launch of [`rope_and_cache()`].
pub const fn shape(tokens: u32, heads: u32, kv_heads: u32) -> LaunchShape {
    LaunchShape::new([tokens.div_ceil(TOKENS), (heads + 2 * kv_heads).div_ceil(THREADS / WARP_SIZE), 1], THREADS)
}

/// Checks that [`rope_and_cache()`] supports heads of `head_size` elements.
///
/// # Errors
/// [`WidthError`] if half a head is not a whole number of vectors, or a head has more than 256 elements.
pub const fn check(head_size: u32) -> Result<(), WidthError> {
    match head_size {
        0 => Err(WidthError::Ragged { width: 0, multiple: 16 }),
        _ if !head_size.is_multiple_of(16) => Err(WidthError::Ragged { width: head_size, multiple: 16 }),
        257.. => Err(WidthError::Long { width: head_size, most: 256 }),
        _ => Ok(()),
    }
}

/// Returns the call of the cache write with these arguments, for this element type and cache format. Heads of more than
/// 256 elements take the general kernel.
#[cfg(not(target_arch = "nvptx64"))]
pub fn call(element: ElementType, format: KvFormat, args: rope_and_cache) -> KernelCall {
    if check(args.head_size).is_ok() {
        return with_kv_element!(element, format, T => args.instance::<T>());
    }
    let options = HeadOptions { rotated: args.head_size, pairing: Pairing::Halves, value_norm: false };
    options.call(element, format, args)
}

/// Bytes that must be moved for `tokens` tokens with `heads` query heads, to a cache of `pages`.
pub const fn floor_bytes(tokens: u64, heads: u64, pages: Pages) -> u64 {
    let (kv_heads, head_size) = (pages.heads as u64, pages.head_size as u64);
    let cached = 2 * kv_heads * pages.format.head_bytes(pages.head_size) as u64;
    tokens * (head_size * (4 * heads + 2 * 2 * kv_heads + 4) + cached)
}

/// Normalises, rotates, splits and caches the fused QKV rows of a step's tokens.
///
/// - `qkv`: `[tokens][heads + 2 * kv_heads][head_size]`, rows `qkv_stride` vectors apart.
/// - `query`: `[tokens][heads][head_size]`, rows `query_stride` vectors apart. May be `qkv` with its stride.
/// - `cache`: the layer's pages, with `padding` unused vectors at the end of each.
/// - `slots`: `block * block_size + offset` for each token. A negative slot is padding, whose key and value are not
///   stored.
/// - `angles`: `[positions][head_size]`. Row `p` has the cosines of half a head, then the sines. Null for no rotation.
/// - `positions`: the row of `angles` for each token.
/// - `query_norm`, `key_norm`: `[head_size]`, or null for no norm.
///
/// # Safety
/// The arrays have these shapes and are 16-byte aligned, slots are within the cache, and no two are the same.
/// `head_size` passes [`check`], and is 32, 64, 96 or 128 if the cache has 8 bits. The launch has the shape of
/// [`shape`].
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16, F16Int8, F16Fp8, Bf16Int8, Bf16Fp8]))]
pub unsafe fn rope_and_cache<T: KvElement>(
    qkv: *const Vector,
    query: *mut Vector,
    cache: *mut Vector,
    angles: *const [f32; 8],
    positions: *const u32,
    slots: *const i32,
    query_norm: *const Vector,
    key_norm: *const Vector,
    eps: f32,
    tokens: u32,
    qkv_stride: u32,
    query_stride: u32,
    heads: u32,
    kv_heads: u32,
    head_size: u32,
    block_size: u32,
    padding: u32,
) {
    let rows = FusedRows {
        qkv,
        query,
        angles,
        positions,
        slots,
        query_norm,
        key_norm,
        eps,
        tokens,
        qkv_stride,
        query_stride,
        heads,
    };
    let pages = Pages { heads: kv_heads, head_size, block_size, format: T::FORMAT, padding };
    // SAFETY: this kernel has the contract of the function.
    unsafe { rotate_and_write::<T::Element, _>(rows, pages, T::writer(pages, cache)) };
}

/// The arguments of [`rope_and_cache()`] that do not concern the cache.
#[derive(Clone, Copy)]
pub(crate) struct FusedRows {
    pub qkv: *const Vector,
    pub query: *mut Vector,
    pub angles: *const [f32; 8],
    pub positions: *const u32,
    pub slots: *const i32,
    pub query_norm: *const Vector,
    pub key_norm: *const Vector,
    pub eps: f32,
    pub tokens: u32,
    pub qkv_stride: u32,
    pub query_stride: u32,
    pub heads: u32,
}

/// Computes [`rope_and_cache()`] for a cache of any layout.
///
/// # Safety
/// As for [`rope_and_cache()`], with slots within `cache`.
#[inline(always)]
pub(crate) unsafe fn rotate_and_write<T: Element, C: WriteHead>(rows: FusedRows, pages: Pages, cache: C) {
    let FusedRows { heads, tokens, angles, .. } = rows;
    let Pages { heads: kv_heads, head_size, block_size, .. } = pages;
    let head = thread::block_idx_y() * (THREADS / WARP_SIZE) + warp::warp_id();
    if head >= heads + 2 * kv_heads {
        return;
    }
    let lane = warp::lane_id();
    let token = thread::block_idx_x() * TOKENS + lane % TOKENS;
    let own = HeadPart { halves: head_size / 16, first: lane / TOKENS, here: token < tokens };
    // SAFETY: every access is below `tokens` and within the head. Slots are within the cache and positions within the
    // table, by this function's contract. All lanes of the warp have the same head, so they take the same branches to
    // the shuffles.
    unsafe {
        let first = head * (head_size / VECTOR);
        let from = rows.qkv.add(token as usize * rows.qkv_stride as usize + first as usize);
        let mut pairs = own.load(from);
        let rotated = head < heads + kv_heads;
        if rotated {
            let norm = if head < heads { rows.query_norm } else { rows.key_norm };
            if !norm.is_null() || !angles.is_null() {
                let position = if own.here && !angles.is_null() { *rows.positions.add(token as usize) } else { 0 };
                own.norm_and_rotate::<T>(&mut pairs, norm, rows.eps, angles, position);
            }
        }
        if head < heads {
            let to = rows.query.add(token as usize * rows.query_stride as usize + first as usize);
            own.each(|i, chunk| {
                let [a, b] = pairs[i];
                *to.add(chunk as usize) = a;
                *to.add((chunk + own.halves) as usize) = b;
            });
            return;
        }
        let stored = C::stored::<T>(own, pairs);
        if own.here {
            let slot = *rows.slots.add(token as usize);
            if slot >= 0 {
                core::hint::assert_unchecked(block_size != 0);
                let (block, offset) = (slot as u32 / block_size, slot as u32 % block_size);
                let (which, head) = if rotated {
                    (KeyOrValue::Key, head - heads)
                } else {
                    (KeyOrValue::Value, head - heads - kv_heads)
                };
                cache.write(own, stored, block, head, which, offset);
            }
        }
    }
}

impl HeadPart {
    /// Normalises the head if `norm` is not null, then rotates it if `angles` is not null.
    ///
    /// # Safety
    /// Arrays are as for [`rope_and_cache()`], and all lanes of the warp call this together.
    #[inline(always)]
    unsafe fn norm_and_rotate<T: Element>(
        self,
        pairs: &mut Pairs,
        norm: *const Vector,
        eps: f32,
        angles: *const [f32; 8],
        position: u32,
    ) {
        let mut scale = 1.0;
        if !norm.is_null() {
            let mut squares = 0.0;
            unroll::<PAIRS>(|i| {
                let [a, b] = pairs[i].map(|vector| sum_of_eight(widen::<T>(vector).map(|v| v * v)));
                squares += a + b;
            });
            // SAFETY: all lanes are here. The lanes of one token differ only in the bits from `TOKENS` up.
            unsafe {
                squares += warp::warp_shuffle_xor(FULL_MASK, squares, TOKENS, WARP_SIZE);
                squares += warp::warp_shuffle_xor(FULL_MASK, squares, 2 * TOKENS, WARP_SIZE);
            }
            scale = (squares / (self.halves * 16) as f32 + eps).rsqrt_fast();
        }
        self.each(|i, chunk| {
            let [mut a, mut b] = pairs[i].map(widen::<T>);
            // SAFETY: `chunk` is within half a head, both for weights and for angles.
            unsafe {
                if !norm.is_null() {
                    let first = widen::<T>(*norm.add(chunk as usize));
                    let second = widen::<T>(*norm.add((chunk + self.halves) as usize));
                    a = eight(|e| a[e] * scale * first[e]);
                    b = eight(|e| b[e] * scale * second[e]);
                }
                if !angles.is_null() {
                    let row = angles.add(position as usize * 2 * self.halves as usize);
                    let (cos, sin) = (floats(row.add(chunk as usize)), floats(row.add((chunk + self.halves) as usize)));
                    let rotated = eight(|e| a[e] * cos[e] - b[e] * sin[e]);
                    b = eight(|e| b[e] * cos[e] + a[e] * sin[e]);
                    a = rotated;
                }
            }
            pairs[i] = [narrow::<T>(a), narrow::<T>(b)];
        });
    }
}

/// Loads eight `f32` by two loads.
///
/// # Safety
/// The pointer is valid and aligned to 16 bytes.
#[inline(always)]
unsafe fn floats(from: *const [f32; 8]) -> [f32; 8] {
    // SAFETY: the pointer is valid and aligned to 16 bytes, by this function's contract.
    let [Vector(a), Vector(b)] = unsafe { *from.cast::<[Vector; 2]>() };
    let [a, b] = [a, b].map(|half| half.map(f32::from_bits));
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_whose_halves_are_not_whole_vectors_are_refused() {
        for head_size in [16, 32, 64, 80, 96, 128, 256] {
            assert_eq!(check(head_size), Ok(()));
        }
        assert_eq!(check(72), Err(WidthError::Ragged { width: 72, multiple: 16 }));
        assert_eq!(check(512), Err(WidthError::Long { width: 512, most: 256 }));
        assert_eq!(shape(9, 32, 8).grid, [2, 12, 1]);
    }
}
