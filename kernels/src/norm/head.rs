//! Root-mean-square normalisation of each head by itself, as Qwen3 has it for queries and keys.
//!
//! Where heads are rotated and cached as well, [`rope`](crate::rope) does this on the way. Here a group of lanes takes a
//! head, a vector each: as many lanes as the next power of two, so that shuffles stay within the group.

use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, WARP_SIZE};

use crate::element::{Bf16, Element, F16};
use crate::layout::Vector;
use crate::unroll::eight;
use crate::vector::{WidthError, narrow, row_vectors, sum_of_eight, widen};

/// Threads per block of [`head_norm()`].
pub const HEAD_THREADS: u32 = 128;

/// Vectors in a head of `head_size` elements.
///
/// # Errors
/// [`WidthError`] if a head is no whole number of vectors, or more than a warp holds: 256 elements.
pub const fn head_shape(head_size: u32) -> Result<u32, WidthError> {
    match row_vectors(head_size) {
        Ok(vectors) if vectors > WARP_SIZE => Err(WidthError::Long { width: head_size, most: 256 }),
        other => other,
    }
}

/// The grid of [`head_norm()`] for `rows` rows of `heads` heads of `chunks` vectors.
pub const fn head_grid(rows: u32, heads: u32, chunks: u32) -> (u32, u32, u32) {
    ((rows * heads).div_ceil(HEAD_THREADS / chunks.next_power_of_two()), 1, 1)
}

/// Normalises each head in place: `x = x / sqrt(mean(x^2) + eps) * weight`, the mean over the head.
///
/// `x` is `[rows][heads][chunks]` of vectors, its rows `stride` vectors apart, so that they may be part of a fused QKV
/// output; `weight` is `[chunks]`.
///
/// # Safety
/// The arrays have these shapes and are 16-byte aligned, `heads` is not 0, `chunks` is as [`head_shape`] says, and the
/// launch is of [`head_grid`] by [`HEAD_THREADS`].
#[kernel(max_threads = 128, instances(T = [F16, Bf16]))]
pub unsafe fn head_norm<T: Element>(
    x: *mut Vector,
    weight: *const Vector,
    eps: f32,
    rows: u32,
    heads: u32,
    chunks: u32,
    stride: u32,
) {
    let width = chunks.next_power_of_two();
    let shift = width.trailing_zeros();
    let index = thread::index_1d() >> shift;
    let chunk = thread::thread_idx_x() & (width - 1);
    let mine = index < rows * heads && chunk < chunks;
    // SAFETY: the caller's.
    unsafe { core::hint::assert_unchecked(heads != 0) };
    let (row, head) = (index / heads, index % heads);
    // SAFETY: accesses are within the shapes where the vector is this lane's; all lanes reach the shuffles.
    unsafe {
        let place = x.add(row as usize * stride as usize + (head * chunks + chunk) as usize);
        let values = if mine { widen::<T>(*place) } else { [0.0; 8] };
        let mut squares = sum_of_eight(values.map(|v| v * v));
        let mut xor = width / 2;
        while xor > 0 {
            squares += warp::warp_shuffle_xor(FULL_MASK, squares, xor, WARP_SIZE);
            xor /= 2;
        }
        if mine {
            let scale = (squares / (chunks * 8) as f32 + eps).rsqrt_fast();
            let factors = widen::<T>(*weight.add(chunk as usize));
            *place = narrow::<T>(eight(|e| values[e] * scale * factors[e]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_lanes_cover_all_heads() {
        assert_eq!(head_shape(80), Ok(10));
        assert_eq!(head_grid(3, 5, 10), (2, 1, 1));
        assert_eq!(head_shape(512), Err(WidthError::Long { width: 512, most: 256 }));
        assert_eq!(head_shape(20), Err(WidthError::Ragged { width: 20, multiple: 8 }));
    }
}
