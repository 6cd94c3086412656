//! The softcap of scores, as Gemma 2 has it.

use cuda_std::float::GpuFloat;

use super::LOG2_E;

/// A softcap of scores: `cap tanh(scale x / cap)` for a product `x` of query and key.
///
/// With `tanh(u) = 1 - 2 / (1 + e^(2u))`, the score as a power of two is `outer (1/2 - 1 / (1 + 2^(inner x)))`. A softmax
/// is the same if all scores are lower by `outer / 2`. Kernels therefore compute only `-1 / (1 + 2^(inner x))` for each
/// score, and `outer` is the factor that makes it a power of two. The result is within 1e-6 of the cap, while the
/// hardware's `tanh.approx` would be off by 5e-4 of it.
#[derive(Clone, Copy)]
pub struct Softcap {
    /// The factor from a product to `2u` as a power of two.
    pub inner: f32,
    /// Twice the cap as a power of two.
    pub outer: f32,
}

impl Softcap {
    /// A placeholder for kernels without a softcap.
    pub const NONE: Softcap = Softcap { inner: 0.0, outer: 0.0 };

    /// Creates the softcap of products that `scale` multiplies. For codes it includes
    /// [`key_factor`](crate::kv_element::key_factor()). `cap` is above 0.
    #[cfg(not(target_arch = "nvptx64"))]
    pub const fn new(scale: f32, cap: f32) -> Softcap {
        Softcap { inner: 2.0 * LOG2_E * scale / cap, outer: 2.0 * cap * LOG2_E }
    }

    /// Returns the score of a product, between -1 and 0.
    #[inline(always)]
    pub fn apply(self, product: f32) -> f32 {
        -(1.0 + (product * self.inner).exp2_fast()).rcp_fast()
    }

    /// Returns how much lower the scores are, as a power of two.
    #[inline(always)]
    pub const fn shift(self) -> f32 {
        0.5 * self.outer
    }
}

/// Returns the weight of an attention sink in a softmax whose weights are relative to `reference`, or 0 if `sinks` is
/// null. A sink is a logit that joins the denominator. Each query head has its own.
///
/// # Safety
/// `sinks` is null or has a logit for this head.
#[inline(always)]
pub unsafe fn sink_weight(sinks: *const f32, head: u32, reference: f32) -> f32 {
    if sinks.is_null() {
        return 0.0;
    }
    // SAFETY: the array has this head, by this function's contract.
    let sink = unsafe { *sinks.add(head as usize) };
    GpuFloat::mul_add(sink, LOG2_E, -reference).exp2_fast()
}
