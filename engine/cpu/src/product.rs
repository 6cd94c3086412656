//! What the inner loop of a projection does with each type of weight.

use bytemuck::Pod;
use half::f16;
use pulp::Simd;

use super::element::Element;

/// A type of weight in panels, a vector of which is multiplied with one activation.
pub(super) trait Product: Copy + Send + Sync {
    /// What lies in a lane of a panel.
    type Word: Pod + Send + Sync;
    /// Activations that a word meets, one after the other.
    const DEPTH: usize;
    /// Most tokens whose sums are in registers at a time, at most 6: with the four vectors of a panel these take 29 of 32
    /// registers, with two vectors 15 of 16.
    const TOKENS: usize = 6;

    /// As many words as a vector has lanes: what the activation `depth` of [`Product::DEPTH`] is multiplied with.
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

/// Elements of 16 bits, widened.
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

/// Two bf16 elements, widened.
#[derive(Clone, Copy)]
pub(super) struct WidenedPairs;

impl Product for WidenedPairs {
    type Word = u32;
    const DEPTH: usize = 2;
    // Both halves of the words are in registers, too: with 6 the loop takes 6 % longer.
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

/// Two bf16 elements, whose products with two activations, rounded to bf16 as well, are added by one instruction.
///
/// Made only where the processor has it: AVX512_BF16.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Pairs(pulp::x86::V4);

#[cfg(target_arch = "x86_64")]
impl Pairs {
    /// With `None` the processor does not have the instruction.
    pub fn new() -> Option<Self> {
        let v4 = pulp::x86::V4::try_new()?;
        is_x86_feature_detected!("avx512bf16").then_some(Pairs(v4))
    }

    /// Runs a function, which is to be inlined, so that it is compiled for the instruction set.
    pub fn dispatch(self, run: impl FnOnce(pulp::x86::V4)) {
        #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")]
        fn compiled(simd: pulp::x86::V4, run: impl FnOnce(pulp::x86::V4)) {
            run(simd);
        }
        // SAFETY: this value exists only where the processor has the instructions that the function is compiled for.
        unsafe { compiled(self.0, run) }
    }
}

/// For vectors of sixteen lanes, as [`Pairs::dispatch`] has them.
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
        // SAFETY: `self` exists only where the processor has AVX512_BF16, and the instruction accesses no memory.
        let sum: __m512 = unsafe { _mm512_dpbf16_ps(bytemuck::cast(sum), w, x) };
        bytemuck::cast(sum)
    }
}

/// A number as bf16, in the lower half: the nearest one, and the even one of two. What is no number stays none.
#[cfg(any(target_arch = "x86_64", test))]
#[inline(always)]
pub(super) fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_nan() { 0x7fc0 } else { (bits + 0x7fff + (bits >> 16 & 1)) >> 16 }
}

/// Rounds the activations of a token to bf16, in pairs: an odd last one has a zero beside it.
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
