//! Element types of weights and of the KV cache, and their conversion from and to f32.

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pulp::Simd;

use super::tensor::{CpuTensor, Pool};
use checkpoint::tensor::{Elements, HostTensor};
use std::sync::Arc;

/// Lanes of the longest vector of f32.
const MAX_LANES: usize = 16;

/// An element type of weights or of the KV cache.
pub(super) trait Element: Pod + Send + Sync {
    /// `to = from`, exactly. The lengths are equal.
    fn widen(from: &[Self], to: &mut [f32]);
    /// `to = from`, rounded to nearest even. The lengths are equal.
    fn narrow(from: &[f32], to: &mut [Self]);
    /// Returns the elements themselves if they are f32 already.
    fn as_f32(from: &[Self]) -> Option<&[f32]>;
    /// Returns the element's value as f32.
    fn wide(self) -> f32;

    /// Loads as many elements as a vector has lanes and widens them in registers.
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> S::f32s {
        let _ = simd;
        let mut wide = [0.0; MAX_LANES];
        Self::widen(from, &mut wide[..S::F32_LANES]);
        S::as_simd_f32s(&wide).0[0]
    }
}

impl Element for f32 {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn as_f32(from: &[Self]) -> Option<&[f32]> {
        Some(from)
    }

    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
}

impl Element for f16 {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the condition above shows that the processor has the instructions that the function is compiled
            // for.
            return unsafe { widen_halves_avx512(from, to) };
        }
        #[cfg(target_arch = "aarch64")]
        return widen_halves_neon(from, to);
        #[cfg(not(target_arch = "aarch64"))]
        widen_halves(from, to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    #[inline(always)]
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn wide(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self]) -> S::f32s {
        let _ = simd;
        let mut wide = [0.0; MAX_LANES];
        #[cfg(target_arch = "x86_64")]
        if S::F32_LANES == MAX_LANES {
            let halves: &[f16; MAX_LANES] = from.try_into().unwrap_or_else(|_| unreachable!("a vector of elements"));
            // SAFETY: only AVX-512 has vectors of sixteen lanes on x86-64, and a value of `S` proves that the processor
            // has it.
            let wide = unsafe { std::arch::x86_64::_mm512_cvtph_ps(bytemuck::must_cast(*halves)) };
            return bytemuck::cast(wide);
        }
        #[cfg(target_arch = "aarch64")]
        if S::F32_LANES == 4 {
            let halves: &[f16; 4] = from.try_into().unwrap_or_else(|_| unreachable!("a vector of elements"));
            return bytemuck::cast(widen_four(*halves));
        }
        widen_halves(from, &mut wide[..S::F32_LANES]);
        S::as_simd_f32s(&wide).0[0]
    }
}

/// Widens halves with integer and f32 operations.
///
/// It is inlined so that it is compiled for the caller's instruction set. It shifts the exponent into position and
/// corrects its bias with a multiplication, which is exact for subnormals too. Values with the greatest exponent become
/// infinite or NaN.
#[inline(always)]
fn widen_halves(from: &[f16], to: &mut [f32]) {
    let rebias = f32::from_bits((127 + 112) << 23);
    for (to, from) in to.iter_mut().zip(from) {
        let bits = u32::from(from.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * rebias;
        let infinite = if magnitude >= 65536.0 { 0xff << 23 } else { 0 };
        *to = f32::from_bits(magnitude.to_bits() | infinite | (bits & 0x8000) << 16);
    }
}

/// Widens sixteen halves per instruction. The compiler does not find this instruction by itself, and `half` converts
/// eight at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn widen_halves_avx512(from: &[f16], to: &mut [f32]) {
    use std::arch::x86_64::{__m512, _mm512_cvtph_ps};
    let (from_16, from_rest) = from.as_chunks::<16>();
    let (to_16, to_rest) = to.as_chunks_mut::<16>();
    for (to, from) in to_16.iter_mut().zip(from_16) {
        let wide: __m512 = _mm512_cvtph_ps(bytemuck::must_cast(*from));
        *to = bytemuck::must_cast(wide);
    }
    widen_halves(from_rest, to_rest);
}

