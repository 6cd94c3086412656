//! Keys and values in 8 bits. Host and device compute the same codes, to the bit.
//!
//! The elements of one head of one token share a scale, a half. An element is its code's number times the scale. The
//! scale is the smallest half for which no element exceeds the largest code's number times the scale. What is stored for a token therefore
//! depends only on that token.

/// An 8-bit number format.
pub trait EightBit {
    /// The largest number that has a code.
    const LARGEST: f32;

    /// Returns the code of the number nearest to `x`, or the even code if two are equally near. Numbers beyond the
    /// largest become the largest. NaN may get any code.
    fn encode(x: f32) -> u8;

    /// Returns the number of a code.
    fn decode(code: u8) -> f32;
}

/// Integers from -127 to 127.
#[derive(Clone, Copy)]
pub enum Int8 {}

/// FP8 e4m3: 4 bits of exponent, 3 of fraction, and no infinities.
#[derive(Clone, Copy)]
pub enum Fp8 {}

impl EightBit for Int8 {
    const LARGEST: f32 = 127.0;

    #[inline(always)]
    fn encode(x: f32) -> u8 {
        // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
        (bounded(x, Self::LARGEST) + 12_582_912.0).to_bits() as u8
    }

    #[inline(always)]
    fn decode(code: u8) -> f32 {
        f32::from(code as i8)
    }
}

impl EightBit for Fp8 {
    const LARGEST: f32 = 448.0;

    #[inline(always)]
    fn encode(x: f32) -> u8 {
        let sign = (x.to_bits() >> 24) & 0x80;
        let size = f32::from_bits(bounded(x, Self::LARGEST).to_bits() & 0x7fff_ffff);
        // Rounds to 3 fraction bits, which may carry into the exponent. The exponent's bias is 7 instead of 127.
        let bits = size.to_bits();
        let normal = ((bits + 0x7_ffff + ((bits >> 20) & 1)) >> 20).wrapping_sub(120 << 3);
        // Adding 2^14 rounds to a multiple of 2^-9, whose factor is then in the low bits.
        let subnormal = (size + 16_384.0).to_bits();
        let code = if size < 0.015_625 { subnormal } else { normal };
        (sign | code & 0x7f) as u8
    }

    #[inline(always)]
    fn decode(code: u8) -> f32 {
        // Exact for subnormal numbers too.
        let size = f32::from_bits(u32::from(code & 0x7f) << 20) * f32::from_bits((127 + 120) << 23);
        f32::from_bits(size.to_bits() | u32::from(code & 0x80) << 24)
    }
}

/// Clamps `x` to `-most..=most`. NaN stays NaN.
#[inline(always)]
fn bounded(x: f32, most: f32) -> f32 {
    // Not `clamp`, whose assertion costs time.
    let x = if x > most { most } else { x };
    if x < -most { -most } else { x }
}

/// Maps a float to an integer that orders floats by magnitude, with NaN above all. [`HeadScale::of`] takes the largest
/// one of a head.
#[inline(always)]
pub fn size(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

/// The scale of one head of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadScale {
    /// The scale as it is stored, a half.
    pub bits: u16,
    /// Factor of elements before they are encoded.
    pub inverse: f32,
}

impl HeadScale {
    /// Returns the scale of elements whose largest [`size()`] is `largest`. If an element is NaN, so is the scale.
    #[inline(always)]
    pub fn of<E: EightBit>(largest: u32) -> HeadScale {
        let least = f32::from_bits(largest) * (1.0 / E::LARGEST);
        let (bits, value) = half_above(least);
        HeadScale { bits, inverse: if value > 0.0 { 1.0 / value } else { 0.0 } }
    }
}

