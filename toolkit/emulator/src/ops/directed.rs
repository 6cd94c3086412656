//! Arithmetic of f32 and f64 that rounds down, up or toward zero.
//!
//! Each operation is first rounded to nearest. Its rounding error is known exactly, or at least the sign of the error
//! is. This tells whether the result is on the wrong side, and must be replaced by its neighbour.

use super::exact::lost_sign;
use super::modifiers::Modifiers;
use super::types::Type;
use crate::lanes::{LaneOp, rare_lanes};

/// Rounding directions: down, up, or toward zero.
pub(super) const DOWN: u8 = 0;
pub(super) const UP: u8 = 1;
pub(super) const ZERO: u8 = 2;

macro_rules! neighbours {
    ($name:ident, $type:ty) => {
        /// Rounds in a direction, given the nearest number. `lost` has the sign of the exact value minus that number.
        #[inline(always)]
        pub(super) fn $name<const TO: u8>(nearest: $type, lost: f64) -> $type {
            if nearest.is_nan() || lost == 0.0 || lost.is_nan() {
                return nearest;
            }
            let down = TO == DOWN || TO == ZERO && (nearest > 0.0 || nearest == 0.0 && lost > 0.0);
            match (down, lost < 0.0) {
                (true, true) => nearest.next_down(),
                (false, false) => nearest.next_up(),
                _ => nearest,
            }
        }
    };
}
neighbours!(step_f32, f32);
neighbours!(step_f64, f64);

/// Returns a sum rounded to nearest, and its exact rounding error.
#[inline(always)]
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// Rounds an f64 to f32 in a direction. `lost` is the rounding error of the f64 itself.
#[inline(always)]
pub(super) fn narrow<const TO: u8>(value: f64, lost: f64) -> f32 {
    let nearest = value as f32;
    if value.is_infinite() {
        return nearest;
    }
    // Above the largest f32, the nearest number is infinite. The exact value is closer to zero, so the error has the
    // opposite sign.
    let first = if nearest.is_infinite() { -f64::from(nearest) } else { value - f64::from(nearest) };
    step_f32::<TO>(nearest, if first == 0.0 { lost } else { first })
}

/// Sets the sign of a zero sum. Rounded down, it is negative unless both terms are positive zeros.
#[inline(always)]
fn zero_sum<const TO: u8>(sum: f64, a: f64, b: f64) -> f64 {
    if TO == DOWN && sum == 0.0 && (a != 0.0 || a.is_sign_negative() || b.is_sign_negative()) { -0.0 } else { sum }
}

#[inline(always)]
fn add_f32<const TO: u8>(a: f32, b: f32) -> f32 {
    let (sum, lost) = two_sum(a.into(), b.into());
    narrow::<TO>(zero_sum::<TO>(sum, a.into(), b.into()), lost)
}

#[inline(always)]
fn mul_f32<const TO: u8>(a: f32, b: f32) -> f32 {
    narrow::<TO>(f64::from(a) * f64::from(b), 0.0)
}

#[inline(always)]
fn fma_f32<const TO: u8>(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let (sum, lost) = two_sum(product, c);
    narrow::<TO>(zero_sum::<TO>(sum, product, c), lost)
}

#[inline(always)]
fn div_f32<const TO: u8>(a: f32, b: f32) -> f32 {
    let quotient = a / b;
    if quotient.is_nan() || a.is_infinite() || b.is_infinite() || b == 0.0 {
        return quotient;
    }
    if quotient.is_infinite() {
        return step_f32::<TO>(quotient, -f64::from(quotient));
    }
    let rest = f64::from(a) - f64::from(quotient) * f64::from(b);
    step_f32::<TO>(quotient, if b > 0.0 { rest } else { -rest })
}

#[inline(always)]
fn sqrt_f32<const TO: u8>(a: f32) -> f32 {
    let root = a.sqrt();
    step_f32::<TO>(root, if root.is_finite() { f64::from(a) - f64::from(root) * f64::from(root) } else { 0.0 })
}

#[inline(always)]
fn add_f64<const TO: u8>(a: f64, b: f64) -> f64 {
    let (sum, lost) = two_sum(a, b);
    match sum.is_infinite() {
        true if a.is_finite() && b.is_finite() => step_f64::<TO>(sum, -sum),
        true => sum,
        false => step_f64::<TO>(zero_sum::<TO>(sum, a, b), lost),
    }
}

