//! Factors on activations and logits, and the softcap of logits.
//!
//! | kernel | computes | shapes |
//! | --- | --- | --- |
//! | [`scale_rows()`] | `out[r] = factor x[r]` | `x`, `out [R][H]`, 16 bits |
//! | [`scale_logits()`] | `out[r] = cap tanh(factor x[r] / cap)` | `x`, `out [R][V]`, `f32` |
//!
//! Models scale embeddings (Gemma), residuals and logits (Granite, Cohere) or whole layers (Gemma 4), and cap logits
//! (Gemma 2). `out` may be `x`.
//!
//! # Floor
//!
//! Each element is read once and written once.

use cuda_std::launch::LaunchShape;
use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use crate::element::{Bf16, Element, F16};
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
