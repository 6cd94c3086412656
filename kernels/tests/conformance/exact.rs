//! Floating-point numbers as exact values that are rounded once, in any format. This is the reference for arithmetic
//! and conversions. It does not use the host's floating point.

use crate::types::Type;

/// How a value between two numbers of the format is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

/// A number, an infinity or NaN. A finite number is `mantissa * 2^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exact {
    Nan,
    Infinity { negative: bool },
    Finite { negative: bool, mantissa: u128, exponent: i32 },
}

/// Returns the bits of the exponent and of the fraction.
fn format(ty: Type) -> (u32, u32) {
    match ty {
        Type::F16 => (5, 10),
        Type::Bf16 => (8, 7),
        Type::F32 => (8, 23),
        Type::F64 => (11, 52),
        other => panic!("{other} is not a floating-point format"),
    }
}

/// Mantissas are shifted to this many bits before they are added. The bits that this cuts off are far below any
/// rounding.
const ALIGNED: u32 = 121;

impl Exact {
    /// Returns the value of a number's bits.
    pub fn of(ty: Type, bits: u64) -> Exact {
        let (exponent_bits, fraction_bits) = format(ty);
        let negative = bits >> (exponent_bits + fraction_bits) & 1 == 1;
        let field = (bits >> fraction_bits & ((1 << exponent_bits) - 1)) as i32;
        let fraction = u128::from(bits & ((1 << fraction_bits) - 1));
        let least = 2 - (1 << (exponent_bits - 1)) - fraction_bits as i32;
        match field {
            0 => Exact::Finite { negative, mantissa: fraction, exponent: least },
            _ if field == (1 << exponent_bits) - 1 && fraction != 0 => Exact::Nan,
            _ if field == (1 << exponent_bits) - 1 => Exact::Infinity { negative },
            _ => Exact::Finite { negative, mantissa: fraction | 1 << fraction_bits, exponent: least + field - 1 },
        }
    }

    pub fn of_integer(value: i128) -> Exact {
        Exact::Finite { negative: value < 0, mantissa: value.unsigned_abs(), exponent: 0 }
    }

    pub fn is_zero(self) -> bool {
        matches!(self, Exact::Finite { mantissa: 0, .. })
    }

    fn is_negative(self) -> bool {
        matches!(self, Exact::Infinity { negative: true } | Exact::Finite { negative: true, .. })
    }

    pub fn negate(self) -> Exact {
        match self {
            Exact::Nan => Exact::Nan,
            Exact::Infinity { negative } => Exact::Infinity { negative: !negative },
            Exact::Finite { negative, mantissa, exponent } => Exact::Finite { negative: !negative, mantissa, exponent },
        }
    }

