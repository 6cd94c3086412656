//! Products of halves of common sizes with AVX2, eight columns at a time.
//!
//! The product of two halves is exact in f32, even after scaling by a power of two. The scale makes the last bit to
//! keep a one. A conversion to an integer then cuts the rest.

use super::{Before, Bits, DEPTH, KEPT, Sums, ZERO};
use crate::program::Factor;
use std::arch::x86_64::*;

/// The smallest exponent of common bf16 factors. Their products are normal f32 numbers, with and without the scale.
const LEAST: i16 = -49;
/// The largest exponent of common bf16 factors.
const GREATEST: i16 = 60;
/// If the largest exponent of a sum is at most this, all its products of common factors are zeros.
pub(super) const TINY: i32 = -100;

/// Sixteen rows of a first factor as f32, and their exponents, in the order of [`set_rows`].
#[derive(Clone, Debug)]
pub(crate) struct WideRows {
    pub values: [f32; 16 * DEPTH],
    pub exponents: [i32; 8 * DEPTH],
}

impl WideRows {
    /// Creates rows of zeros.
    pub fn new() -> Self {
        Self { values: [0.0; 16 * DEPTH], exponents: [0; 8 * DEPTH] }
    }
}

/// Returns whether this CPU has the features that the functions here need.
pub(super) fn has_wide() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx2") && has!("f16c")
}

/// Loads sixteen halves.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load(bits: &[u16; DEPTH]) -> __m256i {
    let (low, high) = bits.split_at(8);
    // SAFETY: each load reads the sixteen bytes of eight halves. There are two loads because there were two stores.
    unsafe { _mm256_set_m128i(_mm_loadu_si128(high.as_ptr().cast()), _mm_loadu_si128(low.as_ptr().cast())) }
}

/// Widens eight halves to f32.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn widen(factor: Factor, bits: __m128i) -> __m256 {
    match factor {
        Factor::Bf16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))),
        _ => _mm256_cvtph_ps(bits),
    }
}

/// Returns the exponents of sixteen halves, and a mask of the halves that are not common. Subnormals have the smallest
/// exponent.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn exponents(factor: Factor, bits: __m256i) -> (__m256i, __m256i) {
    let size = _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff));
    let (field, bias, least, greatest) = match factor {
        Factor::Bf16 => (_mm256_srli_epi16::<7>(size), 127, LEAST, GREATEST),
        _ => (_mm256_srli_epi16::<10>(size), 15, -14, 15),
    };
    let exponent = _mm256_sub_epi16(_mm256_max_epi16(field, _mm256_set1_epi16(1)), _mm256_set1_epi16(bias));
    let zero = _mm256_cmpeq_epi16(size, _mm256_setzero_si256());
    let below = _mm256_cmpgt_epi16(_mm256_set1_epi16(least), exponent);
    let uncommon = _mm256_or_si256(below, _mm256_cmpgt_epi16(exponent, _mm256_set1_epi16(greatest)));
    let exponent = _mm256_blendv_epi8(exponent, _mm256_set1_epi16(ZERO as i16), zero);
    (exponent, _mm256_andnot_si256(zero, uncommon))
}

/// Prepares rows for multiplication. Returns false if some numbers are not common.
///
/// Values are stored by row and depth. Exponents are stored for pairs of rows, with the second row in the upper halves.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn set_rows(rows: &mut WideRows, factor: Factor, bits: &Bits<16>) -> bool {
    let mut any = _mm256_setzero_si256();
    for pair in 0..8 {
        let [first, second] = [2 * pair, 2 * pair + 1].map(|row| {
            let bits = load(&bits[row]);
            let (exponents, uncommon) = exponents(factor, bits);
            any = _mm256_or_si256(any, uncommon);
            let values = [_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits)];
            for (to, bits) in rows.values[row * DEPTH..][..DEPTH].chunks_exact_mut(8).zip(values) {
                // SAFETY: there is room for eight numbers.
                unsafe { _mm256_storeu_ps(to.as_mut_ptr(), widen(factor, bits)) };
            }
            exponents
        });
        let (even, odd) = (_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second));
        let parts = [_mm256_permute2x128_si256::<0x20>(even, odd), _mm256_permute2x128_si256::<0x31>(even, odd)];
        for (to, part) in rows.exponents[pair * DEPTH..][..DEPTH].chunks_exact_mut(8).zip(parts) {
            // SAFETY: there is room for eight pairs.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), part) };
        }
    }
    _mm256_testz_si256(any, any) == 1
}

/// Transposes eight columns with sixteen steps of depth. Each result has a step of the first eight in its lower half,
/// and the step eight later in its upper half.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn transpose(columns: [__m256i; 8]) -> [__m256i; 8] {
    let low = |i: usize| _mm256_unpacklo_epi16(columns[i], columns[i + 1]);
    let high = |i: usize| _mm256_unpackhi_epi16(columns[i], columns[i + 1]);
    let twos = [low(0), low(2), low(4), low(6), high(0), high(2), high(4), high(6)];
    let low = |i: usize| _mm256_unpacklo_epi32(twos[i], twos[i + 1]);
    let high = |i: usize| _mm256_unpackhi_epi32(twos[i], twos[i + 1]);
    let fours = [low(0), low(2), high(0), high(2), low(4), low(6), high(4), high(6)];
    let low = |i: usize| _mm256_unpacklo_epi64(fours[i], fours[i + 1]);
    let high = |i: usize| _mm256_unpackhi_epi64(fours[i], fours[i + 1]);
    [low(0), high(0), low(2), high(2), low(4), high(4), low(6), high(6)]
}

