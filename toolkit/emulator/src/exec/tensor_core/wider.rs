//! The same as [`wide`](super::wide) by AVX-512: eight columns of two rows at a time.
//!
//! Of a vector's sixteen numbers the even ones belong to one row, and the odd ones to the row eight below.

use super::wide::{TINY, WideRows, exponents, has_wide, load, transpose};
use super::{Bits, DEPTH, KEPT, Sums, ZERO};
use crate::program::Factor;
use std::arch::x86_64::*;

/// Whether this CPU has what the functions here need.
pub(super) fn has_wider() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has_wide() && has!("avx512f") && has!("avx512bw")
}

/// Sixteen halves as f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn widen(factor: Factor, bits: __m256i) -> __m512 {
    match factor {
        Factor::Bf16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))),
        _ => _mm512_cvtph_ps(bits),
    }
}

/// The numbers of two vectors by turns: the first eight of each, and the others.
#[target_feature(enable = "avx512f")]
#[inline]
fn interleave(even: __m512i, odd: __m512i) -> [__m512i; 2] {
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    [low, high].map(|order| _mm512_permutex2var_epi32(even, order, odd))
}

/// Sets rows that can be multiplied here: values by row and depth, each beside that of the row eight below; exponents of four
/// rows at a time, a row, the next one, and those eight below. False if some numbers are not common.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw")]
pub(super) fn set_rows(rows: &mut WideRows, factor: Factor, bits: &Bits<16>) -> bool {
    let (mut any, mut packed) = (_mm256_setzero_si256(), [_mm512_setzero_si512(); 2]);
    for (row, values) in rows.values.chunks_exact_mut(2 * DEPTH).enumerate() {
        let both = [row, row + 8].map(|row| load(&bits[row]));
        let [own, below] = both.map(|bits| _mm512_castps_si512(widen(factor, bits)));
        for (to, part) in values.chunks_exact_mut(16).zip(interleave(own, below)) {
            // SAFETY: there is room for sixteen numbers.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), _mm512_castsi512_ps(part)) };
        }
        for (packed, bits) in packed.iter_mut().zip(both) {
            let (exponents, uncommon) = exponents(factor, bits);
            any = _mm256_or_si256(any, uncommon);
            let wide = _mm512_cvtepu16_epi32(exponents);
            // The exponents of an odd row are the upper halves.
            *packed = if row % 2 == 0 { wide } else { _mm512_or_si512(*packed, _mm512_slli_epi32::<16>(wide)) };
        }
        if row % 2 == 1 {
            let exponents = &mut rows.exponents[row / 2 * 2 * DEPTH..][..2 * DEPTH];
            for (to, part) in exponents.chunks_exact_mut(16).zip(interleave(packed[0], packed[1])) {
                // SAFETY: there is room for sixteen numbers.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), part) };
            }
        }
    }
    _mm256_testz_si256(any, any) == 1
}

/// Four sums of a row, four more, and those of the row eight below, as one vector.
#[target_feature(enable = "avx512f")]
#[inline]
fn load_sums(sums: &Sums, lanes: std::ops::Range<usize>) -> __m512 {
    let load = |register: usize| {
        // SAFETY: these are four numbers.
        unsafe { _mm_loadu_ps(sums[register][lanes.clone()].as_ptr()) }
    };
    let halves = [_mm256_set_m128(load(1), load(0)), _mm256_set_m128(load(3), load(2))];
    let [own, below] = halves.map(|half| _mm512_castps_si512(_mm512_castps256_ps512(half)));
    let [all, _] = interleave(own, below);
    _mm512_castsi512_ps(all)
}

/// Writes such sums.
#[target_feature(enable = "avx512f")]
#[inline]
fn store_sums(sums: &mut Sums, lanes: std::ops::Range<usize>, all: __m512) {
    let order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    let all = _mm512_permutexvar_ps(order, all);
    let parts = [
        _mm512_castps512_ps128(all),
        _mm512_extractf32x4_ps::<1>(all),
        _mm512_extractf32x4_ps::<2>(all),
        _mm512_extractf32x4_ps::<3>(all),
    ];
    for (register, part) in sums.iter_mut().zip(parts) {
        // SAFETY: there is room for four numbers.
        unsafe { _mm_storeu_ps(register[lanes.clone()].as_mut_ptr(), part) };
    }
}

