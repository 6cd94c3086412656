//! The operations of a projection's inner loop, for each type of weight.

use bytemuck::Pod;
use half::f16;
use pulp::Simd;

use super::element::Element;

/// A type of weight in panels that can be multiplied by activations, a vector at a time.
pub(super) trait Product: Copy + Send + Sync {
    /// The content of one lane of a panel.
    type Word: Pod + Send + Sync;
    /// Activations that each word is multiplied with, one after the other.
    const DEPTH: usize;
    /// Maximum number of tokens whose sums are in registers at a time, at most 6. With the four vectors of a panel, 6
    /// tokens take 29 of 32 registers. With two vectors, they take 15 of 16.
    const TOKENS: usize = 6;

    /// Loads a vector of words and extracts the factors for activation number `depth`, less than [`Product::DEPTH`].
    fn load<S: Simd>(self, simd: S, words: &[Self::Word], depth: usize) -> S::f32s;

    /// `w * x + sum`
    #[inline(always)]
    fn mul_add<S: Simd>(self, simd: S, w: S::f32s, x: S::f32s, sum: S::f32s) -> S::f32s {
        simd.mul_add_e_f32s(w, x, sum)
    }
}

/// Elements of 32 bits.
#[derive(Clone, Copy)]
pub(super) struct Singles;

impl Product for Singles {
    type Word = f32;
    const DEPTH: usize = 1;

    #[inline(always)]
    fn load<S: Simd>(self, _: S, words: &[f32], _: usize) -> S::f32s {
        S::as_simd_f32s(words).0[0]
    }
}

/// Elements of f16, widened on load.
#[derive(Clone, Copy)]
pub(super) struct Halves;

impl Product for Halves {
    type Word = f16;
    const DEPTH: usize = 1;

    #[inline(always)]
    fn load<S: Simd>(self, simd: S, words: &[f16], _: usize) -> S::f32s {
        f16::load(simd, words)
    }
}

/// Pairs of bf16 elements, widened on load.
#[derive(Clone, Copy)]
pub(super) struct WidenedPairs;

impl Product for WidenedPairs {
    type Word = u32;
    const DEPTH: usize = 2;
    // Both halves of the words take registers too. With 6 tokens the loop takes 6 % longer.
    const TOKENS: usize = 5;

    #[inline(always)]
    fn load<S: Simd>(self, simd: S, words: &[u32], depth: usize) -> S::f32s {
        let words = S::as_simd_u32s(words).0[0];
        simd.transmute_f32s_u32s(match depth {
            0 => simd.wrapping_dyn_shl_u32s(words, simd.splat_u32s(16)),
            _ => simd.and_u32s(words, simd.splat_u32s(0xffff << 16)),
        })
    }
}

/// Pairs of bf16 elements, multiplied with pairs of activations that are also rounded to bf16. One instruction computes
/// both products and adds them.
///
/// A value exists only if the processor has this instruction (AVX512_BF16).
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Pairs(pulp::x86::V4);

#[cfg(target_arch = "x86_64")]
impl Pairs {
    /// Returns `None` if the processor lacks the instruction.
    pub fn new() -> Option<Self> {
        let v4 = pulp::x86::V4::try_new()?;
        is_x86_feature_detected!("avx512bf16").then_some(Pairs(v4))
    }

    /// Runs a function compiled for the instruction set. It must be marked `#[inline(always)]`.
    pub fn dispatch(self, run: impl FnOnce(pulp::x86::V4)) {
        #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")]
        fn compiled(simd: pulp::x86::V4, run: impl FnOnce(pulp::x86::V4)) {
            run(simd);
        }
        // SAFETY: this value exists only if the processor has the instructions that the function is compiled for.
        unsafe { compiled(self.0, run) }
    }
}

/// Works only with vectors of sixteen lanes, as provided by [`Pairs::dispatch`].
#[cfg(target_arch = "x86_64")]
impl Product for Pairs {
    type Word = u32;
    const DEPTH: usize = 1;

    #[inline(always)]
    fn load<S: Simd>(self, _: S, words: &[u32], _: usize) -> S::f32s {
        bytemuck::cast(S::as_simd_u32s(words).0[0])
    }

    #[inline(always)]
    fn mul_add<S: Simd>(self, _: S, w: S::f32s, x: S::f32s, sum: S::f32s) -> S::f32s {
        use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps};
        let (w, x): (__m512bh, __m512bh) = (bytemuck::cast(w), bytemuck::cast(x));
        // SAFETY: `self` exists only if the processor has AVX512_BF16, and the instruction accesses no memory.
        let sum: __m512 = unsafe { _mm512_dpbf16_ps(bytemuck::cast(sum), w, x) };
        bytemuck::cast(sum)
    }
}

/// Rounds a number to bf16 and returns it in the lower half. Ties go to the even number, and NaN stays NaN.
#[cfg(any(target_arch = "x86_64", test))]
#[inline(always)]
pub(super) fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_nan() { 0x7fc0 } else { (bits + 0x7fff + (bits >> 16 & 1)) >> 16 }
}

/// Rounds a token's activations to bf16 in pairs. An odd last one is paired with zero.
#[cfg(any(target_arch = "x86_64", test))]
#[inline(always)]
pub(super) fn round_to_pairs(x: &[f32], to: &mut [f32]) {
    let (whole, rest) = x.as_chunks::<2>();
    for (to, &[low, high]) in to.iter_mut().zip(whole) {
        *to = f32::from_bits(rounded(low) | rounded(high) << 16);
    }
    if let (&[last], Some(to)) = (rest, to.last_mut()) {
        *to = f32::from_bits(rounded(last));
    }
}
