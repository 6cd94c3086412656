//! Products of halves of common sizes with AVX-512, four columns of four rows at a time. Otherwise as in
//! [`wide`](super::wide).
//!
//! A vector has sixteen numbers, which are the even or the odd columns of four rows, like a register of sums. Both
//! factors are prepared for this layout in advance and cached, because the next products often reuse one of them.

use super::wide::{TINY, exponents, has_wide, load, transpose};
use super::{Before, Bits, DEPTH, KEPT, Sums, ZERO};
use crate::program::Factor;
use std::arch::x86_64::*;

/// Sixteen rows of a first factor, as vectors by four rows and depth. Each vector repeats the number of each row four
/// times.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct WiderRows {
    values: [[f32; 16]; 4 * DEPTH],
    /// Their exponents, in both halves of a word.
    exponents: [[u32; 16]; 4 * DEPTH],
}

impl WiderRows {
    /// Creates rows of zeros.
    pub fn new() -> Self {
        Self { values: [[0.0; 16]; 4 * DEPTH], exponents: [[0; 16]; 4 * DEPTH] }
    }
}

/// Eight columns of a second factor, by depth.
#[derive(Clone, Debug)]
pub(crate) struct WiderColumns {
    /// The even columns, then the odd ones.
    values: [[f32; 8]; DEPTH],
    /// Their exponents, in column order.
    exponents: [[u16; 8]; DEPTH],
}

impl WiderColumns {
    /// Creates columns of zeros.
    pub fn new() -> Self {
        Self { values: [[0.0; 8]; DEPTH], exponents: [[0; 8]; DEPTH] }
    }
}

/// Returns whether this CPU has the features that the functions here need.
pub(super) fn has_wider() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has_wide() && has!("avx512f") && has!("avx512bw")
}

/// Widens sixteen halves to f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn widen(factor: Factor, bits: __m256i) -> __m512 {
    match factor {
        Factor::Bf16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))),
        _ => _mm512_cvtph_ps(bits),
    }
}

/// Loads eight halves from each of two rows.
#[target_feature(enable = "avx2")]
#[inline]
fn load_two(rows: &[[u16; DEPTH]], from: usize) -> __m256i {
    // SAFETY: each load reads the sixteen bytes of eight halves.
    let load = |row: usize| unsafe { _mm_loadu_si128(rows[row][from..from + 8].as_ptr().cast()) };
    _mm256_set_m128i(load(1), load(0))
}

/// Prepares rows for multiplication. Returns false if some numbers are not common.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw")]
pub(super) fn set_rows(rows: &mut WiderRows, factor: Factor, bits: &Bits<16>) -> bool {
    let mut any = _mm256_setzero_si256();
    for (index, four) in bits.chunks_exact(4).enumerate() {
        for from in [0, 8] {
            let halves = [load_two(&four[..2], from), load_two(&four[2..], from)];
            let [(low, low_uncommon), (high, high_uncommon)] = halves.map(|bits| exponents(factor, bits));
            any = _mm256_or_si256(any, _mm256_or_si256(low_uncommon, high_uncommon));
            let row_exponents = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            // Four steps of depth of each row.
            let [low, high] = halves.map(|bits| widen(factor, bits));
            let parts =
                [_mm512_shuffle_f32x4::<0b10_00_10_00>(low, high), _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high)];
            for step in 0..8 {
                let value = _mm512_permutevar_ps(parts[step / 4], _mm512_set1_epi32(step as i32 % 4));
                let exponent = _mm512_shuffle_epi8(row_exponents, _mm512_set1_epi16(step as i16 * 0x0202 + 0x0100));
                let place = index * DEPTH + from + step;
                // SAFETY: both have room for sixteen numbers.
                unsafe {
                    _mm512_storeu_ps(rows.values[place].as_mut_ptr(), value);
                    _mm512_storeu_si512(rows.exponents[place].as_mut_ptr().cast(), exponent);
                }
            }
        }
    }
    _mm256_testz_si256(any, any) == 1
}

/// Prepares columns for multiplication. `bits` has the even columns first. Returns false if some numbers are not
/// common.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw")]
pub(super) fn set_columns(columns: &mut WiderColumns, factor: Factor, bits: &Bits<8>) -> bool {
    let mut any = _mm256_setzero_si256();
    let order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    for (k, bits) in transpose(bits.each_ref().map(|column| load(column))).into_iter().enumerate() {
        let (exponents, uncommon) = exponents(factor, bits);
        any = _mm256_or_si256(any, uncommon);
        let values = _mm512_castps_pd(widen(factor, bits));
        let values = [_mm512_castpd512_pd256(values), _mm512_extractf64x4_pd::<1>(values)];
        let exponents = _mm256_shuffle_epi8(exponents, _mm256_set_m128i(order, order));
        let exponents = [_mm256_castsi256_si128(exponents), _mm256_extracti128_si256::<1>(exponents)];
        for (half, (values, exponents)) in values.into_iter().zip(exponents).enumerate() {
            // SAFETY: both have room for eight numbers.
            unsafe {
                _mm256_storeu_ps(columns.values[k + 8 * half].as_mut_ptr(), _mm256_castpd_ps(values));
                _mm_storeu_si128(columns.exponents[k + 8 * half].as_mut_ptr().cast(), exponents);
            }
        }
    }
    _mm256_testz_si256(any, any) == 1
}

