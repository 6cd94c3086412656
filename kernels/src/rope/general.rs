//! The cache write for heads that [`rope_and_cache()`](super::rope_and_cache()) does not support.
//!
//! In addition to that kernel, [`general_rope_and_cache()`] can
//!
//! - rotate only the first elements of a head (Phi, GLM-4),
//! - rotate neighbouring elements as pairs (GLM-4, Cohere 2) instead of the same element of both halves,
//! - normalise values, without weights (Gemma 4),
//! - write heads of any size.
//!
//! Each layer chooses by arguments. The kernel reads a head two or three times, the first time from global memory and
//! then from L1, since heads of any size do not fit the registers. Grid, lanes and floor are as for the other kernel.

use cuda_std::prelude::*;
use cuda_std::vector::Vector;
use cuda_std::warp::{FULL_MASK, WARP_SIZE};

#[cfg(not(target_arch = "nvptx64"))]
use super::rope_and_cache;
use super::{Pairing, THREADS, TOKENS, floats};
use crate::element::{Bf16, Element, F16};
use crate::kv_element::{Bf16Fp8, Bf16Int8, F16Fp8, F16Int8, KvElement};
use crate::kv_write::{CachePlace, WriteElements};
use crate::layout::{KeyOrValue, Pages, VECTOR};
use crate::vector::{WidthError, narrow, sum_of_eight, widen};
use cuda_std::unroll::eight;
#[cfg(not(target_arch = "nvptx64"))]
use {
    crate::{element::ElementType, layout::KvFormat, with_kv_element},
    cuda_std::launch::KernelCall,
};

/// Lanes that share a head of one token.
const LANES: u32 = WARP_SIZE / TOKENS;

const INTERLEAVED: u32 = Pairing::Interleaved as u32;

/// Checks that [`general_rope_and_cache()`] supports heads of `head_size` elements, and that it can rotate the
/// first `rotated` of them. 0 means no rotation.
///
/// # Errors
/// [`WidthError`] if heads or rotated elements are not whole vectors, or `rotated` exceeds the head.
pub const fn check_general(head_size: u32, rotated: u32, pairing: Pairing) -> Result<(), WidthError> {
    let multiple = match pairing {
        Pairing::Halves => 2 * VECTOR,
        Pairing::Interleaved => VECTOR,
    };
    if head_size == 0 || !head_size.is_multiple_of(2 * VECTOR) {
        return Err(WidthError::Ragged { width: head_size, multiple: 2 * VECTOR });
    }
    if !rotated.is_multiple_of(multiple) {
        return Err(WidthError::Ragged { width: rotated, multiple });
    }
    if rotated > head_size {
        return Err(WidthError::Long { width: rotated, most: head_size });
    }
    Ok(())
}

