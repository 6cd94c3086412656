//! AVX-512 with VNNI: sixteen rows are in one register.

use std::arch::x86_64::*;

use bytemuck::must_cast;

use super::{Lanes, WithLanes};
use crate::pages::Line;
use crate::quantised::layout::ROWS;

/// Exists only if the processor has AVX-512 F, BW, VL and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// Calls intrinsics of AVX-512. A value of [`Avx512`] proves that the processor has them.
macro_rules! instruction {
    ($call:expr) => {
        // SAFETY: `self` exists only if the processor has AVX-512 F, BW, VL and VNNI. The instruction has no other
        // requirement: it reads and writes no memory.
        unsafe { $call }
    };
}

impl Avx512 {
    pub(super) fn new() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        has.then_some(Avx512(()))
    }

    pub(super) fn run(self, work: impl WithLanes) {
        self.run_from(work, 0);
    }

    /// Processes the tokens of `work` from `token` on.
    pub(in crate::quantised) fn run_from(self, mut work: impl WithLanes, token: usize) {
        self.compiled(
            #[inline(always)]
            || work.run_from(self, token),
        );
    }

    /// Runs `work` compiled for AVX-512, if it is inlined.
    pub(in crate::quantised) fn compiled(self, work: impl FnOnce()) {
        // SAFETY: this value exists only if the processor has the instructions that the function is compiled for.
        unsafe { compiled(work) }
    }

    /// Subtracts `zero` from each byte, which gives signed bytes.
    #[inline(always)]
    pub(in crate::quantised) fn signed(self, bytes: __m512i, zero: u8) -> Line {
        Line(must_cast(instruction!(_mm512_sub_epi8(bytes, _mm512_set1_epi8(zero as i8)))))
    }

    /// Loads an integer per row.
    #[inline(always)]
    pub(in crate::quantised) fn ints(self, x: &[i32; ROWS]) -> __m512i {
        must_cast(*x)
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn compiled(work: impl FnOnce()) {
    work();
}

impl Lanes for Avx512 {
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    const TOKENS: usize = 8;

    #[inline(always)]
    fn load(self, line: &Line) -> __m512i {
        must_cast(line.0)
    }

    #[inline(always)]
    fn bits(self, bytes: __m512i, shift: usize, mask: u8) -> __m512i {
        // The mask removes the bits shifted in from the neighbouring byte.
        instruction!(_mm512_and_si512(
            _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32)),
            _mm512_set1_epi8(mask as i8)
        ))
    }

    #[inline(always)]
    fn join(self, low: __m512i, high: __m512i, shift: usize) -> __m512i {
        instruction!(_mm512_or_si512(low, _mm512_sll_epi16(high, _mm_cvtsi32_si128(shift as i32))))
    }

    #[inline(always)]
    fn dot(self, sum: __m512i, bytes: __m512i, x: i32) -> __m512i {
        instruction!(_mm512_dpbusd_epi32(sum, bytes, _mm512_set1_epi32(x)))
    }

    #[inline(always)]
    fn wide(self, line: &Line) -> __m512i {
        must_cast(line.0)
    }

    /// Adds the offset of 128 to the table.
    #[inline(always)]
    fn look_up(self, bytes: __m512i, table: [i8; 16]) -> __m512i {
        instruction!(_mm512_shuffle_epi8(
            _mm512_broadcast_i32x4(_mm_xor_si128(must_cast(table), _mm_set1_epi8(-128))),
            bytes
        ))
    }

    #[inline(always)]
    fn begin_wide(self, sum: i32) -> __m512i {
        self.splat(-128 * sum)
    }

    #[inline(always)]
    fn dot_wide(self, sum: __m512i, bytes: __m512i, x: i32) -> __m512i {
        self.dot(sum, bytes, x)
    }

    #[inline(always)]
    fn splat(self, x: i32) -> __m512i {
        instruction!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn widen(self, x: &[u8; ROWS]) -> __m512i {
        instruction!(_mm512_cvtepu8_epi32(must_cast(*x)))
    }

    #[inline(always)]
    fn widen_signed(self, x: &[u8; ROWS]) -> __m512i {
        instruction!(_mm512_cvtepi8_epi32(must_cast(*x)))
    }

    #[inline(always)]
    fn multiply(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        instruction!(_mm512_add_epi32(_mm512_mullo_epi32(a, b), c))
    }

    #[inline(always)]
    fn pairs(self, first: &[u8; ROWS], second: &[u8; ROWS]) -> __m512i {
        instruction!(_mm512_or_si512(self.widen(first), _mm512_slli_epi32::<16>(self.widen(second))))
    }

    #[inline(always)]
    fn dot_pairs(self, sum: __m512i, a: __m512i, x: i32) -> __m512i {
        instruction!(_mm512_dpwssd_epi32(sum, a, _mm512_set1_epi32(x)))
    }

    #[inline(always)]
    fn zeros(self) -> __m512 {
        instruction!(_mm512_setzero_ps())
    }

    #[inline(always)]
    fn halves(self, x: &[u16; ROWS]) -> __m512 {
        instruction!(_mm512_cvtph_ps(must_cast(*x)))
    }

    #[inline(always)]
    fn floats(self, x: &[f32; ROWS]) -> __m512 {
        must_cast(*x)
    }

    #[inline(always)]
    fn half_powers(self, x: &[u8; ROWS]) -> __m512 {
        let x = self.widen(x);
        // The first is the result's bits if it is normal. It is then greater than the second.
        instruction!(_mm512_castsi512_ps(_mm512_max_epi32(
            _mm512_slli_epi32::<23>(_mm512_sub_epi32(x, _mm512_set1_epi32(1))),
            _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), _mm512_min_epi32(x, _mm512_set1_epi32(1)))
        )))
    }

    #[inline(always)]
    fn fp8(self, codes: &[u8; ROWS]) -> __m512 {
        // Sign extension puts the sign into the highest bit of the half. The mask clears its copy in the next bit.
        instruction!(_mm512_cvtph_ps(_mm256_and_si256(
            _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(must_cast(*codes))),
            _mm256_set1_epi16(0xbfffu16 as i16)
        )))
    }

    #[inline(always)]
    fn mul_add_one(self, a: __m512, b: f32, c: __m512) -> __m512 {
        instruction!(_mm512_fmadd_ps(a, _mm512_set1_ps(b), c))
    }

    #[inline(always)]
    fn fused(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        instruction!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: f32) -> __m512 {
        instruction!(_mm512_mul_ps(a, _mm512_set1_ps(b)))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512i, b: __m512, c: __m512) -> __m512 {
        instruction!(_mm512_fmadd_ps(_mm512_cvtepi32_ps(a), b, c))
    }

    #[inline(always)]
    fn to_array(self, x: __m512) -> [f32; ROWS] {
        must_cast(x)
    }
}
