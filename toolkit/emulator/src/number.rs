//! Floating-point conversions and corner cases as PTX defines them, written without branches so that they vectorise.

use half::{bf16, f16};

/// Converts f16 to f32, exactly. A NaN stays a NaN.
#[inline(always)]
pub(crate) fn f16_to_f32(value: f16) -> f32 {
    let bits = u32::from(value.to_bits());
    // These bits, read as an f32, are 2^112 times too small. This includes subnormals.
    let scaled = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | (bits & 0x8000) << 16)
}

/// Converts f32 to f16, rounding to nearest even. A NaN becomes the canonical 0x7fff.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> f16 {
    let bits = value.to_bits();
    let size = bits & 0x7fff_ffff;
    let sign = (bits >> 16) & 0x8000;
    // Adding one half aligns the bits of a subnormal result with the end of the sum's mantissa.
    let tiny = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let normal = size.wrapping_add(0xc800_0fff).wrapping_add((size >> 13) & 1) >> 13;
    let finite = if size < 0x3880_0000 { tiny } else { normal };
    let rounded = if size >= 0x4780_0000 { 0x7c00 } else { finite } | sign;
    f16::from_bits(if size > 0x7f80_0000 { 0x7fff } else { rounded as u16 })
}

/// Converts f32 to f16, rounding toward zero.
#[inline(always)]
pub(crate) fn f32_to_f16_rz(value: f32) -> f16 {
    let nearest = f32_to_f16(value);
    let away = value.is_finite() && f16_to_f32(nearest).abs() > value.abs();
    f16::from_bits(if away { nearest.to_bits() - 1 } else { nearest.to_bits() })
}

/// Converts bf16 to f32, exactly.
#[inline(always)]
pub(crate) fn bf16_to_f32(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// Converts f32 to bf16, rounding to nearest even. A NaN becomes the canonical 0x7fff.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    bf16::from_bits(if value.is_nan() { 0x7fff } else { rounded as u16 })
}

/// Converts f32 to bf16, rounding toward zero.
#[inline(always)]
pub(crate) fn f32_to_bf16_rz(value: f32) -> bf16 {
    bf16::from_bits(if value.is_nan() { 0x7fff } else { (value.to_bits() >> 16) as u16 })
}

/// Coefficients of the power series of 2^x, which are ln(2)^n / n!. Between -1/2 and 1/2 the series is as precise as
/// f64.
pub(crate) const POWER_SERIES: [f64; 14] = [
    1.0,
    std::f64::consts::LN_2,
    0.24022650695910072,
    0.05550410866482158,
    0.009618129107628477,
    0.0013333558146428443,
    0.0001540353039338161,
    1.5252733804059841e-05,
    1.321548679014431e-06,
    1.01780860092397e-07,
    7.054911620801123e-09,
    4.4455382718708116e-10,
    2.5678435993488206e-11,
    1.3691488853904128e-12,
];

/// Returns two to the power of a number, computed in f64 and rounded once.
#[inline(always)]
pub(crate) fn exp2(value: f32) -> f32 {
    // Beyond these bounds f32 has only zeros and infinities.
    let wide = f64::from(value);
    let bounded = if wide < -200.0 { -200.0 } else { wide };
    let bounded = if bounded > 200.0 { 200.0 } else { bounded };
    // A number this large has no bits for fractions. Its low bits are the nearest whole number.
    let whole = bounded + (1.5 * (1u64 << 52) as f64);
    let rest = bounded - (whole - 1.5 * (1u64 << 52) as f64);
    let mut power = POWER_SERIES[13];
    for i in (0..13).rev() {
        power = power.mul_add(rest, POWER_SERIES[i]);
    }
    let scale = f64::from_bits((whole.to_bits() << 52).wrapping_add(1023 << 52));
    if value.is_nan() { value + value } else { (power * scale) as f32 }
}

/// Flushes a subnormal to a zero of the same sign.
#[inline(always)]
pub(crate) fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { f32::from_bits(value.to_bits() & 0x8000_0000) } else { value }
}

/// Converts f64 to f32 and sets the last bit if the result is inexact (round to odd). A second rounding is then
/// correct.
#[inline(always)]
pub(crate) fn f64_to_f32_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || !value.is_finite() || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    // The conversion chose the even neighbour. The odd one is on the other side of the value.
    let up = back.abs() < value.abs();
    f32::from_bits(if up { nearest.to_bits() + 1 } else { nearest.to_bits() - 1 })
}

