//! Conversions (`cvt`).

use super::directed::{DOWN, UP, ZERO, narrow, step_f32, step_f64};
use super::to_half::{half_from_integer, half_from_single};
use super::types::{Type, with_integer};
use crate::lanes::{LaneOp, lanes, rare_lanes};
use crate::number::{
    bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_bf16_rz, f32_to_f16, f32_to_f16_rz, f64_to_f32_odd, flush, max_f32,
    min_f32,
};
use half::{bf16, f16};

/// Returns the conversion of `cvt.<rounding>.<to>.<from>`. `rounding` is empty if the instruction has none.
pub(crate) fn convert(rounding: &str, to: Type, from: Type, sat: bool, ftz: bool) -> Option<LaneOp> {
    match (to.is_float(), from.is_float()) {
        (false, false) if ftz || !rounding.is_empty() => None,
        (false, false) if sat => between_integers_saturating(to, from),
        (false, false) => between_integers(to, from),
        (true, false) if sat || ftz => None,
        (true, false) if to.is_half() => half_from_integer(rounding, to, from),
        (true, false) if rounding == "rn" => from_integer(to, from),
        (true, false) => from_integer_directed(rounding, to, from),
        (false, true) => to_integer(rounding, to, from, ftz),
        (true, true) => between_floats(rounding, to, from, sat, ftz),
    }
}

fn between_integers(to: Type, from: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($form:ident, $s:ty) => {
            match to {
                Type::U8 | Type::B8 => rare_lanes!(|a: $s| -> u8 { a as u8 }),
                Type::S8 => rare_lanes!(|a: $s| -> i8 { a as i8 }),
                Type::U16 | Type::B16 => lanes!($form |a: $s| -> u16 { a as u16 }),
                Type::S16 => lanes!($form |a: $s| -> i16 { a as i16 }),
                Type::U32 | Type::B32 => lanes!($form |a: $s| -> u32 { a as u32 }),
                Type::S32 => lanes!($form |a: $s| -> i32 { a as i32 }),
                Type::U64 | Type::B64 => lanes!($form |a: $s| -> u64 { a as u64 }),
                Type::S64 => lanes!($form |a: $s| -> i64 { a as i64 }),
                _ => return None,
            }
        };
    }
    Some(match from {
        Type::U8 | Type::B8 => op!(rare, u8),
        Type::S8 => op!(rare, i8),
        Type::U16 | Type::B16 => op!(wide, u16),
        Type::S16 => op!(wide, i16),
        Type::U32 | Type::B32 => op!(wide, u32),
        Type::S32 => op!(wide, i32),
        Type::U64 | Type::B64 => op!(wide, u64),
        Type::S64 => op!(wide, i64),
        _ => return None,
    })
}

/// Returns the conversion between integers. A value that does not fit becomes the nearest one that fits.
fn between_integers_saturating(to: Type, from: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($d:ty, $s:ty) => {
            rare_lanes!(|a: $s| -> $d { i128::from(a).clamp(i128::from(<$d>::MIN), i128::from(<$d>::MAX)) as $d })
        };
    }
    macro_rules! by_target {
        ($s:ty) => {
            with_integer!(to, op, $s)
        };
    }
    Some(with_integer!(from, by_target))
}

/// Returns the conversion from integers to f32 or f64 that rounds down, up or toward zero.
fn from_integer_directed(rounding: &str, to: Type, from: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($s:ty, $to:ident) => {
            match to {
                // The nearest float may be too large for the integer's own type, but it fits i128.
                Type::F32 => rare_lanes!(|a: $s| -> f32 {
                    let nearest = a as f32;
                    step_f32::<$to>(nearest, (i128::from(a) - nearest as i128) as f64)
                }),
                Type::F64 => rare_lanes!(|a: $s| -> f64 {
                    let nearest = a as f64;
                    step_f64::<$to>(nearest, (i128::from(a) - nearest as i128) as f64)
                }),
                _ => return None,
            }
        };
    }
    macro_rules! by_source {
        ($to:ident) => {
            match from {
                Type::U32 => op!(u32, $to),
                Type::S32 => op!(i32, $to),
                Type::U64 => op!(u64, $to),
                Type::S64 => op!(i64, $to),
                _ => return None,
            }
        };
    }
    Some(match rounding {
        "rm" => by_source!(DOWN),
        "rp" => by_source!(UP),
        "rz" => by_source!(ZERO),
        _ => return None,
    })
}

