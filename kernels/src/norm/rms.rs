//! Root-mean-square normalisation (Zhang and Sennrich, 2019).

use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use super::{HELD, at, load, load_sum, sum};
use crate::element::{Bf16, Element, F16};
use crate::vector::{narrow, widen};
use cuda_std::unroll::{eight, unroll};

/// Computes `x += y`, then `out = x / sqrt(mean(x^2) + eps) * weight`, row by row.
///
/// Rows of `x`, `y` and `out` have `vectors` vectors and no gaps between them, and `out` may be `x`. If `y` is null,
/// the sum is left out.
///
/// # Safety
/// The arrays have a row for each x of the grid and are 16-byte aligned. The block has
/// [`NormShape::threads`](super::NormShape) threads.
#[kernel(dependent, max_threads = 512, instances(T = [F16, Bf16]))]
pub unsafe fn rms_norm<T: Element>(
    x: *mut Vector,
    y: *const Vector,
    weight: *const Vector,
    out: *mut Vector,
    eps: f32,
    vectors: u32,
) {
    let row = thread::block_idx_x() as usize * vectors as usize;
    // SAFETY: the row is in the arrays, which meet the contract of `rms_norm_row`.
    unsafe {
        let y = if y.is_null() { y } else { y.add(row) };
        rms_norm_row::<T>(x.add(row), y, weight, out.add(row), eps, vectors);
    }
}

/// Computes `out = x / sqrt(mean(x^2) + eps) * weight` for a part of each row.
///
/// The part has `vectors` vectors. Rows of `x` and `out` are `stride` vectors apart, and `out` may be `x`.
///
/// # Safety
/// The arrays have a row for each x of the grid and are 16-byte aligned. The block has
/// [`NormShape::threads`](super::NormShape) threads for rows of `vectors` vectors.
#[kernel(dependent, max_threads = 512, instances(T = [F16, Bf16]))]
pub unsafe fn rms_norm_part<T: Element>(
    x: *const Vector,
    weight: *const Vector,
    out: *mut Vector,
    eps: f32,
    vectors: u32,
    stride: u32,
) {
    let row = thread::block_idx_x() as usize * stride as usize;
    // SAFETY: the row is in the arrays, which meet the contract of `rms_norm_row`. Without a second row, `x` is only
    // read.
    unsafe { rms_norm_row::<T>(x.cast_mut().add(row), core::ptr::null(), weight, out.add(row), eps, vectors) };
}

/// Does the same as [`rms_norm()`] for one row.
///
/// # Safety
/// As for [`rms_norm()`], with a single row. All threads of the block call this together, with a barrier between two
/// calls.
#[inline(always)]
pub(crate) unsafe fn rms_norm_row<T: Element>(
    x: *mut Vector,
    y: *const Vector,
    weight: *const Vector,
    out: *mut Vector,
    eps: f32,
    vectors: u32,
) {
    // SAFETY: `at` is checked against the row's end, and all threads reach the sum.
    unsafe {
        let held = load_sum::<T>(x, y, vectors);
        let factors = load(weight, vectors);
        let mean = sum::<T, 0>(&held, vectors, |v| v * v) / (vectors * 8) as f32;
        let scale = (mean + eps).rsqrt_fast();
        unroll::<HELD>(|i| {
            if at(i) < vectors {
                let (values, factors) = (widen::<T>(held[i]), widen::<T>(factors[i]));
                *out.add(at(i) as usize) = narrow::<T>(eight(|e| values[e] * scale * factors[e]));
            }
        });
    }
}
