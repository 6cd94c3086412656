//! Exact numbers, and rounding them to floating-point formats.

/// A floating-point format.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    bits: u32,
    fraction: u32,
    bias: i32,
    /// The bits of the greatest finite number.
    greatest: u64,
    /// Whether the format has infinities. They follow the greatest finite number and come before the NaNs.
    infinite: bool,
}

pub const F16: Form = Form { bits: 16, fraction: 10, bias: 15, greatest: 0x7bff, infinite: true };
pub const BF16: Form = Form { bits: 16, fraction: 7, bias: 127, greatest: 0x7f7f, infinite: true };
pub const E4M3: Form = Form { bits: 8, fraction: 3, bias: 7, greatest: 0x7e, infinite: false };
pub const E5M2: Form = Form { bits: 8, fraction: 2, bias: 15, greatest: 0x7b, infinite: true };
pub const SINGLE: Form = Form { bits: 32, fraction: 23, bias: 127, greatest: 0x7f7f_ffff, infinite: true };
const DOUBLE: Form = Form { bits: 64, fraction: 52, bias: 1023, greatest: 0x7fef_ffff_ffff_ffff, infinite: true };

/// A rounding direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Towards {
    Nearest,
    Zero,
    Down,
    Up,
}

/// The rounding directions in the order of the kernels' outputs.
pub const DIRECTIONS: [Towards; 4] = [Towards::Nearest, Towards::Zero, Towards::Down, Towards::Up];

/// An exact number, an infinity or NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exact {
    Nan,
    Infinite {
        negative: bool,
    },
    /// `size * 2^exponent`. Zero also has a sign.
    Finite {
        negative: bool,
        size: u128,
        exponent: i32,
    },
}

use Exact::{Finite, Infinite, Nan};

impl Exact {
    pub fn from_bits(form: Form, bits: u64) -> Self {
        let negative = bits >> (form.bits - 1) & 1 == 1;
        let size = bits & ((1 << (form.bits - 1)) - 1);
        let (field, low) = (size >> form.fraction, size & ((1 << form.fraction) - 1));
        match size {
            _ if form.infinite && size == form.greatest + 1 => Infinite { negative },
            _ if size > form.greatest => Nan,
            _ => {
                let leading = u64::from(field > 0) << form.fraction;
                let exponent = field.max(1) as i32 - form.bias - form.fraction as i32;
                Finite { negative, size: (leading | low).into(), exponent }
            }
        }
    }

    pub fn from_double(value: f64) -> Self {
        Self::from_bits(DOUBLE, value.to_bits())
    }

    pub fn from_integer(value: i128) -> Self {
        Finite { negative: value < 0, size: value.unsigned_abs(), exponent: 0 }
    }

    pub fn negated(self) -> Self {
        match self {
            Nan => Nan,
            Infinite { negative } => Infinite { negative: !negative },
            Finite { negative, size, exponent } => Finite { negative: !negative, size, exponent },
        }
    }

    pub fn is_negative(self) -> bool {
        matches!(self, Infinite { negative: true } | Finite { negative: true, .. })
    }

    pub fn is_zero(self) -> bool {
        matches!(self, Finite { size: 0, .. })
    }