#[inline(always)]
fn mul_f64<const TO: u8>(a: f64, b: f64) -> f64 {
    let product = a * b;
    match product.is_infinite() {
        true if a.is_finite() && b.is_finite() => step_f64::<TO>(product, -product),
        true => product,
        // The rounding error of a small product may be too small for an f64.
        false if product.abs() < 1e-280 && a.is_finite() && b.is_finite() => {
            step_f64::<TO>(product, lost_sign(a, b, 0.0, product))
        }
        false => step_f64::<TO>(product, a.mul_add(b, -product)),
    }
}

#[inline(always)]
fn fma_f64<const TO: u8>(a: f64, b: f64, c: f64) -> f64 {
    let nearest = a.mul_add(b, c);
    if !(a.is_finite() && b.is_finite() && c.is_finite()) {
        return nearest;
    }
    if nearest.is_infinite() {
        return step_f64::<TO>(nearest, -nearest);
    }
    match lost_sign(a, b, c, nearest) {
        0.0 => zero_sum::<TO>(nearest, a * b, c),
        lost => step_f64::<TO>(nearest, lost),
    }
}

#[inline(always)]
fn div_f64<const TO: u8>(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    if quotient.is_nan() || a.is_infinite() || b.is_infinite() || b == 0.0 {
        return quotient;
    }
    if quotient.is_infinite() {
        return step_f64::<TO>(quotient, -quotient);
    }
    let rest = lost_sign(-quotient, b, a, 0.0);
    step_f64::<TO>(quotient, if b > 0.0 { rest } else { -rest })
}

#[inline(always)]
fn sqrt_f64<const TO: u8>(a: f64) -> f64 {
    let root = a.sqrt();
    step_f64::<TO>(root, if root.is_finite() { lost_sign(-root, root, a, 0.0) } else { 0.0 })
}

