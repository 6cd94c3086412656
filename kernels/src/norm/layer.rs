//! Layer normalisation (Ba et al., 2016).

use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use super::{HELD, at, load, load_sum, sum};
use crate::element::{Bf16, Element, F16};
use crate::vector::{narrow, widen};
use cuda_std::unroll::{eight, unroll};

/// Computes `x += y`, then `out = (x - mean) / sqrt(variance + eps) * weight + bias`, row by row.
///
/// Rows of `x`, `y` and `out` have `vectors` vectors and no gaps between them, and `out` may be `x`. If `y`, `weight`
/// or `bias` is null, the sum, the factor or the bias is left out.
///
/// # Safety
/// The arrays have a row for each x of the grid and are 16-byte aligned. The block has
/// [`NormShape::threads`](super::NormShape) threads.
#[kernel(dependent, max_threads = 512, instances(T = [F16, Bf16]))]
pub unsafe fn layer_norm<T: Element>(
    x: *mut Vector,
    y: *const Vector,
    weight: *const Vector,
    bias: *const Vector,
    out: *mut Vector,
    eps: f32,
    vectors: u32,
) {
    let row = thread::block_idx_x() as usize * vectors as usize;
    // SAFETY: the row is in the arrays, which meet the contract of `layer_norm_row`.
    unsafe {
        let y = if y.is_null() { y } else { y.add(row) };
        layer_norm_row::<T>(x.add(row), y, weight, bias, out.add(row), eps, vectors);
    }
}

/// Does the same as [`layer_norm()`] for one row.
///
/// # Safety
/// As for [`layer_norm()`], with a single row. All threads of the block call this together, with a barrier between two
/// calls.
#[inline(always)]
pub(crate) unsafe fn layer_norm_row<T: Element>(
    x: *mut Vector,
    y: *const Vector,
    weight: *const Vector,
    bias: *const Vector,
    out: *mut Vector,
    eps: f32,
    vectors: u32,
) {
    // SAFETY: `at` is checked against the row's end, and all threads reach the sums.
    unsafe {
        let held = load_sum::<T>(x, y, vectors);
        let (factors, biases) = (load(weight, vectors), load(bias, vectors));
        let count = (vectors * 8) as f32;
        let mean = sum::<T, 0>(&held, vectors, |v| v) / count;
        let variance = sum::<T, 1>(&held, vectors, |v| (v - mean) * (v - mean)) / count;
        let scale = (variance + eps).rsqrt_fast();
        unroll::<HELD>(|i| {
            if at(i) >= vectors {
                return;
            }
            let mut values = widen::<T>(held[i]).map(|v| (v - mean) * scale);
            if !weight.is_null() {
                let factors = widen::<T>(factors[i]);
                values = eight(|e| values[e] * factors[e]);
            }
            if !bias.is_null() {
                let biases = widen::<T>(biases[i]);
                values = eight(|e| values[e] + biases[e]);
            }
            *out.add(at(i) as usize) = narrow::<T>(values);
        });
    }
}
