//! Products of halves of common sizes, by AVX2: eight columns at a time.
//!
//! The product of two halves is exact in f32, and so is what it becomes when it is scaled by a power of two. Scaled so that the
//! last bit that is kept is one, it is cut by a conversion to an integer.

use super::Bits;
use super::{DEPTH, KEPT, ZERO};
use crate::program::Factor;
use std::arch::x86_64::*;

/// The least exponent of factors whose products, and those scaled, are normal numbers of f32.
const LEAST: i32 = -49;
/// The greatest.
const GREATEST: i32 = 60;
/// The exponent of a sum up to which all products of such factors are zeros.
const TINY: i32 = -100;

/// Sixteen rows of a first factor as f32, by row and depth, and their exponents.
pub(crate) struct WideRows {
    values: [[f32; DEPTH]; 16],
    exponents: [[i32; DEPTH]; 16],
}

/// Whether this CPU has what the functions here need.
pub(crate) fn has_wide() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx2") && has!("f16c")
}

/// Eight halves, from one of them on, as f32.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn widen(factor: Factor, bits: &[u16; DEPTH], first: usize) -> __m256 {
    let bits = &bits[first..first + 8];
    // SAFETY: these are the sixteen bytes of eight halves.
    let bits = unsafe { _mm_loadu_si128(bits.as_ptr().cast()) };
    match factor {
        Factor::Bf16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))),
        _ => _mm256_cvtph_ps(bits),
    }
}

/// The exponents of eight factors, and which of them are not common; the least exponent is that of the subnormal ones.
#[target_feature(enable = "avx2")]
#[inline]
fn exponents(factor: Factor, values: __m256) -> (__m256i, __m256i) {
    let least = _mm256_set1_epi32(if factor == Factor::F16 { -14 } else { -126 });
    let bits = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(0x7fff_ffff));
    let size = _mm256_max_epi32(_mm256_sub_epi32(_mm256_srli_epi32::<23>(bits), _mm256_set1_epi32(127)), least);
    let zero = _mm256_cmpeq_epi32(bits, _mm256_setzero_si256());
    let (low, high) = (_mm256_set1_epi32(LEAST), _mm256_set1_epi32(GREATEST));
    let uncommon = _mm256_or_si256(_mm256_cmpgt_epi32(low, size), _mm256_cmpgt_epi32(size, high));
    (_mm256_blendv_epi8(size, _mm256_set1_epi32(ZERO), zero), _mm256_andnot_si256(zero, uncommon))
}

/// Rows that can be multiplied here. None if some numbers are not common.
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn wide_rows(factor: Factor, bits: &Bits<16>) -> Option<WideRows> {
    let mut rows = WideRows { values: [[0.0; DEPTH]; 16], exponents: [[0; DEPTH]; 16] };
    let mut any = _mm256_setzero_si256();
    for row in 0..16 {
        for first in [0, 8] {
            let values = widen(factor, &bits[row], first);
            let (exponents, uncommon) = exponents(factor, values);
            any = _mm256_or_si256(any, uncommon);
            let (to, to_exponents) =
                (&mut rows.values[row][first..first + 8], &mut rows.exponents[row][first..first + 8]);
            // SAFETY: both have room for eight numbers of 32 bits.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), values);
                _mm256_storeu_si256(to_exponents.as_mut_ptr().cast(), exponents);
            }
        }
    }
    (_mm256_testz_si256(any, any) == 1).then_some(rows)
}

/// Rows for columns.
#[target_feature(enable = "avx2")]
#[inline]
fn transpose(rows: [__m256; 8]) -> [__m256; 8] {
    let low = |i: usize| _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    let high = |i: usize| _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    let pairs = [low(0), high(0), low(2), high(2), low(4), high(4), low(6), high(6)];
    let even = |i: usize| _mm256_shuffle_ps::<0x44>(pairs[i], pairs[i + 2]);
    let odd = |i: usize| _mm256_shuffle_ps::<0xee>(pairs[i], pairs[i + 2]);
    let fours = [even(0), odd(0), even(1), odd(1), even(4), odd(4), even(5), odd(5)];
    let left = |i: usize| _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
    let right = |i: usize| _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
    [left(0), left(1), left(2), left(3), right(0), right(1), right(2), right(3)]
}

