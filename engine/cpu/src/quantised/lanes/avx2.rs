//! AVX2: sixteen rows are in two registers.

use std::arch::x86_64::*;

use bytemuck::must_cast;

use super::{Lanes, WithLanes};
use crate::pages::Line;
use crate::quantised::layout::ROWS;

/// Exists only if the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(super) fn new() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        has.then_some(Avx2(()))
    }

    pub(super) fn run(self, work: impl WithLanes) {
        // SAFETY: this value exists only if the processor has the instructions that the function is compiled for.
        unsafe { run(self, work) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run(lanes: Avx2, work: impl WithLanes) {
    work.run(lanes);
}

/// Calls intrinsics of AVX2, FMA and F16C. A value of [`Avx2`] proves that the processor has them.
macro_rules! instruction {
    ($call:expr) => {
        // SAFETY: `self` exists only if the processor has AVX2, FMA and F16C. The instruction has no other requirement:
        // it reads and writes no memory.
        unsafe { $call }
    };
}

type Two<T> = [T; 2];

/// Evaluates an expression for each of the two registers. A closure might not be compiled for the instruction set.
macro_rules! both {
    ($i:ident => $value:expr) => {
        [
            {
                let $i = 0;
                $value
            },
            {
                let $i = 1;
                $value
            },
        ]
    };
}

impl Avx2 {
    /// Adds adjacent sums of two products to form sums of four, and adds those to `sum`.
    #[inline(always)]
    fn add_pairs(self, sum: __m256i, pairs: __m256i) -> __m256i {
        instruction!(_mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))
    }
}

impl Lanes for Avx2 {
    type Bytes = Two<__m256i>;
    type Ints = Two<__m256i>;
    type Floats = Two<__m256>;
    const TOKENS: usize = 2;

    #[inline(always)]
    fn load(self, line: &Line) -> Two<__m256i> {
        must_cast(line.0)
    }

    #[inline(always)]
    fn bits(self, bytes: Two<__m256i>, shift: usize, mask: u8) -> Two<__m256i> {
        // The mask removes the bits shifted in from the neighbouring byte.
        both!(i => {
            instruction!(_mm256_and_si256(
                _mm256_srl_epi16(bytes[i], _mm_cvtsi32_si128(shift as i32)),
                _mm256_set1_epi8(mask as i8)
            ))
        })
    }

    #[inline(always)]
    fn join(self, low: Two<__m256i>, high: Two<__m256i>, shift: usize) -> Two<__m256i> {
        both!(i => {
            instruction!(_mm256_or_si256(low[i], _mm256_sll_epi16(high[i], _mm_cvtsi32_si128(shift as i32))))
        })
    }

    #[inline(always)]
    fn dot(self, sum: Two<__m256i>, bytes: Two<__m256i>, x: i32) -> Two<__m256i> {
        // Two products of a byte below 64 and one of at most 127 fit 16 bits.
        both!(i => self.add_pairs(sum[i], instruction!(_mm256_maddubs_epi16(bytes[i], _mm256_set1_epi32(x)))))
    }

    /// Converts to signed bytes.
    #[inline(always)]
    fn wide(self, line: &Line) -> Two<__m256i> {
        let bytes = self.load(line);
        both!(i => instruction!(_mm256_xor_si256(bytes[i], _mm256_set1_epi8(-128))))
    }

    #[inline(always)]
    fn look_up(self, bytes: Two<__m256i>, table: [i8; 16]) -> Two<__m256i> {
        both!(i => instruction!(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(must_cast(table)), bytes[i])))
    }

    #[inline(always)]
    fn begin_wide(self, _: i32) -> Two<__m256i> {
        self.splat(0)
    }

    #[inline(always)]
    fn dot_wide(self, sum: Two<__m256i>, bytes: Two<__m256i>, x: i32) -> Two<__m256i> {
        // The instruction needs one unsigned factor, so the sign moves to the other. Two products of 128 and 127 fit 16
        // bits.
        both!(i => {
            let pairs = instruction!(_mm256_maddubs_epi16(
                _mm256_abs_epi8(bytes[i]),
                _mm256_sign_epi8(_mm256_set1_epi32(x), bytes[i])
            ));
            self.add_pairs(sum[i], pairs)
        })
    }

    #[inline(always)]
    fn splat(self, x: i32) -> Two<__m256i> {
        [instruction!(_mm256_set1_epi32(x)); 2]
    }

    #[inline(always)]
    fn widen(self, x: &[u8; ROWS]) -> Two<__m256i> {
        let halves = x.as_chunks::<8>().0;
        both!(i => instruction!(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(must_cast(halves[i])))))
    }

    #[inline(always)]
    fn widen_signed(self, x: &[u8; ROWS]) -> Two<__m256i> {
        let halves = x.as_chunks::<8>().0;
        both!(i => instruction!(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(must_cast(halves[i])))))
    }

    #[inline(always)]
    fn multiply(self, a: Two<__m256i>, b: Two<__m256i>, c: Two<__m256i>) -> Two<__m256i> {
        both!(i => instruction!(_mm256_add_epi32(_mm256_mullo_epi32(a[i], b[i]), c[i])))
    }

    #[inline(always)]
    fn pairs(self, first: &[u8; ROWS], second: &[u8; ROWS]) -> Two<__m256i> {
        let (first, second) = (self.widen(first), self.widen(second));
        both!(i => instruction!(_mm256_or_si256(first[i], _mm256_slli_epi32::<16>(second[i]))))
    }

    #[inline(always)]
    fn dot_pairs(self, sum: Two<__m256i>, a: Two<__m256i>, x: i32) -> Two<__m256i> {
        both!(i => instruction!(_mm256_add_epi32(sum[i], _mm256_madd_epi16(a[i], _mm256_set1_epi32(x)))))
    }

    #[inline(always)]
    fn zeros(self) -> Two<__m256> {
        [instruction!(_mm256_setzero_ps()); 2]
    }

    #[inline(always)]
    fn halves(self, x: &[u16; ROWS]) -> Two<__m256> {
        let halves = x.as_chunks::<8>().0;
        both!(i => instruction!(_mm256_cvtph_ps(must_cast(halves[i]))))
    }

    #[inline(always)]
    fn floats(self, x: &[f32; ROWS]) -> Two<__m256> {
        must_cast(*x)
    }

    #[inline(always)]
    fn half_powers(self, x: &[u8; ROWS]) -> Two<__m256> {
        let x = self.widen(x);
        // The first is the result's bits if it is normal. It is then greater than the second.
        both!(i => {
            instruction!(_mm256_castsi256_ps(_mm256_max_epi32(
                _mm256_slli_epi32::<23>(_mm256_sub_epi32(x[i], _mm256_set1_epi32(1))),
                _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), _mm256_min_epi32(x[i], _mm256_set1_epi32(1)))
            )))
        })
    }

    #[inline(always)]
    fn fp8(self, codes: &[u8; ROWS]) -> Two<__m256> {
        // Sign extension puts the sign into the highest bit of the half. The mask clears its copy in the next bit.
        let halves: Two<__m128i> = must_cast(instruction!(_mm256_and_si256(
            _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(must_cast(*codes))),
            _mm256_set1_epi16(0xbfffu16 as i16)
        )));
        both!(i => instruction!(_mm256_cvtph_ps(halves[i])))
    }

    #[inline(always)]
    fn mul_add_one(self, a: Two<__m256>, b: f32, c: Two<__m256>) -> Two<__m256> {
        both!(i => instruction!(_mm256_fmadd_ps(a[i], _mm256_set1_ps(b), c[i])))
    }

    #[inline(always)]
    fn fused(self, a: Two<__m256>, b: Two<__m256>, c: Two<__m256>) -> Two<__m256> {
        both!(i => instruction!(_mm256_fmadd_ps(a[i], b[i], c[i])))
    }

    #[inline(always)]
    fn mul(self, a: Two<__m256>, b: f32) -> Two<__m256> {
        both!(i => instruction!(_mm256_mul_ps(a[i], _mm256_set1_ps(b))))
    }

    #[inline(always)]
    fn mul_add(self, a: Two<__m256i>, b: Two<__m256>, c: Two<__m256>) -> Two<__m256> {
        both!(i => instruction!(_mm256_fmadd_ps(_mm256_cvtepi32_ps(a[i]), b[i], c[i])))
    }

    #[inline(always)]
    fn to_array(self, x: Two<__m256>) -> [f32; ROWS] {
        must_cast(x)
    }
}
