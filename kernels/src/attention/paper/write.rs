//! `paper_rope_and_cache`: writes new tokens' keys and values where v1 and v2 read them.
//!
//! - Computes the same as [`rope_and_cache()`](crate::rope::rope_and_cache()), but writes [vLLM's
//!   layouts](super#shapes-and-layouts). With neither norms nor angles it only splits and caches, like vLLM's
//!   `reshape_and_cache`.
//! - Grid and floor: as for [`rope`](crate::rope).
//!
//! Eight neighbouring elements of a token are one contiguous store in the keys. In the values they are eight stores of
//! 2 bytes, `block_size` elements apart, because this layout keeps the same element of all tokens contiguous.

use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use crate::element::{Bf16, Element, F16};
use crate::kv_write::WriteVector;
use crate::layout::{KeyOrValue, KvFormat, Pages, VECTOR};
use crate::rope::{FusedRows, rotate_and_write};
use cuda_std::unroll::unroll;

/// Normalises, rotates, splits and caches the fused QKV rows of a step's tokens.
///
/// - `keys`, `values`: one layer's arrays, in [these shapes](super#shapes-and-layouts).
/// - The rest is as for [`rope_and_cache()`](crate::rope::rope_and_cache()).
///
/// # Safety
/// As for [`rope_and_cache()`](crate::rope::rope_and_cache()), with both arrays in place of the cache.
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16]))]
pub unsafe fn paper_rope_and_cache<T: Element>(
    qkv: *const Vector,
    query: *mut Vector,
    keys: *mut Vector,
    values: *mut u16,
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
    let pages = Pages { heads: kv_heads, head_size, block_size, format: KvFormat::Plain, padding: 0 };
    // SAFETY: this kernel's contract is the same as the function's.
    unsafe { rotate_and_write::<T, _>(rows, pages, PaperCache { pages, keys, values }) };
}

/// A layer's keys and values in vLLM's layouts.
#[derive(Clone, Copy)]
struct PaperCache {
    pages: Pages,
    /// `[blocks][kv_heads][head_size / 8][block_size]`
    keys: *mut Vector,
    /// `[blocks][kv_heads][head_size][block_size]`
    values: *mut u16,
}

impl WriteVector for PaperCache {
    #[inline(always)]
    unsafe fn write_vector(self, block: u32, head: u32, part: KeyOrValue, chunk: u32, offset: u32, vector: Vector) {
        let Pages { heads, block_size, .. } = self.pages;
        let row = (block as usize * heads as usize + head as usize) * self.pages.chunks() as usize + chunk as usize;
        // SAFETY: by this function's contract, the cache has this block, head and token, so both indices are within the
        // arrays.
        unsafe {
            if part == KeyOrValue::Key {
                *self.keys.add(row * block_size as usize + offset as usize) = vector;
                return;
            }
            let first = self.values.add(row * (VECTOR * block_size) as usize + offset as usize);
            unroll::<{ VECTOR as usize }>(|i| {
                let element = (vector.0[i / 2] >> (16 * (i % 2))) as u16;
                *first.add(i * block_size as usize) = element;
            });
        }
    }
}