/// Returns the largest exponents of the products of four rows with eight columns. The upper halves belong to the odd
/// columns.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn largest_of(rows: &[[u32; 16]], columns: &[[u16; 8]; DEPTH]) -> __m512i {
    let mut largest = _mm512_set1_epi16(ZERO as i16);
    for (row, column) in rows.iter().zip(columns) {
        // SAFETY: the loads read sixteen words, and eight halves of a word.
        let (row, column) =
            unsafe { (_mm512_loadu_si512(row.as_ptr().cast()), _mm_loadu_si128(column.as_ptr().cast())) };
        largest = _mm512_max_epi16(largest, _mm512_add_epi16(row, _mm512_broadcast_i32x4(column)));
    }
    largest
}

/// Returns the sums of the products of four rows with the even or the odd columns. Each product is scaled and cut to an
/// integer.
#[target_feature(enable = "avx512f")]
#[inline]
fn products_of(rows: &[[f32; 16]], columns: &[[f32; 8]; DEPTH], first: usize, scale: __m512) -> __m512i {
    let mut products = _mm512_setzero_si512();
    for (row, column) in rows.iter().zip(columns) {
        // SAFETY: the loads read sixteen and four numbers.
        let (row, column) = unsafe { (_mm512_loadu_ps(row.as_ptr()), _mm_loadu_ps(column[first..first + 4].as_ptr())) };
        let product = _mm512_mul_ps(row, _mm512_broadcast_f32x4(column));
        products = _mm512_add_epi32(products, _mm512_cvttps_epi32(_mm512_mul_ps(product, scale)));
    }
    products
}

/// Adds the product of rows and columns to sums.
///
/// Returns false if some sums are not common, or if one is too large for an integer here. The contents of `after` are
/// then unspecified.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw")]
pub(super) fn multiply_add_wider(a: &WiderRows, b: &WiderColumns, before: Before<'_>, after: &mut Sums) -> bool {
    let (infinite_field, bias, tiny) = (_mm512_set1_epi32(255), _mm512_set1_epi32(127), _mm512_set1_epi32(TINY));
    let (mut infinite, mut too_large) = (0, 0);
    for index in 0..4 {
        let steps = index * DEPTH..(index + 1) * DEPTH;
        let pair_largest = largest_of(&a.exponents[steps.clone()], &b.exponents);
        let even_largest = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pair_largest));
        for (odd, largest) in [even_largest, _mm512_srai_epi32::<16>(pair_largest)].into_iter().enumerate() {
            let (register, lanes) = (index / 2 * 2 + odd, index % 2 * 16..index % 2 * 16 + 16);
            let before = &before[register][lanes.clone()];
            // SAFETY: the range has sixteen numbers.
            let c = unsafe { _mm512_loadu_ps(before.as_ptr().cast()) };
            let field = _mm512_and_si512(_mm512_srli_epi32::<23>(_mm512_castps_si512(c)), infinite_field);
            infinite |= _mm512_cmpeq_epi32_mask(field, infinite_field);
            let largest = _mm512_max_epi32(largest, _mm512_sub_epi32(field, bias));
            // Everything kept is a multiple of the unit, and less than 2^(KEPT + 2) units.
            let kept = _mm512_sub_epi32(_mm512_max_epi32(largest, tiny), _mm512_set1_epi32(KEPT));
            let scale = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_sub_epi32(bias, kept)));
            let unit = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(bias, kept)));
            let products = products_of(&a.values[steps.clone()], &b.values, 4 * odd, scale);
            let cut_c = _mm512_cvttps_epi32(_mm512_mul_ps(c, scale));
            let sum = _mm512_add_epi32(products, cut_c);
            let wrong = _mm512_and_si512(_mm512_xor_si512(products, sum), _mm512_xor_si512(cut_c, sum));
            too_large |= _mm512_movepi8_mask(wrong) & 0x8888_8888_8888_8888;
            let cut = _mm512_cvt_roundepi32_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(sum);
            let alone = _mm512_add_ps(c, _mm512_setzero_ps());
            let large = _mm512_cmpgt_epi32_mask(largest, tiny);
            let sum = _mm512_mask_mul_ps(alone, large, cut, unit);
            // SAFETY: there is room for sixteen numbers.
            unsafe { _mm512_storeu_ps(after[register][lanes].as_mut_ptr().cast(), sum) };
        }
    }
    infinite == 0 && too_large == 0
}