/// Adds the product with eight columns to sums. Returns false and does nothing if some columns or sums are not common.
///
/// It is long because its parts share vectors that stay in registers.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn multiply_add_wide(
    factor: Factor,
    a: &WideRows,
    columns: &Bits<8>,
    before: Before<'_>,
    after: &mut Sums,
) -> bool {
    let mut any = _mm256_setzero_si256();
    // Both halves of a word have the exponent of its column, one for each row of a pair.
    let (mut values, mut value_exponents) = ([_mm256_setzero_ps(); DEPTH], [_mm256_setzero_si256(); DEPTH]);
    for (k, bits) in transpose(columns.each_ref().map(|column| load(column))).into_iter().enumerate() {
        let (exponents, uncommon) = exponents(factor, bits);
        any = _mm256_or_si256(any, uncommon);
        let (low, high) = (_mm256_unpacklo_epi16(exponents, exponents), _mm256_unpackhi_epi16(exponents, exponents));
        values[k] = widen(factor, _mm256_castsi256_si128(bits));
        values[k + 8] = widen(factor, _mm256_extracti128_si256::<1>(bits));
        value_exponents[k] = _mm256_permute2x128_si256::<0x20>(low, high);
        value_exponents[k + 8] = _mm256_permute2x128_si256::<0x31>(low, high);
    }
    let infinite_field = _mm256_set1_epi32(255);
    let field = |sum: __m256| _mm256_and_si256(_mm256_srli_epi32::<23>(_mm256_castps_si256(sum)), infinite_field);
    for part in before.iter().flat_map(|register| register.chunks_exact(8)) {
        // SAFETY: the chunk has eight numbers.
        let sum = unsafe { _mm256_loadu_ps(part.as_ptr().cast()) };
        any = _mm256_or_si256(any, _mm256_cmpeq_epi32(field(sum), infinite_field));
    }
    if _mm256_testz_si256(any, any) == 0 {
        return false;
    }
    let (bias, tiny) = (_mm256_set1_epi32(127), _mm256_set1_epi32(TINY));
    let mask = _mm256_castsi256_pd(_mm256_set1_epi64x(!0x1fff_ffff));
    let mut pair_largest = _mm256_setzero_si256();
    for row in 0..16 {
        let (even_register, odd_register) = (row / 8 * 2, row / 8 * 2 + 1);
        let lanes = row % 8 * 4..row % 8 * 4 + 4;
        // SAFETY: both ranges have four numbers.
        let c = unsafe {
            let (even, odd) = (&before[even_register][lanes.clone()], &before[odd_register][lanes.clone()]);
            _mm256_set_m128(_mm_loadu_ps(odd.as_ptr().cast()), _mm_loadu_ps(even.as_ptr().cast()))
        };
        let largest = if row % 2 == 0 {
            pair_largest = _mm256_set1_epi16(ZERO as i16);
            for (&own, &value_exponent) in a.exponents[row / 2 * DEPTH..][..DEPTH].iter().zip(&value_exponents) {
                pair_largest = _mm256_max_epi16(pair_largest, _mm256_add_epi16(_mm256_set1_epi32(own), value_exponent));
            }
            _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(pair_largest))
        } else {
            _mm256_srai_epi32::<16>(pair_largest)
        };
        let largest = _mm256_max_epi32(largest, _mm256_sub_epi32(field(c), bias));
        // Everything kept is a multiple of the unit, and less than 2^(KEPT + 2) units.
        let kept = _mm256_sub_epi32(_mm256_max_epi32(largest, tiny), _mm256_set1_epi32(KEPT));
        let scale = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_sub_epi32(bias, kept)));
        let unit = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(bias, kept)));
        let mut products = _mm256_setzero_si256();
        for (&own, &value) in a.values[row * DEPTH..][..DEPTH].iter().zip(&values) {
            let product = _mm256_mul_ps(_mm256_set1_ps(own), value);
            products = _mm256_add_epi32(products, _mm256_cvttps_epi32(_mm256_mul_ps(product, scale)));
        }
        let cut_c = _mm256_cvttps_epi32(_mm256_mul_ps(c, scale));
        // The sum is exact in f64. It is cut to 24 bits, which fit f32. It is never subnormal, but it may become
        // infinite.
        let half = |products: __m128i, c: __m128i| {
            _mm256_cvtpd_ps(_mm256_and_pd(_mm256_add_pd(_mm256_cvtepi32_pd(products), _mm256_cvtepi32_pd(c)), mask))
        };
        let low = half(_mm256_castsi256_si128(products), _mm256_castsi256_si128(cut_c));
        let high = half(_mm256_extracti128_si256::<1>(products), _mm256_extracti128_si256::<1>(cut_c));
        let cut = _mm256_mul_ps(_mm256_set_m128(high, low), unit);
        let alone = _mm256_add_ps(c, _mm256_setzero_ps());
        let sum = _mm256_blendv_ps(alone, cut, _mm256_castsi256_ps(_mm256_cmpgt_epi32(largest, tiny)));
        // SAFETY: both ranges have room for four numbers.
        unsafe {
            _mm_storeu_ps(after[even_register][lanes.clone()].as_mut_ptr().cast(), _mm256_castps256_ps128(sum));
            _mm_storeu_ps(after[odd_register][lanes].as_mut_ptr().cast(), _mm256_extractf128_ps::<1>(sum));
        }
    }
    true
}
