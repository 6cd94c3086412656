//! Elementwise changes of activations and logits: factors, softcaps, sums and products.
//!
//! | kernel | computes | shapes |
//! | --- | --- | --- |
//! | [`scale_rows()`] | `out[r] = factor x[r]` | `x`, `out [R][H]`, 16 bits |
//! | [`scale_logits()`] | `out[r] = cap tanh(factor x[r] / cap)` | `x`, `out [R][V]`, `f32` |
//! | [`add_rows()`] | `out[r] = x[r] + y[r]` | `x`, `y`, `out [R][H]`, 16 bits |
//! | [`multiply_columns()`] | `out[r][c] = x[r][c] f(by[r][first + c])` | `x`, `out [R][N]`, `by [R][_]`, 16 bits |
//!
//! Models scale embeddings (Gemma), residuals and logits (Granite, Cohere) or whole layers (Gemma 4), and cap logits
//! (Gemma 2). `out` may be `x`. Norms of the results of a layer's parts (Gemma, OLMo 2, GLM-4) make the sum with the
//! residual stream a launch of its own. Embeddings for each layer (Gemma 4) and
//! the results of attention (Qwen3-Next) are gated by products.
//!
//! # Floor
//!
//! Each element is read once and written once. Sums and products read a second matrix.

use cuda_std::launch::LaunchShape;
use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use crate::element::{Bf16, Element, F16};
use crate::embedding::sum;
use crate::gemm::activation::logistic;
use crate::vector::{narrow, widen};
use cuda_std::unroll::eight;

/// Threads per block.
pub const THREADS: u32 = 256;

/// The launch for `rows` rows of `width` vectors ([`scale_rows()`]) or logits ([`scale_logits()`]).
pub const fn shape(rows: u32, width: u32) -> LaunchShape {
    LaunchShape::new([width.div_ceil(THREADS), rows, 1], THREADS)
}

/// Multiplies rows of `vectors` vectors by `factor`, in `f32`, rounded once. Rows are `stride` vectors apart.
///
/// # Safety
/// Both arrays have a row for each y of the grid, aligned to 16 bytes. The launch has the shape of [`shape`].
#[kernel(dependent, max_threads = 256, instances(T = [F16, Bf16]))]
pub unsafe fn scale_rows<T: Element>(x: *const Vector, out: *mut Vector, vectors: u32, stride: u32, factor: f32) {
    let vector = thread::index_1d();
    if vector < vectors {
        // SAFETY: the vector was just checked against the row, which is in both arrays.
        unsafe {
            let at = thread::block_idx_y() as usize * stride as usize + vector as usize;
            let values = widen::<T>(*x.add(at));
            *out.add(at) = narrow::<T>(eight(|e| values[e] * factor));
        }
    }
}

/// Multiplies rows of `width` logits by `factor`. With a positive `cap`, a product `s` becomes `cap tanh(s / cap)`. Rows
/// are `stride` logits apart.
///
/// # Safety
/// Both arrays have a row for each y of the grid. The launch has the shape of [`shape`].
#[kernel(dependent, max_threads = 256)]
pub unsafe fn scale_logits(x: *const f32, out: *mut f32, width: u32, stride: u32, factor: f32, cap: f32) {
    let index = thread::index_1d();
    if index < width {
        // SAFETY: the index was just checked against the row, which is in both arrays.
        unsafe {
            let at = thread::block_idx_y() as usize * stride as usize + index as usize;
            let mut logit = *x.add(at) * factor;
            if cap > 0.0 {
                // tanh(u) = 1 - 2 / (1 + e^(2u)), which is more precise than the hardware's approximation.
                let power = (logit * (2.0 * core::f32::consts::LOG2_E) * cap.rcp_fast()).exp2_fast();
                logit = GpuFloat::mul_add(-2.0 * cap, (1.0 + power).rcp_fast(), cap);
            }
            *out.add(at) = logit;
        }
    }
}

/// Adds `x` and `y`, each of `vectors` vectors. Sums are in `f32`, rounded once.
///
/// # Safety
/// The arrays have these vectors, aligned to 16 bytes. The launch has the shape of [`shape`] for one row.
#[kernel(dependent, max_threads = 256, instances(T = [F16, Bf16]))]
pub unsafe fn add_rows<T: Element>(x: *const Vector, y: *const Vector, out: *mut Vector, vectors: u32) {
    let at = thread::index_1d();
    if at < vectors {
        // SAFETY: the index was just checked against the arrays.
        unsafe {
            let at = at as usize;
            *out.add(at) = sum::<T>(*x.add(at), *y.add(at));
        }
    }
}

/// The function that turns an element into a factor. Kernels take its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Factor {
    /// The element itself.
    Plain,
    /// The logistic function.
    Sigmoid,
    /// SiLU.
    Silu,
}

impl Factor {
    /// All of them.
    pub const ALL: [Factor; 3] = [Self::Plain, Self::Sigmoid, Self::Silu];
}

/// Multiplies `x` by a [`Factor`] of columns of another matrix. The matrices have `rows` rows. A row of `x` has `vectors`
/// vectors. `by` is the address of the first column, and its rows are `stride` vectors apart.
///
/// # Safety
/// The arrays have these rows, aligned to 16 bytes. The launch has the shape of [`shape`] for one row of `rows *
/// vectors` vectors.
#[kernel(dependent, max_threads = 256, instances(T = [F16, Bf16]))]
pub unsafe fn multiply_columns<T: Element>(
    x: *const Vector,
    by: *const Vector,
    out: *mut Vector,
    rows: u32,
    vectors: u32,
    stride: u32,
    function: u32,
) {
    let at = thread::index_1d();
    if at < rows * vectors {
        // SAFETY: the index was just checked against `x`, and a row that has a vector is not empty. The row and the
        // column are within `by`.
        unsafe {
            core::hint::assert_unchecked(vectors != 0);
            let (row, column) = (at / vectors, at % vectors);
            let factors = widen::<T>(*by.add(row as usize * stride as usize + column as usize));
            let values = widen::<T>(*x.add(at as usize));
            *out.add(at as usize) = narrow::<T>(eight(|e| values[e] * factor(function, factors[e])));
        }
    }
}

/// Applies the function with this number, which is the same for all threads.
#[inline(always)]
fn factor(number: u32, x: f32) -> f32 {
    const SIGMOID: u32 = Factor::Sigmoid as u32;
    const SILU: u32 = Factor::Silu as u32;
    match number {
        SIGMOID => logistic(x),
        SILU => x * logistic(x),
        _ => x,
    }
}