/// Returns an operation that rounds in a direction.
pub(super) fn directed(opcode: &str, ty: Type, rounding: &str, m: Modifiers) -> Option<LaneOp> {
    if m.ftz || m.sat || m.nan || m.relu || m.approx {
        return None;
    }
    macro_rules! op {
        ($to:ident) => {
            match (opcode, ty) {
                ("add", Type::F32) => rare_lanes!(|a: f32, b: f32| -> f32 { add_f32::<$to>(a, b) }),
                ("sub", Type::F32) => rare_lanes!(|a: f32, b: f32| -> f32 { add_f32::<$to>(a, -b) }),
                ("mul", Type::F32) => rare_lanes!(|a: f32, b: f32| -> f32 { mul_f32::<$to>(a, b) }),
                ("fma" | "mad", Type::F32) => rare_lanes!(|a: f32, b: f32, c: f32| -> f32 { fma_f32::<$to>(a, b, c) }),
                ("div", Type::F32) => rare_lanes!(|a: f32, b: f32| -> f32 { div_f32::<$to>(a, b) }),
                ("rcp", Type::F32) => rare_lanes!(|a: f32| -> f32 { div_f32::<$to>(1.0, a) }),
                ("sqrt", Type::F32) => rare_lanes!(|a: f32| -> f32 { sqrt_f32::<$to>(a) }),
                ("add", Type::F64) => rare_lanes!(|a: f64, b: f64| -> f64 { add_f64::<$to>(a, b) }),
                ("sub", Type::F64) => rare_lanes!(|a: f64, b: f64| -> f64 { add_f64::<$to>(a, -b) }),
                ("mul", Type::F64) => rare_lanes!(|a: f64, b: f64| -> f64 { mul_f64::<$to>(a, b) }),
                ("fma" | "mad", Type::F64) => rare_lanes!(|a: f64, b: f64, c: f64| -> f64 { fma_f64::<$to>(a, b, c) }),
                ("div", Type::F64) => rare_lanes!(|a: f64, b: f64| -> f64 { div_f64::<$to>(a, b) }),
                ("rcp", Type::F64) => rare_lanes!(|a: f64| -> f64 { div_f64::<$to>(1.0, a) }),
                ("sqrt", Type::F64) => rare_lanes!(|a: f64| -> f64 { sqrt_f64::<$to>(a) }),
                _ => return None,
            }
        };
    }
    Some(match rounding {
        "rm" => op!(DOWN),
        "rp" => op!(UP),
        "rz" => op!(ZERO),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns numbers of many sizes, with both signs.
    fn numbers() -> Vec<f32> {
        let mut all =
            vec![0.0, 1.0, 1.5, 3.0, 1e-45, f32::MIN_POSITIVE, f32::MAX, 0.1, 1.0 / 3.0, 16_777_217.0, 1e30, 7e-30];
        let mut state = 1u32;
        for _ in 0..200 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            all.extend(Some(f32::from_bits(state & 0x7fff_ffff)).filter(|x| x.is_finite()));
        }
        all.iter().flat_map(|&x| [x, -x]).collect()
    }

    #[test]
    fn each_direction_is_the_neighbour_on_its_side() {
        for &a in &numbers() {
            for &b in &numbers() {
                // The product of two f32 is exact in f64.
                let exact = f64::from(a) * f64::from(b);
                let (down, up, zero) = (mul_f32::<DOWN>(a, b), mul_f32::<UP>(a, b), mul_f32::<ZERO>(a, b));
                assert!(f64::from(down) <= exact && exact <= f64::from(up), "{a} * {b}: {down} {exact} {up}");
                assert!(down == up || down.next_up() == up, "{a} * {b}: {down} {up}");
                assert!(zero == if exact < 0.0 { up } else { down }, "{a} * {b}: {zero}");

                let (sum, lost) = two_sum(a.into(), b.into());
                let (down, up) = (add_f32::<DOWN>(a, b), add_f32::<UP>(a, b));
                let below = |x: f32| f64::from(x) < sum || f64::from(x) == sum && lost >= 0.0;
                let above = |x: f32| f64::from(x) > sum || f64::from(x) == sum && lost <= 0.0;
                assert!(below(down) && above(up), "{a} + {b}: {down} {sum} {lost} {up}");
                assert!(down == up || down.next_up() == up, "{a} + {b}: {down} {up}");
                assert_eq!(add_f32::<DOWN>(-a, -b), -up);

                if b != 0.0 {
                    let (down, up) = (div_f32::<DOWN>(a, b), div_f32::<UP>(a, b));
                    assert!(down == up || down.next_up() == up, "{a} / {b}: {down} {up}");
                    assert!(down <= a / b && a / b <= up && (down == a / b || up == a / b), "{a} / {b}");
                }
            }
        }
    }

    #[test]
    fn doubles_round_in_each_direction() {
        assert_eq!([add_f64::<DOWN>(1.0, 1e-20), add_f64::<UP>(1.0, 1e-20)], [1.0, 1f64.next_up()]);
        assert_eq!([add_f64::<ZERO>(-1.0, -1e-20), add_f64::<DOWN>(-1.0, -1e-20)], [-1.0, (-1f64).next_down()]);
        // The double nearest to 0.1 is slightly greater than 0.1.
        assert_eq!([mul_f64::<DOWN>(0.1, 3.0), mul_f64::<UP>(0.1, 3.0)], [0.3, 0.3f64.next_up()]);
        assert_eq!(add_f64::<ZERO>(f64::MAX, f64::MAX), f64::MAX);
        assert_eq!([sqrt_f32::<DOWN>(2.0), sqrt_f32::<UP>(2.0)].map(|x| f64::from(x).powi(2) < 2.0), [true, false]);
        assert_eq!([fma_f64::<DOWN>(0.1, 3.0, 1e-40), fma_f64::<UP>(0.1, 3.0, -1e-40)], [0.3, 0.3f64.next_up()]);
        assert_eq!([fma_f64::<DOWN>(1.0, 1.0, -1e-300), fma_f64::<UP>(1.0, 1.0, -1e-300)], [1f64.next_down(), 1.0]);
        let least = f64::from_bits(1);
        assert_eq!([fma_f64::<UP>(least, 0.5, 0.0), fma_f64::<ZERO>(least, 0.5, 0.0)], [least, 0.0]);
        assert_eq!([mul_f64::<UP>(least, 0.5), mul_f64::<DOWN>(least, -0.5)], [least, -least]);
        assert_eq!(fma_f64::<ZERO>(f64::MAX, 2.0, -1.0), f64::MAX);
        assert!(fma_f64::<DOWN>(2.0, 3.0, -6.0).is_sign_negative() && fma_f64::<UP>(2.0, 3.0, -6.0).is_sign_positive());
        assert_eq!([div_f64::<DOWN>(1.0, 3.0), div_f64::<UP>(1.0, 3.0)], [1.0 / 3.0, (1.0 / 3.0f64).next_up()]);
        assert_eq!([div_f64::<UP>(1.0, -3.0), div_f64::<DOWN>(6.0, -3.0)], [-1.0 / 3.0, -2.0]);
        assert_eq!([sqrt_f64::<DOWN>(4.0), sqrt_f64::<UP>(4.0)], [2.0, 2.0]);
        assert_eq!(sqrt_f64::<DOWN>(2.0).next_up(), sqrt_f64::<UP>(2.0));
        assert!(add_f64::<DOWN>(1.0, -1.0).is_sign_negative() && add_f64::<UP>(1.0, -1.0).is_sign_positive());
    }
}