/// Returns the bits and the value of the smallest half that is at least `x`, which must not be negative. Beyond the
/// largest half, returns the largest.
#[inline(always)]
fn half_above(x: f32) -> (u16, f32) {
    const LARGEST: f32 = 65_504.0;
    const LEAST_NORMAL: f32 = 6.103_515_6e-5;
    const UNIT: f32 = 5.960_464_5e-8;
    if x.is_nan() {
        return (0x7e00, x);
    }
    if x >= LARGEST {
        return (0x7bff, LARGEST);
    }
    if x < LEAST_NORMAL {
        // A multiple of 2^-24.
        let units = x * (1.0 / UNIT);
        let whole = units as u32;
        let whole = if (whole as f32) < units { whole + 1 } else { whole };
        return (whole as u16, whole as f32 * UNIT);
    }
    // Rounds 13 fraction bits away. The exponent's bias is 15 instead of 127.
    let bits = (x.to_bits() + 0x1fff) & !0x1fff;
    (((bits >> 13) - (112 << 10)) as u16, f32::from_bits(bits))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// Returns the codes that have a number, sorted by number. `has_number` selects them.
    fn codes<E: EightBit>(has_number: impl Fn(u8) -> bool) -> Vec<(f32, u8)> {
        let mut codes: Vec<_> =
            (0..=255).filter(|&code| has_number(code)).map(|code| (E::decode(code), code)).collect();
        codes.sort_by(|a, b| a.0.total_cmp(&b.0));
        codes
    }

    /// Asserts that each number gets its code, and that numbers between neighbours and beyond the ends are rounded
    /// correctly.
    fn assert_rounds<E: EightBit>(codes: &[(f32, u8)]) {
        for &(number, code) in codes {
            assert_eq!(E::encode(number), code, "{number}");
        }
        for pair in codes.windows(2) {
            let [(low, low_code), (high, high_code)] = [pair[0], pair[1]];
            let middle = (low + high) / 2.0;
            let even = if low_code % 2 == 0 { low } else { high };
            for (x, want) in [(middle.next_down(), low), (middle, even), (middle.next_up(), high)] {
                assert_eq!(
                    E::decode(E::encode(x)),
                    want,
                    "{x} is between {low} and {high}, {low_code} and {high_code}"
                );
            }
        }
        for (x, want) in [(1e30, E::LARGEST), (f32::INFINITY, E::LARGEST), (f32::NEG_INFINITY, -E::LARGEST)] {
            assert_eq!(E::decode(E::encode(x)), want);
        }
    }

    #[test]
    fn numbers_go_to_the_nearest_code() {
        let integers = codes::<Int8>(|code| code != 0x80);
        assert!(integers.iter().map(|c| c.0).eq((-127..=127).map(|n| n as f32)));
        assert_rounds::<Int8>(&integers);
        let floats = codes::<Fp8>(|code| code & 0x7f != 0x7f && code != 0x80);
        assert_eq!((floats[0].0, floats[127].0, floats[252].0), (-448.0, 0.001_953_125, 448.0));
        assert_rounds::<Fp8>(&floats);
    }

    #[test]
    fn the_scale_is_the_smallest_sufficient_half() {
        let half = |bits| half::f16::from_bits(bits).to_f32();
        for i in 0..40_000 {
            let x = f32::from_bits(0x3280_0000 + i * 8_219);
            let (bits, value) = half_above(x);
            assert_eq!(half(bits), value, "{x}");
            assert!(value >= x.min(65_504.0), "{value} is below {x}");
            assert!(bits == 0 || half(bits - 1) < x, "{} would do for {x}", half(bits - 1));
        }
        assert_eq!(half_above(0.0), (0, 0.0));
        assert_eq!(half_above(1.0), (0x3c00, 1.0));
        assert_eq!(half_above(1e9), (0x7bff, 65_504.0));
        assert_eq!(half_above(1e-30), (1, 5.960_464_5e-8));
        assert!(half(half_above(f32::NAN).0).is_nan());
    }

    #[test]
    fn elements_are_within_half_a_step() {
        for i in 0..5_000u32 {
            let x: [f32; 3] = [0x9E37, 0x7F4A, 0x7C15].map(|factor| {
                let noise = i.wrapping_mul(factor).wrapping_mul(2_654_435_761);
                (noise as i32 as f32) * 2f32.powi(-(i as i32 % 40) - 10)
            });
            let largest = x.iter().map(|&x| size(x)).max().unwrap_or(0);
            let scale = HeadScale::of::<Int8>(largest);
            let step = half::f16::from_bits(scale.bits).to_f32();
            for x in x {
                let got = Int8::decode(Int8::encode(x * scale.inverse)) * step;
                assert!((got - x).abs() <= step * 0.500_1, "{x} became {got} in steps of {step}");
            }
            let scale = HeadScale::of::<Fp8>(largest);
            let step = half::f16::from_bits(scale.bits).to_f32();
            for x in x {
                let got = Fp8::decode(Fp8::encode(x * scale.inverse)) * step;
                // 3 fraction bits, or multiples of 2^-9 for small numbers.
                assert!(
                    (got - x).abs() <= (x.abs() / 16.0).max(step / 1024.0) * 1.001,
                    "{x} became {got}, scale {step}"
                );
            }
        }
        assert_eq!(HeadScale::of::<Int8>(0), HeadScale { bits: 0, inverse: 0.0 });
        assert_eq!(HeadScale::of::<Int8>(size(f32::NAN)).bits, 0x7e00);
    }
}