fn from_integer(to: Type, from: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($s:ty) => {
            match to {
                Type::F32 => lanes!(|a: $s| -> f32 { a as f32 }),
                Type::F64 => lanes!(|a: $s| -> f64 { a as f64 }),
                _ => return None,
            }
        };
    }
    Some(with_integer!(from, op))
}

/// Returns the conversion from floats to integers. Rust's `as` saturates, as `cvt` does. A NaN becomes the highest of 64
/// bits, and is zero in a narrower type.
fn to_integer(rounding: &str, to: Type, from: Type, ftz: bool) -> Option<LaneOp> {
    macro_rules! op {
        ($d:ty, $s:ty, |$x:ident| $value:expr, $round:ident) => {
            rare_lanes!(|a: $s| -> $d {
                let $x = a;
                let value = $value;
                if value.is_nan() { (1u64 << 63) as $d } else { value.$round() as $d }
            })
        };
    }
    macro_rules! rounded {
        ($s:ty, |$x:ident| $value:expr) => {
            match rounding {
                "rni" => with_integer!(to, op, $s, |$x| $value, round_ties_even),
                "rzi" => with_integer!(to, op, $s, |$x| $value, trunc),
                "rmi" => with_integer!(to, op, $s, |$x| $value, floor),
                "rpi" => with_integer!(to, op, $s, |$x| $value, ceil),
                _ => return None,
            }
        };
    }
    Some(match from {
        Type::F32 if ftz => rounded!(f32, |x| flush(x)),
        Type::F32 => rounded!(f32, |x| x),
        _ if ftz => return None,
        Type::F64 if to.bytes() == 8 => rounded!(f64, |x| x),
        // From f64, a NaN becomes the integer with only the highest bit set, even if the result is narrow.
        Type::F64 => match to {
            Type::U32 => rounded!(f64, |x| if x.is_nan() { 2f64.powi(31) } else { x }),
            Type::U16 => rounded!(f64, |x| if x.is_nan() { 2f64.powi(15) } else { x }),
            Type::U8 => rounded!(f64, |x| if x.is_nan() { 2f64.powi(7) } else { x }),
            _ => rounded!(f64, |x| if x.is_nan() { f64::NEG_INFINITY } else { x }),
        },
        Type::F16 => rounded!(f16, |x| f16_to_f32(x)),
        Type::Bf16 => rounded!(bf16, |x| bf16_to_f32(x)),
        _ => return None,
    })
}

