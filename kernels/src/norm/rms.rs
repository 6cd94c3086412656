//! Root-mean-square normalisation (Zhang and Sennrich, 2019).

use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use super::{HELD, at, load, load_sum, sum};
use crate::element::{Bf16, Element, F16};
use crate::vector::{narrow, widen};
use cuda_std::unroll::{eight, unroll};

/// `x += y`; `out = x / sqrt(mean(x^2) + eps) * weight`, row by row.
///
/// Rows of `x`, `y` and `out` have `vectors` vectors and follow each other; `out` may be `x`. `y` may be null: no sum.
///
/// # Safety
/// The arrays have a row for each x of the grid, are 16-byte aligned, and the block is of
/// [`NormShape::threads`](super::NormShape).
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
    // SAFETY: the row is in the arrays, which are as `rms_norm_row` wants them.
    unsafe {
        let y = if y.is_null() { y } else { y.add(row) };
        rms_norm_row::<T>(x.add(row), y, weight, out.add(row), eps, vectors);
    }
}

/// [`rms_norm()`] of one row.
///
/// # Safety
/// As for [`rms_norm()`], of a single row. All threads of the block call this together, and a barrier comes between two calls.
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