    pub fn times(self, other: Exact) -> Exact {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Exact::Nan, _) | (_, Exact::Nan) => Exact::Nan,
            (Exact::Infinity { .. }, by) | (by, Exact::Infinity { .. }) if by.is_zero() => Exact::Nan,
            (Exact::Infinity { .. }, _) | (_, Exact::Infinity { .. }) => Exact::Infinity { negative },
            (Exact::Finite { mantissa: a, exponent: by_a, .. }, Exact::Finite { mantissa: b, exponent: by_b, .. }) => {
                Exact::Finite { negative, mantissa: a * b, exponent: by_a + by_b }
            }
        }
    }

    /// Adds two values. Bits far below the sum become a single sticky bit.
    pub fn plus(self, other: Exact) -> Exact {
        match (self, other) {
            (Exact::Nan, _) | (_, Exact::Nan) => Exact::Nan,
            (Exact::Infinity { negative: a }, Exact::Infinity { negative: b }) if a != b => Exact::Nan,
            (infinity @ Exact::Infinity { .. }, _) | (_, infinity @ Exact::Infinity { .. }) => infinity,
            (a, b) if a.is_zero() && b.is_zero() => {
                Exact::Finite { negative: a.is_negative() && b.is_negative(), mantissa: 0, exponent: 0 }
            }
            (a, zero) | (zero, a) if zero.is_zero() => a,
            (a, b) => {
                let ((a, by_a), (b, by_b)) = (a.aligned(), b.aligned());
                let exponent = by_a.max(by_b);
                let sum = down(a, exponent - by_a) + down(b, exponent - by_b);
                Exact::Finite { negative: sum < 0, mantissa: sum.unsigned_abs(), exponent }
            }
        }
    }

    /// Returns the signed mantissa of a finite nonzero number, shifted to [`ALIGNED`] bits, and its exponent.
    fn aligned(self) -> (i128, i32) {
        let Exact::Finite { negative, mantissa, exponent } = self else { panic!("{self:?} is not finite") };
        let shift = mantissa.leading_zeros() - (128 - ALIGNED);
        let mantissa = (mantissa << shift) as i128;
        (if negative { -mantissa } else { mantissa }, exponent - shift as i32)
    }

    /// Rounds the value to the format and returns the bits. NaN becomes the canonical NaN.
    pub fn round(self, ty: Type, rounding: Rounding) -> u64 {
        let (exponent_bits, fraction_bits) = format(ty);
        let sign = |negative: bool| u64::from(negative) << (exponent_bits + fraction_bits);
        let infinity = ((1u64 << exponent_bits) - 1) << fraction_bits;
        let (negative, mantissa, exponent) = match self {
            Exact::Nan => return sign(true) - 1,
            Exact::Infinity { negative } => return sign(negative) | infinity,
            Exact::Finite { negative, mantissa: 0, .. } => return sign(negative),
            Exact::Finite { negative, mantissa, exponent } => (negative, mantissa, exponent),
        };
        let least = 2 - (1 << (exponent_bits - 1)) - fraction_bits as i32;
        let top = exponent + 127 - mantissa.leading_zeros() as i32;
        let unit = (top - fraction_bits as i32).max(least);
        let units = in_units(mantissa, exponent - unit, negative, rounding) as u64;
        // A number's bits count its units, binade by binade. A mantissa that rounds up to the next binade therefore
        // carries over.
        let bits = units + ((unit - least) as u64) * (1 << fraction_bits);
        let most = if rounding == Rounding::Zero { infinity - 1 } else { infinity };
        sign(negative) | bits.min(most)
    }

    /// Rounds the value to an integer and clamps it to the type's range.
    pub fn round_to_integer(self, ty: Type, rounding: Rounding) -> i128 {
        let (least, most) = if ty.is_signed() {
            (-(1i128 << (ty.bits() - 1)), (1i128 << (ty.bits() - 1)) - 1)
        } else {
            (0, (1i128 << ty.bits()) - 1)
        };
        match self {
            // The ISA converts NaN to zero, or for 64-bit types to the top bit alone.
            Exact::Nan if ty.bits() == 64 && ty.is_signed() => least,
            Exact::Nan => {
                if ty.bits() == 64 {
                    1 << 63
                } else {
                    0
                }
            }
            Exact::Infinity { negative } => {
                if negative {
                    least
                } else {
                    most
                }
            }
            Exact::Finite { exponent: 66.., mantissa: 1.., negative } => {
                if negative {
                    least
                } else {
                    most
                }
            }
            Exact::Finite { negative, mantissa, exponent } => {
                let units = in_units(mantissa, exponent, negative, rounding) as i128;
                (if negative { -units } else { units }).clamp(least, most)
            }
        }
    }
}

/// Returns `mantissa * 2^exponent`, rounded to an integer.
fn in_units(mantissa: u128, exponent: i32, negative: bool, rounding: Rounding) -> u128 {
    if exponent >= 0 {
        return mantissa << exponent;
    }
    let shift = exponent.unsigned_abs();
    // The exact size does not matter below half a unit.
    let (whole, rest) =
        if shift > 127 { (0, mantissa.min(1)) } else { (mantissa >> shift, mantissa & ((1 << shift) - 1)) };
    let half = 1 << (shift.min(127) - 1);
    let up = match rounding {
        Rounding::Nearest => rest > half || rest == half && whole & 1 == 1,
        Rounding::Zero => false,
        Rounding::Down => rest > 0 && negative,
        Rounding::Up => rest > 0 && !negative,
    };
    whole + u128::from(up)
}

/// Shifts right, and sets the last bit if the shift cuts off a set bit.
fn down(value: i128, shift: i32) -> i128 {
    let size = value.unsigned_abs();
    let cut = if shift > 127 { 1 } else { size >> shift | u128::from(size & ((1 << shift) - 1) != 0) };
    if value < 0 { -(cut as i128) } else { cut as i128 }
}

#[test]
fn agrees_with_the_hosts_own_arithmetic() {
    let rows = crate::types::operands(&[Type::F32, Type::F32, Type::F32], 4096);
    for row in rows {
        let [a, b, c] = [row[0], row[1], row[2]].map(|bits| f32::from_bits(bits as u32));
        let [x, y, z] = [a, b, c].map(|v| Exact::of(Type::F32, v.to_bits().into()));
        for (exact, host) in [(x.plus(y), a + b), (x.times(y), a * b), (x.times(y).plus(z), a.mul_add(b, c))] {
            let rounded = f32::from_bits(exact.round(Type::F32, Rounding::Nearest) as u32);
            assert!(rounded.to_bits() == host.to_bits() || rounded.is_nan() && host.is_nan(), "{a:e} {b:e} {c:e}");
        }
        assert_eq!(x.round_to_integer(Type::S32, Rounding::Zero), i128::from(a as i32), "{a:e}");
    }
}
