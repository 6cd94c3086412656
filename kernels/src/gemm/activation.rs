//! Element-wise functions of feed-forward blocks.

use cuda_std::prelude::*;

/// The element-wise function of a feed-forward block. Kernels take its number, or 0 for no function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu = 1,
    /// GELU through the error function.
    Gelu = 2,
    /// GELU through its tanh approximation.
    GeluTanh = 3,
    /// `x * sigmoid(x)`.
    Silu = 4,
}

impl Activation {
    /// All of the functions.
    pub const ALL: [Activation; 4] = [Self::Relu, Self::Gelu, Self::GeluTanh, Self::Silu];
}

/// Applies the activation with this number. The number is the same for all threads.
#[inline(always)]
pub fn activate(number: u32, x: f32) -> f32 {
    const RELU: u32 = Activation::Relu as u32;
    const GELU: u32 = Activation::Gelu as u32;
    const GELU_TANH: u32 = Activation::GeluTanh as u32;
    const SILU: u32 = Activation::Silu as u32;
    match number {
        // Not `max`, which would turn NaN into 0.
        RELU => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        GELU => gelu(x),
        // (1 + tanh u) / 2 is the logistic function of 2u, and 1.595... is twice the square root of 2 / pi.
        GELU_TANH => x * logistic(1.595_769 * (x + 0.044_715 * x * x * x)),
        SILU => x * logistic(x),
        _ => x,
    }
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub fn logistic(x: f32) -> f32 {
    (1.0 + exp(-x)).rcp_fast()
}

#[inline(always)]
fn exp(x: f32) -> f32 {
    (x * core::f32::consts::LOG2_E).exp2_fast()
}

/// Returns `x (1 + erf(x / sqrt 2)) / 2`, the exact GELU.
///
/// Computed as `x erfc(-x / sqrt 2) / 2`, which stays precise where the result is small. `erfc` is the Chebyshev fit of
/// Numerical Recipes (6.2), with a relative error below 1.2e-7.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    let z = x.abs() * core::f32::consts::FRAC_1_SQRT_2;
    let t = (1.0 + 0.5 * z).rcp_fast();
    let mut p = 0.170_872_77;
    // Written out, since a table would be read from memory.
    p = GpuFloat::mul_add(p, t, -0.822_152_2);
    p = GpuFloat::mul_add(p, t, 1.488_515_9);
    p = GpuFloat::mul_add(p, t, -1.135_204);
    p = GpuFloat::mul_add(p, t, 0.278_868_07);
    p = GpuFloat::mul_add(p, t, -0.186_288_06);
    p = GpuFloat::mul_add(p, t, 0.096_784_18);
    p = GpuFloat::mul_add(p, t, 0.374_091_96);
    p = GpuFloat::mul_add(p, t, 1.000_023_7);
    let tail = t * exp(t * p - z * z - 1.265_512_2);
    0.5 * x * if x > 0.0 { 2.0 - tail } else { tail }
}