/// Widens four halves with one instruction.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn widen_four(halves: [f16; 4]) -> std::arch::aarch64::float32x4_t {
    use std::arch::aarch64::{vcvt_f32_f16, vreinterpret_f16_u16};
    // SAFETY: the instruction is part of NEON, which all aarch64 processors have, and it accesses no memory.
    unsafe { vcvt_f32_f16(vreinterpret_f16_u16(bytemuck::must_cast(halves))) }
}

/// Widens any number of halves, four at a time.
#[cfg(target_arch = "aarch64")]
fn widen_halves_neon(from: &[f16], to: &mut [f32]) {
    let (from_4, from_rest) = from.as_chunks::<4>();
    let (to_4, to_rest) = to.as_chunks_mut::<4>();
    for (to, from) in to_4.iter_mut().zip(from_4) {
        *to = bytemuck::must_cast(widen_four(*from));
    }
    widen_halves(from_rest, to_rest);
}

impl Element for bf16 {
    // A shift. It is inlined so that it is compiled for the caller's instruction set.
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    #[inline(always)]
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// Runs `$body` with `$slice` bound to the elements as a slice of their own type.
macro_rules! with_elements {
    ($elements:expr, $slice:ident => $body:expr) => {
        match $elements {
            checkpoint::tensor::Elements::F32($slice) => $body,
            checkpoint::tensor::Elements::F16($slice) => $body,
            checkpoint::tensor::Elements::Bf16($slice) => $body,
        }
    };
}

/// `to = elements[start..][..to.len()]`, widened.
pub(super) fn widen_range(elements: Elements<'_>, start: usize, to: &mut [f32]) {
    with_elements!(elements, v => Element::widen(&v[start..][..to.len()], to));
}

/// A whole small weight in f32: borrowed, or widened into memory from the pool.
pub(super) enum Floats<'a> {
    InPlace(&'a [f32]),
    Widened(CpuTensor),
}

impl<'a> Floats<'a> {
    pub fn new(weight: &'a HostTensor, pool: &Arc<Pool>) -> Self {
        match weight.elements() {
            Elements::F32(v) => Floats::InPlace(v),
            other => {
                let mut wide = pool.tensor(1, weight.shape().iter().product());
                widen_range(other, 0, wide.as_mut_slice());
                Floats::Widened(wide)
            }
        }
    }

    pub fn as_slice(&self) -> &[f32] {
        match self {
            Floats::InPlace(v) => v,
            Floats::Widened(t) => t.as_slice(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<E: Element>(x: &[f32]) -> Vec<f32> {
        let mut narrow = vec![E::zeroed(); x.len()];
        E::narrow(x, &mut narrow);
        let mut wide = vec![f32::NAN; x.len()];
        E::widen(&narrow, &mut wide);
        wide
    }

    #[test]
    fn conversions_round_to_nearest_even_and_widen_exactly() {
        let x: Vec<f32> = (0..37).map(|i| (i as f32 - 18.0) * 0.37 * 2f32.powi(i - 20)).collect();
        assert_eq!(round_trip::<f32>(&x), x);
        assert_eq!(round_trip::<f16>(&x), x.iter().map(|&v| f16::from_f32(v).to_f32()).collect::<Vec<_>>());
        assert_eq!(round_trip::<bf16>(&x), x.iter().map(|&v| bf16::from_f32(v).to_f32()).collect::<Vec<_>>());
        assert!(round_trip::<bf16>(&[f32::NAN])[0].is_nan());
    }

    #[test]
    fn every_half_is_widened_exactly() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for widen in [f16::widen, widen_halves] {
            let mut wide = vec![0.0; all.len()];
            widen(&all, &mut wide);
            for (got, want) in wide.iter().zip(all.iter().map(|h| h.to_f32())) {
                assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{got} is not {want}");
            }
        }
    }
}