    /// The exact sum of numbers with few bits. If the exponents differ by more than 80, a value that rounds like the
    /// sum.
    pub fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Nan, _) | (_, Nan) => Nan,
            (Infinite { negative: a }, Infinite { negative: b }) if a != b => Nan,
            (Infinite { .. }, _) => self,
            (_, Infinite { .. }) => other,
            _ if self.is_zero() && other.is_zero() => {
                if self.is_negative() {
                    other
                } else {
                    self
                }
            }
            _ if other.is_zero() => self,
            _ if self.is_zero() => other,
            (Finite { exponent: a, .. }, Finite { exponent: b, .. }) if a < b => other.plus(self),
            (Finite { negative: n, size: a, exponent }, Finite { negative: m, size: b, exponent: low }) => {
                let gap = exponent - low;
                let shift = gap.min(80);
                let b = if gap > 80 { 1 } else { b };
                let signed = |negative: bool, size: u128| if negative { -(size as i128) } else { size as i128 };
                let sum = signed(n, a << shift) + signed(m, b);
                Finite { negative: sum < 0, size: sum.unsigned_abs(), exponent: exponent - shift }
            }
        }
    }

    pub fn times(self, other: Self) -> Self {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Finite { size: a, exponent, .. }, Finite { size: b, exponent: low, .. }) => {
                Finite { negative, size: a * b, exponent: exponent + low }
            }
            (Nan, _) | (_, Nan) => Nan,
            _ if self.is_zero() || other.is_zero() => Nan,
            _ => Infinite { negative },
        }
    }

    /// A value that rounds like the quotient of numbers with few bits.
    pub fn over(self, other: Self) -> Self {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Nan, _) | (_, Nan) | (Infinite { .. }, Infinite { .. }) => Nan,
            _ if self.is_zero() && other.is_zero() => Nan,
            (Infinite { .. }, _) => Infinite { negative },
            _ if other.is_zero() => Infinite { negative },
            (_, Infinite { .. }) => Finite { negative, size: 0, exponent: 0 },
            (Finite { size: a, exponent, .. }, Finite { size: b, exponent: low, .. }) => {
                let (whole, rest) = ((a << 60) / b, (a << 60) % b);
                Finite { negative, size: whole << 1 | u128::from(rest != 0), exponent: exponent - low - 61 }
            }
        }
    }

    /// The bits of this number rounded to a format. For NaN, all bits but the sign are set.
    pub fn round(self, form: Form, towards: Towards) -> u64 {
        let sign = |negative: bool| u64::from(negative) << (form.bits - 1);
        match self {
            Nan => (1 << (form.bits - 1)) - 1,
            Infinite { negative } => sign(negative) | (form.greatest + 1),
            Finite { negative, size: 0, .. } => sign(negative),
            Finite { negative, size, exponent } => {
                let top = size.ilog2() as i32 + exponent;
                let top = top.max(1 - form.bias);
                let kept = shifted(size, top - form.fraction as i32 - exponent, negative, towards) as u64;
                let bits = (((top + form.bias - 1) as u64) << form.fraction) + kept;
                let away = match towards {
                    Towards::Nearest => true,
                    Towards::Zero => false,
                    Towards::Down => negative,
                    Towards::Up => !negative,
                };
                sign(negative) | bits.min(form.greatest + u64::from(away))
            }
        }
    }

    /// This number rounded to an integer, or `None` for NaN.
    pub fn to_integer(self, towards: Towards) -> Option<i128> {
        match self {
            Nan => None,
            // Both bounds are out of range of every 64-bit integer.
            Infinite { negative } => Some(if negative { i128::MIN } else { i128::MAX }),
            Finite { negative, exponent: 70.., size: 1.. } => Some(if negative { i128::MIN } else { i128::MAX }),
            Finite { negative, size, exponent } => {
                let size = shifted(size, -exponent, negative, towards) as i128;
                Some(if negative { -size } else { size })
            }
        }
    }
}

/// `size / 2^shift`, rounded.
fn shifted(size: u128, shift: i32, negative: bool, towards: Towards) -> u128 {
    let shift = match shift {
        ..=0 => return size << -shift,
        127.. => 127, // more than any size has
        _ => shift,
    };
    let (kept, rest, half) = (size >> shift, size & ((1 << shift) - 1), 1 << (shift - 1));
    let up = match towards {
        Towards::Nearest => rest > half || rest == half && kept % 2 == 1,
        Towards::Zero => false,
        Towards::Down => negative && rest > 0,
        Towards::Up => !negative && rest > 0,
    };
    kept + u128::from(up)
}