/// Adds the product with eight columns to the sums. False if these, or some factors, are not common, or if a sum is too large
/// for the way that it is cut here: nothing is done then.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw")]
pub(super) fn multiply_add_wider(factor: Factor, a: &WideRows, columns: &Bits<8>, sums: &mut Sums) -> bool {
    // Each column twice, and its exponent four times.
    let (mut values, mut of_values) = ([_mm512_setzero_ps(); DEPTH], [_mm512_setzero_si512(); DEPTH]);
    let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    let four_times = _mm512_set4_epi32(0x0908_0908, 0x0908_0908, 0x0100_0100, 0x0100_0100);
    let mut any = _mm256_setzero_si256();
    for (k, bits) in transpose(columns.each_ref().map(|column| load(column))).into_iter().enumerate() {
        let (exponents, uncommon) = exponents(factor, bits);
        any = _mm256_or_si256(any, uncommon);
        let wide = _mm512_castps_si512(widen(factor, bits));
        let upper = _mm512_add_epi32(twice, _mm512_set1_epi32(8));
        values[k] = _mm512_castsi512_ps(_mm512_permutexvar_epi32(twice, wide));
        values[k + 8] = _mm512_castsi512_ps(_mm512_permutexvar_epi32(upper, wide));
        let spread = |half: __m128i| _mm512_shuffle_epi8(_mm512_cvtepu16_epi64(half), four_times);
        of_values[k] = spread(_mm256_castsi256_si128(exponents));
        of_values[k + 8] = spread(_mm256_extracti128_si256::<1>(exponents));
    }
    let of_infinite = _mm512_set1_epi32(255);
    let field = |sum: __m512| _mm512_and_si512(_mm512_srli_epi32::<23>(_mm512_castps_si512(sum)), of_infinite);
    let before: [__m512; 8] = std::array::from_fn(|row| load_sums(sums, row * 4..row * 4 + 4));
    let infinite = before.iter().fold(0, |any, &sum| any | _mm512_cmpeq_epi32_mask(field(sum), of_infinite));
    if _mm256_testz_si256(any, any) == 0 || infinite != 0 {
        return false;
    }
    let (bias, tiny) = (_mm512_set1_epi32(127), _mm512_set1_epi32(TINY));
    let (mut after, mut too_large, mut of_rows) = (before, 0, _mm512_setzero_si512());
    for (row, after) in after.iter_mut().enumerate() {
        let c = *after;
        let largest = if row % 2 == 0 {
            of_rows = _mm512_set1_epi16(ZERO as i16);
            for (pair, &of_value) in a.exponents[row * DEPTH..][..2 * DEPTH].chunks_exact(2).zip(&of_values) {
                // SAFETY: these are the eight bytes of two numbers.
                let own = _mm512_set1_epi64(unsafe { pair.as_ptr().cast::<i64>().read_unaligned() });
                of_rows = _mm512_max_epi16(of_rows, _mm512_add_epi16(own, of_value));
            }
            _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(of_rows))
        } else {
            _mm512_srai_epi32::<16>(of_rows)
        };
        let largest = _mm512_max_epi32(largest, _mm512_sub_epi32(field(c), bias));
        // What is kept is a multiple of the unit, and less than 2^(KEPT + 2) of them.
        let kept = _mm512_sub_epi32(_mm512_max_epi32(largest, tiny), _mm512_set1_epi32(KEPT));
        let scale = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_sub_epi32(bias, kept)));
        let unit = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(bias, kept)));
        let mut products = _mm512_setzero_si512();
        for (pair, &value) in a.values[row * 2 * DEPTH..][..2 * DEPTH].chunks_exact(2).zip(&values) {
            // SAFETY: these are the eight bytes of two numbers.
            let own = _mm512_set1_epi64(unsafe { pair.as_ptr().cast::<i64>().read_unaligned() });
            let product = _mm512_mul_ps(_mm512_castsi512_ps(own), value);
            products = _mm512_add_epi32(products, _mm512_cvttps_epi32(_mm512_mul_ps(product, scale)));
        }
        let cut_c = _mm512_cvttps_epi32(_mm512_mul_ps(c, scale));
        let sum = _mm512_add_epi32(products, cut_c);
        let wrong = _mm512_and_si512(_mm512_xor_si512(products, sum), _mm512_xor_si512(cut_c, sum));
        too_large |= _mm512_movepi8_mask(wrong) & 0x8888_8888_8888_8888;
        let cut = _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(sum);
        let alone = _mm512_add_ps(c, _mm512_setzero_ps());
        let large = _mm512_cmpgt_epi32_mask(largest, tiny);
        *after = _mm512_mask_mul_ps(alone, large, cut, unit);
    }
    if too_large == 0 {
        for (row, after) in after.into_iter().enumerate() {
            store_sums(sums, row * 4..row * 4 + 4, after);
        }
    }
    too_large == 0
}