/// Returns a * b + c of halves, rounded to odd. Rounding this to a half gives the fused result.
#[inline(always)]
pub(crate) fn fused(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c)); // exact: at most 22 bits
    let sum = product + c;
    let part = sum - product;
    let lost = (product - (sum - part)) + (c - part);
    if lost == 0.0 || !sum.is_finite() || sum.to_bits() & 1 == 1 {
        return f64_to_f32_odd(sum);
    }
    let up = (lost > 0.0) == (sum > 0.0);
    f64_to_f32_odd(f64::from_bits(if up { sum.to_bits() + 1 } else { sum.to_bits() - 1 }))
}

macro_rules! extremes {
    ($min:ident, $max:ident, $type:ty) => {
        /// Returns the smaller value. A NaN loses, and -0 is smaller than 0.
        #[inline(always)]
        pub(crate) fn $min(a: $type, b: $type) -> $type {
            let smaller = if a < b || (a == b && a.is_sign_negative()) { a } else { b };
            let number = if b.is_nan() { a } else { smaller };
            if a.is_nan() && b.is_nan() { <$type>::NAN } else { number }
        }
        /// Returns the larger value. A NaN loses, and 0 is larger than -0.
        #[inline(always)]
        pub(crate) fn $max(a: $type, b: $type) -> $type {
            let larger = if a > b || (a == b && b.is_sign_negative()) { a } else { b };
            let number = if b.is_nan() { a } else { larger };
            if a.is_nan() && b.is_nan() { <$type>::NAN } else { number }
        }
    };
}
extremes!(min_f32, max_f32, f32);
extremes!(min_f64, max_f64, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let value = f16::from_bits(bits);
            let (ours, theirs) = (f16_to_f32(value), value.to_f32());
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
            assert!(value.is_nan() || f32_to_f16(ours).to_bits() == bits, "{bits:#x}");
        }
    }

    #[test]
    fn floats_round_as_the_half_crate_does() {
        for step in 0..1 << 20 {
            let value = f32::from_bits((step as u32).wrapping_mul(4099));
            let (h, b) = (f32_to_f16(value), f32_to_bf16(value));
            if value.is_nan() {
                assert!(h.is_nan() && b.is_nan());
                continue;
            }
            assert_eq!(h.to_bits(), f16::from_f32(value).to_bits(), "{value:e}");
            assert_eq!(b.to_bits(), bf16::from_f32(value).to_bits(), "{value:e}");
            assert!(f16_to_f32(f32_to_f16_rz(value)).abs() <= value.abs());
        }
    }

    #[test]
    fn powers_of_two_are_rounded_once() {
        let steps = (0..1 << 20).map(|step: u32| f32::from_bits(step.wrapping_mul(4099)));
        let near = (0..1 << 18).map(|step| (step as f32 - 131_072.0) / 800.0);
        for value in steps.chain(near).chain([f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 127.0, -149.0, -150.0]) {
            let (found, wanted) = (exp2(value), f64::from(value).exp2() as f32);
            assert!(found.to_bits() == wanted.to_bits() || value.is_nan() && found.is_nan(), "{value:e}");
        }
    }

    #[test]
    fn extremes_prefer_numbers_and_order_zeros() {
        assert_eq!(min_f32(f32::NAN, 1.0), 1.0);
        assert_eq!(max_f32(1.0, f32::NAN), 1.0);
        assert!(min_f32(f32::NAN, f32::NAN).is_nan());
        assert!(min_f32(0.0, -0.0).is_sign_negative() && min_f32(-0.0, 0.0).is_sign_negative());
        assert!(max_f32(0.0, -0.0).is_sign_positive() && max_f32(-0.0, 0.0).is_sign_positive());
    }

    #[test]
    fn fused_does_not_round_twice() {
        // The first sum is a tie for f16, which rounds up to even. The second is just above the tie.
        let (a, b) = (1.0 + 1.0 / 1024.0, 1.0);
        let tie = fused(a, b, 1.0 / 2048.0);
        let above = fused(a, b, 1.0 / 2048.0 + f32::EPSILON);
        assert_eq!(f32_to_f16(tie).to_bits(), 0x3c02);
        assert_eq!(f32_to_f16(above).to_bits(), 0x3c02);
        assert_eq!(f32_to_f16(fused(f16_to_f32(f16::MAX), 1.0, f16_to_f32(f16::MAX))), f16::INFINITY);
    }
}