/// Normalises, rotates, splits and caches the fused QKV rows of a step's tokens.
///
/// - `angles`: `[positions][rotated]`. Row `p` has `rotated / 2` cosines, then as many sines. Null for no rotation.
/// - `value_norm`: 1 if values are normalised, else 0.
/// - `rotated`: the number of elements at the start of a head that are rotated.
/// - `pairing`: a [`Pairing`].
/// - The rest is as for [`rope_and_cache()`](super::rope_and_cache()).
///
/// # Safety
/// The arrays have these shapes and are 16-byte aligned, slots are within the cache, and no two are the same. Sizes pass
/// [`check_general`]. The launch has the shape of [`shape`](super::shape).
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16, F16Int8, F16Fp8, Bf16Int8, Bf16Fp8]))]
pub unsafe fn general_rope_and_cache<T: KvElement>(
    qkv: *const Vector,
    query: *mut Vector,
    cache: *mut Vector,
    angles: *const [f32; 8],
    positions: *const u32,
    slots: *const i32,
    query_norm: *const Vector,
    key_norm: *const Vector,
    value_norm: u32,
    eps: f32,
    tokens: u32,
    qkv_stride: u32,
    query_stride: u32,
    heads: u32,
    kv_heads: u32,
    head_size: u32,
    block_size: u32,
    padding: u32,
    rotated: u32,
    pairing: u32,
) {
    let number = thread::block_idx_y() * (THREADS / WARP_SIZE) + warp::warp_id();
    if number >= heads + 2 * kv_heads {
        return;
    }
    let lane = warp::lane_id();
    let token = thread::block_idx_x() * TOKENS + lane % TOKENS;
    let is_here = token < tokens;
    let is_value = number >= heads + kv_heads;
    let pages = Pages { heads: kv_heads, head_size, block_size, format: T::FORMAT, padding };
    // SAFETY: every access is below `tokens` and within the head. Slots are within the cache and positions within the
    // table, by this kernel's contract. All lanes of the warp have the same head, so they take the same branches to the
    // shuffles.
    unsafe {
        let vectors = head_size / VECTOR;
        let first = (number * vectors) as usize;
        let mut head = Head {
            from: qkv.add(token as usize * qkv_stride as usize + first),
            vectors,
            own: lane / TOKENS,
            is_here,
            norm: if number < heads { query_norm } else { key_norm },
            scale: 1.0,
            angles,
            rotated: if angles.is_null() { 0 } else { rotated / VECTOR },
            pairing,
        };
        if is_value {
            head.norm = core::ptr::null();
            head.rotated = 0;
        }
        if !head.norm.is_null() || is_value && value_norm != 0 {
            head.scale = head.inverse_root_mean_square::<T::Element>(eps);
        }
        if is_here && head.rotated != 0 {
            head.angles = angles.add(*positions.add(token as usize) as usize * head.rotated as usize);
        }
        if number < heads {
            head.write_pairs::<T::Element>(query.add(token as usize * query_stride as usize + first));
            return;
        }
        let mut place = None;
        if is_here {
            let slot = *slots.add(token as usize);
            if slot >= 0 {
                core::hint::assert_unchecked(block_size != 0);
                let (block, offset) = (slot as u32 / block_size, slot as u32 % block_size);
                let (part, head) = if is_value {
                    (KeyOrValue::Value, number - heads - kv_heads)
                } else {
                    (KeyOrValue::Key, number - heads)
                };
                place = Some(CachePlace { block, head, part, offset });
            }
        }
        let writer = T::writer(pages, cache);
        writer.write_elements::<T::Element>(place, vectors, head.own, |vector| head.result::<T::Element>(vector));
    }
}

/// A head of one token, and the changes to it.
#[derive(Clone, Copy)]
struct Head {
    from: *const Vector,
    /// Vectors in the head.
    vectors: u32,
    /// The lane's number among those that share the head.
    own: u32,
    /// Whether the token exists.
    is_here: bool,
    /// Weights of the norm, or null.
    norm: *const Vector,
    /// The norm's factor, 1 without a norm.
    scale: f32,
    /// The token's row of angles.
    angles: *const [f32; 8],
    /// Vectors that are rotated.
    rotated: u32,
    pairing: u32,
}

impl Head {
    /// Returns the inverse of the root mean square of the head's elements.
    ///
    /// # Safety
    /// All lanes of the warp call this together. If the token exists, its head has these vectors.
    #[inline(always)]
    unsafe fn inverse_root_mean_square<T: Element>(&self, eps: f32) -> f32 {
        let mut squares = 0.0;
        let mut vector = if self.is_here { self.own } else { self.vectors };
        // SAFETY: vectors are within the head. All lanes are here for the shuffles, and the lanes of one token differ
        // only in the bits from `TOKENS` up.
        unsafe {
            while vector < self.vectors {
                squares += sum_of_eight(widen::<T>(*self.from.add(vector as usize)).map(|v| v * v));
                vector += LANES;
            }
            squares += warp::warp_shuffle_xor(FULL_MASK, squares, TOKENS, WARP_SIZE);
            squares += warp::warp_shuffle_xor(FULL_MASK, squares, 2 * TOKENS, WARP_SIZE);
        }
        (squares / (self.vectors * VECTOR) as f32 + eps).rsqrt_fast()
    }

    /// Returns a vector after the norm.
    ///
    /// # Safety
    /// The token exists, and the vector is within the head.
    #[inline(always)]
    unsafe fn normed<T: Element>(&self, vector: u32) -> [f32; 8] {
        // SAFETY: the vector is within the head and the weights, by this function's contract.
        let values = unsafe { widen::<T>(*self.from.add(vector as usize)) };
        let scaled = eight(|e| values[e] * self.scale);
        if self.norm.is_null() {
            return scaled;
        }
        // SAFETY: as for the vector.
        let weights = unsafe { widen::<T>(*self.norm.add(vector as usize)) };
        eight(|e| scaled[e] * weights[e])
    }