/// Adds the product with eight columns to the sums. False if these, or some factors, are not common: nothing is done then.
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn multiply_add_wide(factor: Factor, a: &WideRows, columns: &Bits<8>, sums: &mut [[f32; 8]; 16]) -> bool {
    let (mut values, mut of_values) = ([_mm256_setzero_ps(); DEPTH], [_mm256_setzero_si256(); DEPTH]);
    let mut any = _mm256_setzero_si256();
    for first in [0, 8] {
        let mut part = [_mm256_setzero_ps(); 8];
        for column in 0..8 {
            part[column] = widen(factor, &columns[column], first);
        }
        let part = transpose(part);
        for k in 0..8 {
            let (exponents, uncommon) = exponents(factor, part[k]);
            (values[first + k], of_values[first + k]) = (part[k], exponents);
            any = _mm256_or_si256(any, uncommon);
        }
    }
    let (mut before, of_infinite) = ([_mm256_setzero_ps(); 16], _mm256_set1_epi32(255));
    let field = |sum: __m256| _mm256_and_si256(_mm256_srli_epi32::<23>(_mm256_castps_si256(sum)), of_infinite);
    for row in 0..16 {
        // SAFETY: a row has eight numbers.
        before[row] = unsafe { _mm256_loadu_ps(sums[row].as_ptr()) };
        any = _mm256_or_si256(any, _mm256_cmpeq_epi32(field(before[row]), of_infinite));
    }
    if _mm256_testz_si256(any, any) == 0 {
        return false;
    }
    let (bias, tiny) = (_mm256_set1_epi32(127), _mm256_set1_epi32(TINY));
    let mask = _mm256_castsi256_pd(_mm256_set1_epi64x(!0x1fff_ffff));
    for row in 0..16 {
        let c = before[row];
        let mut largest = _mm256_sub_epi32(field(c), bias);
        for k in 0..DEPTH {
            let exponent = _mm256_add_epi32(_mm256_set1_epi32(a.exponents[row][k]), of_values[k]);
            largest = _mm256_max_epi32(largest, exponent);
        }
        // What is kept is a multiple of the unit, and less than 2^(KEPT + 2) of them.
        let kept = _mm256_sub_epi32(_mm256_max_epi32(largest, tiny), _mm256_set1_epi32(KEPT));
        let scale = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_sub_epi32(bias, kept)));
        let unit = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(bias, kept)));
        let mut products = _mm256_setzero_si256();
        for k in 0..DEPTH {
            let product = _mm256_mul_ps(_mm256_set1_ps(a.values[row][k]), values[k]);
            products = _mm256_add_epi32(products, _mm256_cvttps_epi32(_mm256_mul_ps(product, scale)));
        }
        let cut_c = _mm256_cvttps_epi32(_mm256_mul_ps(c, scale));
        // The sum is exact in f64. Cut to 24 bits it is in f32; none is subnormal, but it may become infinite.
        let half = |products: __m128i, c: __m128i| {
            _mm256_cvtpd_ps(_mm256_and_pd(_mm256_add_pd(_mm256_cvtepi32_pd(products), _mm256_cvtepi32_pd(c)), mask))
        };
        let low = half(_mm256_castsi256_si128(products), _mm256_castsi256_si128(cut_c));
        let high = half(_mm256_extracti128_si256::<1>(products), _mm256_extracti128_si256::<1>(cut_c));
        let cut = _mm256_mul_ps(_mm256_set_m128(high, low), unit);
        let alone = _mm256_add_ps(c, _mm256_setzero_ps());
        let sum = _mm256_blendv_ps(alone, cut, _mm256_castsi256_ps(_mm256_cmpgt_epi32(largest, tiny)));
        // SAFETY: a row has room for eight numbers.
        unsafe { _mm256_storeu_ps(sums[row].as_mut_ptr(), sum) };
    }
    true
}
