//! The exact sign of the rounding error of `a * b + c` in f64, for numbers of any size.

/// The exponent of the lowest bit, which is the smallest product of two numbers.
const LOWEST: i32 = -2148;
/// The number of 64-bit words, which is enough for the largest product, a few sums, and a sign.
const WORDS: usize = 68;

/// A fixed-point number in two's complement that can hold every product of two f64.
struct Fixed([u64; WORDS]);

impl Fixed {
    /// Adds `mantissa * 2^exponent`, or subtracts it if `negative`.
    fn add(&mut self, mantissa: u128, exponent: i32, negative: bool) {
        let at = (exponent - LOWEST) as usize;
        let (word, shift) = (at / 64, at % 64);
        let low = mantissa << shift;
        let high = if shift == 0 { 0 } else { mantissa >> (128 - shift) };
        let parts = [low as u64, (low >> 64) as u64, high as u64];
        let mut carry = false;
        for (index, place) in self.0[word..].iter_mut().enumerate() {
            let part = parts.get(index).copied().unwrap_or(0);
            let ((first, one), second) = if negative {
                (place.overflowing_sub(part), u64::overflowing_sub as fn(u64, u64) -> (u64, bool))
            } else {
                (place.overflowing_add(part), u64::overflowing_add as fn(u64, u64) -> (u64, bool))
            };
            let (value, two) = second(first, carry.into());
            *place = value;
            carry = one || two;
            if index >= 2 && !carry {
                break;
            }
        }
    }
}

/// Splits a finite number into its mantissa, its exponent, and whether it is negative.
fn split(value: f64) -> (u64, i32, bool) {
    let bits = value.to_bits();
    let (field, low) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    let mantissa = if field == 0 { low } else { low | 1 << 52 };
    (mantissa, field.max(1) - 1075, bits >> 63 == 1)
}

/// Returns the sign of `a * b + c - rounded`: 1, -1 or 0. All numbers must be finite.
#[inline(never)]
pub(super) fn lost_sign(a: f64, b: f64, c: f64, rounded: f64) -> f64 {
    let mut sum = Fixed([0; WORDS]);
    let ((ma, ea, na), (mb, eb, nb)) = (split(a), split(b));
    sum.add(u128::from(ma) * u128::from(mb), ea + eb, na != nb);
    for (value, flips) in [(c, false), (rounded, true)] {
        let (mantissa, exponent, negative) = split(value);
        sum.add(mantissa.into(), exponent, negative != flips);
    }
    match sum.0 {
        words if words[WORDS - 1] >> 63 == 1 => -1.0,
        words if words.iter().all(|&word| word == 0) => 0.0,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_parts_decide() {
        let least = f64::from_bits(1);
        assert_eq!(lost_sign(1.5, 2.0, 4.0, 7.0), 0.0);
        assert_eq!(lost_sign(least, least, 1.0, 1.0), 1.0);
        assert_eq!(lost_sign(-least, least, 1.0, 1.0), -1.0);
        assert_eq!(lost_sign(least, 0.5, 0.0, 0.0), 1.0);
        assert_eq!(lost_sign(f64::MAX, f64::MAX, -f64::MAX, 0.0), 1.0);
        assert_eq!(lost_sign(f64::MAX, -f64::MAX, least, 0.0), -1.0);
        assert_eq!(lost_sign(3.0, -3.0, 9.0, 0.0), 0.0);
        assert_eq!(lost_sign(3.0, -3.0, 9.0, -least), 1.0);
    }
}
