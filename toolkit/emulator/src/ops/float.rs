//! f32 and f64 arithmetic.
//!
//! The `.approx` functions are computed in f64 and rounded once. The hardware is a few units in the last place off, so
//! code that uses them is compared with tolerances.

use super::modifiers::Modifiers;
#[cfg(target_arch = "x86_64")]
use super::power::exp2_of_lanes;
use crate::lanes::{LaneOp, lanes, rare_lanes};
use crate::number::{exp2, flush, max_f32, max_f64, min_f32, min_f64};

pub(super) fn single(opcode: &str, m: Modifiers) -> Option<LaneOp> {
    if m.relu || (m.sat && !matches!(opcode, "add" | "sub" | "mul" | "fma" | "mad")) {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    if opcode == "ex2"
        && m.approx
        && !m.sat
        && let Some(op) = exp2_of_lanes(m.ftz)
    {
        return Some(op);
    }
    // One expression gives the plain, the flushing and the saturating form.
    macro_rules! op {
        (|$($name:ident),+| $body:expr) => {
            op!(wide, |$($name),+| $body)
        };
        ($form:ident, |$($name:ident),+| $body:expr) => {
            match (m.ftz, m.sat) {
                (false, false) => lanes!($form |$($name: f32),+| -> f32 { $body }),
                (true, false) => lanes!($form |$($name: f32),+| -> f32 { $(let $name = flush($name);)+ flush($body) }),
                (false, true) => rare_lanes!(|$($name: f32),+| -> f32 { min_f32(max_f32($body, 0.0), 1.0) }),
                (true, true) => {
                    rare_lanes!(|$($name: f32),+| -> f32 { $(let $name = flush($name);)+ flush(min_f32(max_f32($body, 0.0), 1.0)) })
                }
            }
        };
    }
    Some(match opcode {
        "mov" => lanes!(|a: f32| -> f32 { a }),
        "add" => op!(|a, b| a + b),
        "sub" => op!(|a, b| a - b),
        "mul" => op!(|a, b| a * b),
        "fma" | "mad" => op!(|a, b, c| a.mul_add(b, c)),
        "div" => op!(|a, b| a / b),
        "min" if m.nan => op!(rare, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { min_f32(a, b) }),
        "max" if m.nan => op!(rare, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { max_f32(a, b) }),
        "min" => op!(|a, b| min_f32(a, b)),
        "max" => op!(|a, b| max_f32(a, b)),
        "abs" => op!(|a| a.abs()),
        "neg" => op!(|a| -a),
        "sqrt" => op!(|a| a.sqrt()),
        "rcp" => op!(|a| 1.0 / a),
        "rsqrt" if m.approx => op!(|a| if a == 0.0 { 1.0 / a } else { (1.0 / f64::from(a).sqrt()) as f32 }),
        "ex2" if m.approx => op!(|a| exp2(a)),
        "lg2" if m.approx => op!(rare, |a| f64::from(a).log2() as f32),
        "sin" if m.approx => op!(rare, |a| f64::from(a).sin() as f32),
        "cos" if m.approx => op!(rare, |a| f64::from(a).cos() as f32),
        "tanh" if m.approx => op!(rare, |a| f64::from(a).tanh() as f32),
        "copysign" => lanes!(|a: f32, b: f32| -> f32 { b.copysign(a) }),
        _ => return None,
    })
}

/// Returns the upper half of an f64, with subnormals flushed. The approximations read and return such numbers.
#[inline(always)]
fn upper_half(value: f64) -> f64 {
    let kept = f64::from_bits(value.to_bits() & !0xffff_ffff);
    if value.is_nan() {
        f64::NAN
    } else if kept.abs() < f64::MIN_POSITIVE {
        0f64.copysign(value)
    } else {
        kept
    }
}

pub(super) fn double(opcode: &str, m: Modifiers) -> Option<LaneOp> {
    if m.ftz && m.approx && !(m.sat || m.nan || m.relu) {
        return match opcode {
            "rcp" => Some(rare_lanes!(|a: f64| -> f64 { upper_half(1.0 / upper_half(a)) })),
            "rsqrt" => Some(rare_lanes!(|a: f64| -> f64 {
                let a = upper_half(a);
                upper_half(if a == 0.0 { 1.0 / a } else { 1.0 / a.sqrt() })
            })),
            _ => None,
        };
    }
    if m.ftz || m.sat || m.nan || m.relu || m.approx {
        return None;
    }
    Some(match opcode {
        "mov" => lanes!(|a: f64| -> f64 { a }),
        "add" => lanes!(|a: f64, b: f64| -> f64 { a + b }),
        "sub" => lanes!(|a: f64, b: f64| -> f64 { a - b }),
        "mul" => lanes!(|a: f64, b: f64| -> f64 { a * b }),
        "fma" | "mad" => lanes!(|a: f64, b: f64, c: f64| -> f64 { a.mul_add(b, c) }),
        "div" => lanes!(|a: f64, b: f64| -> f64 { a / b }),
        "min" => lanes!(|a: f64, b: f64| -> f64 { min_f64(a, b) }),
        "max" => lanes!(|a: f64, b: f64| -> f64 { max_f64(a, b) }),
        "abs" => lanes!(|a: f64| -> f64 { a.abs() }),
        "neg" => lanes!(|a: f64| -> f64 { -a }),
        "sqrt" => lanes!(|a: f64| -> f64 { a.sqrt() }),
        "rcp" => lanes!(|a: f64| -> f64 { 1.0 / a }),
        "copysign" => lanes!(|a: f64, b: f64| -> f64 { b.copysign(a) }),
        _ => return None,
    })
}
