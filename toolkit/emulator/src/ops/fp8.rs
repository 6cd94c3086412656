//! Floating-point numbers of eight bits, e4m3 and e5m2: conversions of pairs from and to f16 and f32.

use crate::lanes::{LaneOp, rare_lanes};
use crate::number::{f16_to_f32, f32_to_f16};
use half::f16;

/// Bits of the fraction, the exponent's bias, and the bits of the largest finite number.
type Format = (i32, i32, u8);
const E4M3: Format = (3, 7, 0x7e);
const E5M2: Format = (2, 15, 0x7b);

/// Rounds a number to eight bits, to nearest even. A number that is too large becomes the largest finite one. A NaN
/// becomes 0x7f.
#[inline(always)]
fn narrow((fraction, bias, greatest): Format, value: f32, relu: bool) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    if relu && value < 0.0 {
        return 0;
    }
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let exponent = ((value.to_bits() >> 23 & 255) as i32 - 127).max(1 - bias).min(64);
    // In units of the last bit, the value has at most `fraction + 1` bits before the point. A carry propagates to the
    // exponent.
    let units =
        (f64::from(value.abs()) * f64::from_bits(((fraction - exponent + 1023) as u64) << 52)).round_ties_even();
    let bits = f64::from((exponent + bias - 1) << fraction) + units;
    sign | bits.min(greatest.into()) as u8
}

/// Converts e4m3 to f16, which can represent all its values.
#[inline(always)]
pub(crate) fn e4m3_to_f16(bits: u8) -> f16 {
    let (sign, field, low) = (u16::from(bits & 0x80) << 8, u16::from(bits >> 3 & 15), u16::from(bits & 7));
    f16::from_bits(match (field, low) {
        (15, 7) => 0x7fff,
        (0, _) => sign | f32_to_f16(f32::from(low) / 512.0).to_bits(),
        _ => sign | (field + 8) << 10 | low << 7,
    })
}

/// Converts e5m2 to f16. The eight bits are the upper half of the f16.
#[inline(always)]
pub(crate) fn e5m2_to_f16(bits: u8) -> f16 {
    f16::from_bits(if bits & 0x7f > 0x7c { 0x7fff } else { u16::from(bits) << 8 })
}

/// Calls the macro `$op` with `$e4m3` or `$e5m2`, and whether negative numbers become zero.
macro_rules! by_format {
    ($format:expr, $relu:expr, $op:ident, $e4m3:ident, $e5m2:ident) => {
        Some(match ($format, $relu) {
            ("e4m3x2", false) => $op!($e4m3, false),
            ("e4m3x2", true) => $op!($e4m3, true),
            ("e5m2x2", false) => $op!($e5m2, false),
            ("e5m2x2", true) => $op!($e5m2, true),
            _ => return None,
        })
    };
}

/// Returns `cvt.rn.satfinite{.relu}.<to>.f32`. The first operand goes to the upper half.
pub(crate) fn pair_from_singles(to: &str, relu: bool) -> Option<LaneOp> {
    macro_rules! op {
        ($format:ident, $relu:literal) => {
            rare_lanes!(|a: f32, b: f32| -> u16 {
                u16::from(narrow($format, a, $relu)) << 8 | u16::from(narrow($format, b, $relu))
            })
        };
    }
    by_format!(to, relu, op, E4M3, E5M2)
}

/// Returns `cvt.rn.satfinite{.relu}.<to>.f16x2`.
pub(crate) fn pair_from_halves(to: &str, relu: bool) -> Option<LaneOp> {
    macro_rules! op {
        ($format:ident, $relu:literal) => {
            rare_lanes!(|a: [f16; 2]| -> u16 {
                let [low, high] = a.map(|half| u16::from(narrow($format, f16_to_f32(half), $relu)));
                high << 8 | low
            })
        };
    }
    by_format!(to, relu, op, E4M3, E5M2)
}

/// Returns `cvt.rn{.relu}.f16x2.<from>`.
pub(crate) fn halves_from_pair(from: &str, relu: bool) -> Option<LaneOp> {
    macro_rules! op {
        ($convert:ident, $relu:literal) => {
            rare_lanes!(|a: u16| -> [f16; 2] {
                [a as u8, (a >> 8) as u8].map(|bits| {
                    let value = $convert(bits);
                    if $relu && f16_to_f32(value) < 0.0 { f16::ZERO } else { value }
                })
            })
        };
    }
    by_format!(from, relu, op, e4m3_to_f16, e5m2_to_f16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value of eight bits, computed from the format's definition.
    fn value((fraction, bias, _): Format, bits: u8) -> f64 {
        let (field, low) = (i32::from(bits & 0x7f) >> fraction, f64::from(i32::from(bits) & ((1 << fraction) - 1)));
        let scale = f64::powi(2.0, -fraction);
        let size = if field == 0 {
            low * scale * f64::powi(2.0, 1 - bias)
        } else {
            (1.0 + low * scale) * f64::powi(2.0, field - bias)
        };
        if bits & 0x80 == 0 { size } else { -size }
    }

    #[test]
    fn every_number_converts_back_and_forth() {
        for (format, widen) in [(E4M3, e4m3_to_f16 as fn(u8) -> f16), (E5M2, e5m2_to_f16)] {
            for bits in 0..=255u8 {
                let found = f16_to_f32(widen(bits));
                if bits & 0x7f <= format.2 {
                    assert_eq!(f64::from(found), value(format, bits), "{bits:#x}");
                    assert_eq!(narrow(format, found, false), bits);
                } else {
                    assert!(found.is_nan() || found.is_infinite() && bits & 0x7f == 0x7c, "{bits:#x}");
                }
            }
        }
    }

    #[test]
    fn numbers_round_to_the_nearest_and_ties_to_even() {
        for format in [E4M3, E5M2] {
            let all: Vec<u8> = (0..=format.2).collect();
            for step in 0..200_000u32 {
                let number = f32::from_bits(step.wrapping_mul(21_379) & 0x7fff_ffff);
                if number.is_nan() {
                    assert_eq!(narrow(format, number, false), 0x7f);
                    continue;
                }
                let distance = |&bits: &u8| ((value(format, bits) - f64::from(number)).abs(), bits & 1);
                let nearest =
                    all.iter().copied().min_by(|a, b| distance(a).partial_cmp(&distance(b)).unwrap()).unwrap();
                // Far beyond the largest number, all distances are equal in f64.
                let expected = if number > 1e6 { format.2 } else { nearest };
                assert_eq!(narrow(format, number, false), expected, "{number:e}");
                assert_eq!(narrow(format, -number, false), expected | 0x80, "{number:e}");
                assert_eq!(narrow(format, -number, true), if number == 0.0 { 0x80 } else { 0 }, "{number:e}");
            }
        }
    }
}