fn between_floats(rounding: &str, to: Type, from: Type, sat: bool, ftz: bool) -> Option<LaneOp> {
    Some(match (rounding, to, from, sat, ftz) {
        ("", Type::F32, Type::F16, false, _) => lanes!(|a: f16| -> f32 { f16_to_f32(a) }),
        ("", Type::F32, Type::Bf16, false, false) => lanes!(|a: bf16| -> f32 { bf16_to_f32(a) }),
        ("", Type::F64, Type::F32, false, false) => lanes!(|a: f32| -> f64 { a.into() }),
        ("", Type::F64, Type::F32, false, true) => rare_lanes!(|a: f32| -> f64 { flush(a).into() }),
        ("", Type::F64, Type::F16, false, false) => rare_lanes!(|a: f16| -> f64 { f16_to_f32(a).into() }),
        ("rn", Type::F32, Type::F64, false, false) => lanes!(|a: f64| -> f32 { a as f32 }),
        ("rm", Type::F32, Type::F64, false, false) => rare_lanes!(|a: f64| -> f32 { narrow::<DOWN>(a, 0.0) }),
        ("rp", Type::F32, Type::F64, false, false) => rare_lanes!(|a: f64| -> f32 { narrow::<UP>(a, 0.0) }),
        ("rz", Type::F32, Type::F64, false, false) => rare_lanes!(|a: f64| -> f32 { narrow::<ZERO>(a, 0.0) }),
        ("rni", Type::F16, Type::F16, false, false) => {
            rare_lanes!(|a: f16| -> f16 { f32_to_f16(f16_to_f32(a).round_ties_even()) })
        }
        ("rzi", Type::F16, Type::F16, false, false) => {
            rare_lanes!(|a: f16| -> f16 { f32_to_f16(f16_to_f32(a).trunc()) })
        }
        ("rmi", Type::F16, Type::F16, false, false) => {
            rare_lanes!(|a: f16| -> f16 { f32_to_f16(f16_to_f32(a).floor()) })
        }
        ("rpi", Type::F16, Type::F16, false, false) => {
            rare_lanes!(|a: f16| -> f16 { f32_to_f16(f16_to_f32(a).ceil()) })
        }
        ("rni", Type::Bf16, Type::Bf16, false, false) => {
            rare_lanes!(|a: bf16| -> bf16 { f32_to_bf16(bf16_to_f32(a).round_ties_even()) })
        }
        ("rzi", Type::Bf16, Type::Bf16, false, false) => {
            rare_lanes!(|a: bf16| -> bf16 { f32_to_bf16(bf16_to_f32(a).trunc()) })
        }
        ("rmi", Type::Bf16, Type::Bf16, false, false) => {
            rare_lanes!(|a: bf16| -> bf16 { f32_to_bf16(bf16_to_f32(a).floor()) })
        }
        ("rpi", Type::Bf16, Type::Bf16, false, false) => {
            rare_lanes!(|a: bf16| -> bf16 { f32_to_bf16(bf16_to_f32(a).ceil()) })
        }
        ("rn", Type::F16, Type::F32, false, false) => lanes!(|a: f32| -> f16 { f32_to_f16(a) }),
        ("rn", Type::F16, Type::F32, false, true) => rare_lanes!(|a: f32| -> f16 { f32_to_f16(flush(a)) }),
        ("rz", Type::F16, Type::F32, false, false) => rare_lanes!(|a: f32| -> f16 { f32_to_f16_rz(a) }),
        ("rm" | "rp", Type::F16 | Type::Bf16, Type::F32, false, false) => return half_from_single(rounding, to),
        ("rn", Type::Bf16, Type::F32, false, false) => lanes!(|a: f32| -> bf16 { f32_to_bf16(a) }),
        ("rz", Type::Bf16, Type::F32, false, false) => rare_lanes!(|a: f32| -> bf16 { f32_to_bf16_rz(a) }),
        // A half is widened exactly, so it is rounded only once.
        ("rn", Type::Bf16, Type::F16, false, false) => rare_lanes!(|a: f16| -> bf16 { f32_to_bf16(f16_to_f32(a)) }),
        ("rz", Type::Bf16, Type::F16, false, false) => rare_lanes!(|a: f16| -> bf16 { f32_to_bf16_rz(f16_to_f32(a)) }),
        ("rn", Type::F16, Type::Bf16, false, false) => rare_lanes!(|a: bf16| -> f16 { f32_to_f16(bf16_to_f32(a)) }),
        ("rz", Type::F16, Type::Bf16, false, false) => rare_lanes!(|a: bf16| -> f16 { f32_to_f16_rz(bf16_to_f32(a)) }),
        ("rn", Type::F16, Type::F64, false, false) => rare_lanes!(|a: f64| -> f16 { f32_to_f16(f64_to_f32_odd(a)) }),
        ("rn", Type::Bf16, Type::F64, false, false) => rare_lanes!(|a: f64| -> bf16 { f32_to_bf16(f64_to_f32_odd(a)) }),
        ("", Type::F32, Type::F32, true, false) => rare_lanes!(|a: f32| -> f32 { min_f32(max_f32(a, 0.0), 1.0) }),
        ("", Type::F32, Type::F32, false, true) => rare_lanes!(|a: f32| -> f32 { flush(a) }),
        ("rni", Type::F32, Type::F32, false, false) => lanes!(|a: f32| -> f32 { a.round_ties_even() }),
        ("rzi", Type::F32, Type::F32, false, false) => lanes!(|a: f32| -> f32 { a.trunc() }),
        ("rmi", Type::F32, Type::F32, false, false) => lanes!(|a: f32| -> f32 { a.floor() }),
        ("rpi", Type::F32, Type::F32, false, false) => lanes!(|a: f32| -> f32 { a.ceil() }),
        ("rni", Type::F64, Type::F64, false, false) => rare_lanes!(|a: f64| -> f64 { a.round_ties_even() }),
        ("rzi", Type::F64, Type::F64, false, false) => rare_lanes!(|a: f64| -> f64 { a.trunc() }),
        ("rmi", Type::F64, Type::F64, false, false) => rare_lanes!(|a: f64| -> f64 { a.floor() }),
        ("rpi", Type::F64, Type::F64, false, false) => rare_lanes!(|a: f64| -> f64 { a.ceil() }),
        _ => return None,
    })
}

