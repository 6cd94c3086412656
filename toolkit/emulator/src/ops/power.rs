//! Powers of two for 32 lanes with AVX-512, as four independent vectors of f64.

use crate::lanes::{File, LaneOp, Lanes, Registers, Slots};
use crate::number::POWER_SERIES;
use crate::vectors::has_avx512;
use std::arch::x86_64::*;

/// Returns `ex2.approx`, with the same bits as [`exp2`](crate::number::exp2). `flushes` treats subnormals as zeros.
/// `None` without AVX-512.
pub(super) fn exp2_of_lanes(flushes: bool) -> Option<LaneOp> {
    if !has_avx512() {
        return None;
    }
    let operation = if flushes { powers::<true> } else { powers::<false> };
    // SAFETY: `has_avx512` has just found every feature that the function is compiled for.
    Some(unsafe { LaneOp::new(operation, File::Words) })
}

#[target_feature(enable = "avx512f")]
fn powers<const FLUSHES: bool>(registers: &mut Registers, slots: Slots) {
    let source = &registers.words[slots.a as usize];
    let flush = |value: __m512| {
        let size = _mm512_abs_ps(value);
        let is_small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, _mm512_set1_ps(f32::MIN_POSITIVE));
        let is_small = if FLUSHES { is_small } else { 0 };
        let bits = _mm512_castps_si512(value);
        _mm512_castsi512_ps(_mm512_mask_and_epi32(bits, is_small, bits, _mm512_set1_epi32(i32::MIN)))
    };
    // SAFETY: the range has 64 of the 128 bytes of a register's lanes.
    let load = |from: usize| flush(unsafe { _mm512_loadu_ps(source[from..from + 16].as_ptr().cast()) });
    let values = [load(0), load(16)];
    let [mut wholes, mut rests] = [[_mm512_setzero_pd(); 4]; 2];
    // Adding this to a number leaves the nearest whole number in the last bits.
    let large = _mm512_set1_pd(1.5 * (1u64 << 52) as f64);
    for quarter in 0..4 {
        // Beyond these bounds f32 has only zeros and infinities.
        let bounded = _mm512_max_ps(values[quarter / 2], _mm512_set1_ps(-200.0));
        let bounded = _mm512_min_ps(bounded, _mm512_set1_ps(200.0));
        let halves = _mm512_castps_pd(bounded);
        let half = if quarter % 2 == 0 { _mm512_castpd512_pd256(halves) } else { _mm512_extractf64x4_pd::<1>(halves) };
        let bounded = _mm512_cvtps_pd(_mm256_castpd_ps(half));
        wholes[quarter] = _mm512_add_pd(bounded, large);
        rests[quarter] = _mm512_sub_pd(bounded, _mm512_sub_pd(wholes[quarter], large));
    }
    let mut powers = [_mm512_set1_pd(POWER_SERIES[13]); 4];
    for i in (0..13).rev() {
        for quarter in 0..4 {
            powers[quarter] = _mm512_fmadd_pd(powers[quarter], rests[quarter], _mm512_set1_pd(POWER_SERIES[i]));
        }
    }
    let narrow = |quarter: usize| {
        let scale = _mm512_add_epi64(
            _mm512_slli_epi64::<52>(_mm512_castpd_si512(wholes[quarter])),
            _mm512_set1_epi64(1023 << 52),
        );
        _mm256_castps_pd(_mm512_cvtpd_ps(_mm512_mul_pd(powers[quarter], _mm512_castsi512_pd(scale))))
    };
    let mut result = Lanes([0; 32]);
    for half in 0..2 {
        let lower = _mm512_castpd256_pd512(narrow(2 * half));
        let both = _mm512_castpd_ps(_mm512_insertf64x4::<1>(lower, narrow(2 * half + 1)));
        let value = values[half];
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
        let both = flush(_mm512_mask_add_ps(both, is_nan, value, value));
        // SAFETY: the range has 64 of the 128 bytes of a register's lanes.
        unsafe { _mm512_storeu_ps(result[16 * half..16 * half + 16].as_mut_ptr().cast(), both) };
    }
    registers.words[slots.d as usize] = result;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{exp2, flush};

    #[test]
    fn all_lanes_match_the_scalar_power() {
        let Some(ops) = exp2_of_lanes(false).zip(exp2_of_lanes(true)) else { return };
        let steps = (0..1 << 20).map(|step: u32| step.wrapping_mul(4099));
        let near = (0..1 << 18).map(|step| ((step as f32 - 131_072.0) / 800.0).to_bits());
        let ends = [0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x7f80_0001, 0xffc0_0000, 0, 1 << 31, 1, 0x8000_0001];
        let inputs: Vec<u32> = steps.chain(near).chain(ends).collect();
        for chunk in inputs.chunks(32) {
            let lanes = Lanes(std::array::from_fn(|lane| chunk[lane % chunk.len()]));
            let mut registers = Registers { words: vec![lanes; 3], ..Registers::default() };
            ops.0.run(&mut registers, Slots { d: 1, a: 0, b: 0, c: 0 }, !0);
            ops.1.run(&mut registers, Slots { d: 2, a: 0, b: 0, c: 0 }, !0);
            for (lane, &bits) in lanes.iter().enumerate() {
                let value = f32::from_bits(bits);
                assert_eq!(registers.words[1][lane], exp2(value).to_bits(), "{value:e}");
                assert_eq!(registers.words[2][lane], flush(exp2(flush(value))).to_bits(), "{value:e}, flushed");
            }
        }
    }
}
