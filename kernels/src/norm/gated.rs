//! The norm of results that are also multiplied by the SiLU of a gate: after the norm (Qwen3-Next) or before it (Mamba-2).

use cuda_std::prelude::*;
use cuda_std::unroll::{eight, unroll};
use cuda_std::vector::Vector;

use super::{HELD, at, load, sum};
use crate::element::{Bf16, Element, F16};
use crate::gemm::activation::{Activation, activate};
use crate::vector::{narrow, widen};

/// Computes `out = x / sqrt(mean(x^2) + eps) * weight * silu(gate)`, row by row. With `gate_first` other than 0, first
/// computes `x * silu(gate)`, rounds it, and normalises that.
///
/// Rows of `x`, `gate` and `out` have `vectors` vectors and no gaps between them, and `out` may be `x`.
///
/// # Safety
/// The arrays have a row for each x of the grid and are 16-byte aligned. The block has
/// [`NormShape::threads`](super::NormShape) threads.
#[kernel(dependent, max_threads = 512, instances(T = [F16, Bf16]))]
pub unsafe fn rms_norm_gated<T: Element>(
    x: *const Vector,
    gate: *const Vector,
    weight: *const Vector,
    out: *mut Vector,
    eps: f32,
    vectors: u32,
    gate_first: u32,
) {
    let row = thread::block_idx_x() as usize * vectors as usize;
    // SAFETY: `at` is checked against the row's end, and all threads reach the sum.
    unsafe {
        let mut held = load(x.add(row), vectors);
        let gates = load(gate.add(row), vectors);
        let factors = load(weight, vectors);
        if gate_first != 0 {
            unroll::<HELD>(|i| held[i] = gated::<T>(widen::<T>(held[i]), gates[i]));
        }
        let mean = sum::<T, 0>(&held, vectors, |v| v * v) / (vectors * 8) as f32;
        let scale = (mean + eps).rsqrt_fast();
        unroll::<HELD>(|i| {
            if at(i) < vectors {
                let (values, factors) = (widen::<T>(held[i]), widen::<T>(factors[i]));
                let normed = eight(|e| values[e] * scale * factors[e]);
                let result = if gate_first != 0 { narrow::<T>(normed) } else { gated::<T>(normed, gates[i]) };
                *out.add(row + at(i) as usize) = result;
            }
        });
    }
}

/// Multiplies by the SiLU of a gate.
#[inline(always)]
fn gated<T: Element>(values: [f32; 8], gate: Vector) -> Vector {
    let gates = widen::<T>(gate);
    narrow::<T>(eight(|e| values[e] * activate(Activation::Silu as u32, gates[e])))
}