/// Returns `cvt.<rounding>.f16x2.f32 d, a, b`. `a` becomes the upper half, and `b` the lower.
pub(crate) fn convert_pair(rounding: &str, to: Type, relu: bool) -> Option<LaneOp> {
    if relu {
        return Some(match (rounding, to) {
            ("rn", Type::F16x2) => {
                rare_lanes!(|a: f32, b: f32| -> [f16; 2] { [f32_to_f16(positive(b)), f32_to_f16(positive(a))] })
            }
            ("rn", Type::Bf16x2) => {
                rare_lanes!(|a: f32, b: f32| -> [bf16; 2] { [f32_to_bf16(positive(b)), f32_to_bf16(positive(a))] })
            }
            _ => return None,
        });
    }
    Some(match (rounding, to) {
        ("rn", Type::F16x2) => lanes!(|a: f32, b: f32| -> [f16; 2] { [f32_to_f16(b), f32_to_f16(a)] }),
        ("rz", Type::F16x2) => rare_lanes!(|a: f32, b: f32| -> [f16; 2] { [f32_to_f16_rz(b), f32_to_f16_rz(a)] }),
        ("rn", Type::Bf16x2) => lanes!(|a: f32, b: f32| -> [bf16; 2] { [f32_to_bf16(b), f32_to_bf16(a)] }),
        ("rz", Type::Bf16x2) => rare_lanes!(|a: f32, b: f32| -> [bf16; 2] { [f32_to_bf16_rz(b), f32_to_bf16_rz(a)] }),
        _ => return None,
    })
}

/// Replaces negative numbers by zero.
#[inline(always)]
fn positive(value: f32) -> f32 {
    if value < 0.0 { 0.0 } else { value }
}

/// Returns `cvt.<rounding>.tf32.f32`, which gives the nineteen bits of tf32 above thirteen zeros. Ties go to even, or
/// with `rna` away from zero.
pub(crate) fn convert_tf32(rounding: &str) -> Option<LaneOp> {
    macro_rules! op {
        ($form:ident, |$bits:ident| $rounded:expr) => {
            lanes!($form |a: f32| -> u32 {
                let $bits = a.to_bits();
                if a.is_nan() { 0x7fff_e000 } else { $rounded & !0x1fff }
            })
        };
    }
    Some(match rounding {
        "rna" => op!(wide, |bits| bits.wrapping_add(if is_finite(bits) { 0x1000 } else { 0 })),
        "rn" => op!(rare, |bits| bits.wrapping_add(if is_finite(bits) { 0xfff + (bits >> 13 & 1) } else { 0 })),
        "rz" => op!(rare, |bits| bits),
        _ => return None,
    })
}

/// Returns whether the bits of an f32 are a finite number.
#[inline(always)]
fn is_finite(bits: u32) -> bool {
    bits & 0x7f80_0000 != 0x7f80_0000
}