    /// Returns a vector after norm and rotation.
    ///
    /// # Safety
    /// The token exists, and the vector is within the head.
    #[inline(always)]
    unsafe fn result<T: Element>(&self, vector: u32) -> [f32; 8] {
        let half = self.rotated / 2;
        // SAFETY: vectors are within the head, and their angles within the row.
        unsafe {
            if vector >= self.rotated {
                return self.normed::<T>(vector);
            }
            if self.pairing == INTERLEAVED {
                // Four pairs have four angles, half of the eight that a vector of the table has.
                let angles = self.angles.cast::<Vector>().add(vector as usize);
                let (cos, sin) = ((*angles).to_f32(), (*angles.add(self.rotated as usize)).to_f32());
                let x = self.normed::<T>(vector);
                return eight(|e| {
                    let (cos, sin) = (cos[e / 2], sin[e / 2]);
                    if e % 2 == 0 { x[e] * cos - x[e + 1] * sin } else { x[e] * cos + x[e - 1] * sin }
                });
            }
            let is_first = vector < half;
            let first = if is_first { vector } else { vector - half };
            let (a, b) = (self.normed::<T>(first), self.normed::<T>(first + half));
            let angles = self.angles.add(first as usize);
            let (cos, sin) = (floats(angles), floats(angles.add(half as usize)));
            if is_first { eight(|e| a[e] * cos[e] - b[e] * sin[e]) } else { eight(|e| b[e] * cos[e] + a[e] * sin[e]) }
        }
    }

    /// Writes the head to `to`, which may be the head itself. A lane writes two vectors after it has read both. If they
    /// are rotated, they are a pair, so no lane reads a vector that another lane has written.
    ///
    /// # Safety
    /// If the token exists, `to` has room for its head.
    #[inline(always)]
    unsafe fn write_pairs<T: Element>(&self, to: *mut Vector) {
        let half = if self.pairing == INTERLEAVED { 0 } else { self.rotated / 2 };
        let mut pair = if self.is_here { self.own } else { self.vectors };
        while pair < self.vectors / 2 {
            let [first, second] =
                if pair < half { [pair, pair + half] } else { [pair + half, pair + self.vectors / 2] };
            // SAFETY: both vectors are within the head.
            unsafe {
                let (a, b) = (self.result::<T>(first), self.result::<T>(second));
                *to.add(first as usize) = narrow::<T>(a);
                *to.add(second as usize) = narrow::<T>(b);
            }
            pair += LANES;
        }
    }
}

/// What only [`general_rope_and_cache()`] can do.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadOptions {
    /// Elements at the start of a head that are rotated.
    pub rotated: u32,
    /// Which of them are pairs.
    pub pairing: Pairing,
    /// Whether values are normalised, without weights.
    pub value_norm: bool,
}

#[cfg(not(target_arch = "nvptx64"))]
impl HeadOptions {
    /// Returns the kernel call with these options and arguments, for this element type and cache format.
    pub fn call(self, element: ElementType, format: KvFormat, args: rope_and_cache) -> KernelCall {
        let rope_and_cache { qkv, query, cache, angles, positions, slots, query_norm, key_norm, eps, .. } = args;
        let rope_and_cache {
            tokens, qkv_stride, query_stride, heads, kv_heads, head_size, block_size, padding, ..
        } = args;
        let HeadOptions { rotated, pairing, value_norm } = self;
        let args = general_rope_and_cache {
            qkv,
            query,
            cache,
            angles,
            positions,
            slots,
            query_norm,
            key_norm,
            value_norm: value_norm.into(),
            eps,
            tokens,
            qkv_stride,
            query_stride,
            heads,
            kv_heads,
            head_size,
            block_size,
            padding,
            rotated,
            pairing: pairing as u32,
        };
        with_kv_element!(element, format, T => args.instance::<T>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_without_a_kernel_are_refused() {
        assert_eq!(check_general(512, 512, Pairing::Halves), Ok(()));
        assert_eq!(check_general(128, 64, Pairing::Interleaved), Ok(()));
        assert_eq!(check_general(80, 0, Pairing::Halves), Ok(()));
        assert_eq!(check_general(64, 24, Pairing::Interleaved), Ok(()));
        let ragged = |width, multiple| Err(WidthError::Ragged { width, multiple });
        assert_eq!(check_general(64, 24, Pairing::Halves), ragged(24, 16));
        assert_eq!(check_general(72, 16, Pairing::Halves), ragged(72, 16));
        assert_eq!(check_general(64, 80, Pairing::Halves), Err(WidthError::Long { width: 80, most: 64 }));
    }
}
