//! f16 and bf16 arithmetic, scalar and packed.
//!
//! Sums and products are computed in f32 and then rounded again, which never changes the result. Fused operations are
//! first rounded to odd.

use super::modifiers::Modifiers;
use super::types::Type;
use crate::lanes::{LaneOp, lanes, rare_lanes};
use crate::number::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, fused, max_f32, min_f32};
use half::{bf16, f16};

pub(super) fn half(opcode: &str, ty: Type, m: Modifiers) -> Option<LaneOp> {
    if m.ftz || m.sat && (m.nan || m.relu || !matches!(opcode, "add" | "sub" | "mul" | "fma")) {
        return None;
    }
    macro_rules! op {
        ($form:ident, $h:ty, $pair:literal, $to:ident, $from:ident, |$($name:ident),+| $body:expr) => {
            if $pair {
                lanes!($form |$($name: [$h; 2]),+| -> [$h; 2] {
                    let mut result = [<$h>::ZERO; 2];
                    for half in 0..2 {
                        $(let $name = $to($name[half]);)+
                        result[half] = $from($body);
                    }
                    result
                })
            } else {
                rare_lanes!(|$($name: $h),+| -> $h { $(let $name = $to($name);)+ $from($body) })
            }
        };
    }
    macro_rules! forms {
        ($h:ty, $pair:literal, $to:ident, $from:ident) => {
            match (opcode, m.nan, m.relu) {
                ("add", ..) if m.sat => op!(rare, $h, $pair, $to, $from, |a, b| min_f32(max_f32(a + b, 0.0), 1.0)),
                ("sub", ..) if m.sat => op!(rare, $h, $pair, $to, $from, |a, b| min_f32(max_f32(a - b, 0.0), 1.0)),
                ("mul", ..) if m.sat => op!(rare, $h, $pair, $to, $from, |a, b| min_f32(max_f32(a * b, 0.0), 1.0)),
                ("fma", ..) if m.sat => {
                    op!(rare, $h, $pair, $to, $from, |a, b, c| min_f32(max_f32(fused(a, b, c), 0.0), 1.0))
                }
                ("add", false, false) => op!(wide, $h, $pair, $to, $from, |a, b| a + b),
                ("sub", false, false) => op!(wide, $h, $pair, $to, $from, |a, b| a - b),
                ("mul", false, false) => op!(wide, $h, $pair, $to, $from, |a, b| a * b),
                ("fma", false, false) => op!(wide, $h, $pair, $to, $from, |a, b, c| fused(a, b, c)),
                ("fma", false, true) => op!(rare, $h, $pair, $to, $from, |a, b, c| {
                    let value = fused(a, b, c);
                    if value < 0.0 { 0.0 } else { value }
                }),
                ("min", false, false) => op!(wide, $h, $pair, $to, $from, |a, b| min_f32(a, b)),
                ("max", false, false) => op!(wide, $h, $pair, $to, $from, |a, b| max_f32(a, b)),
                ("min", true, false) => {
                    op!(rare, $h, $pair, $to, $from, |a, b| if a.is_nan() || b.is_nan() {
                        f32::NAN
                    } else {
                        min_f32(a, b)
                    })
                }
                ("max", true, false) => {
                    op!(rare, $h, $pair, $to, $from, |a, b| if a.is_nan() || b.is_nan() {
                        f32::NAN
                    } else {
                        max_f32(a, b)
                    })
                }
                ("abs", false, false) => op!(wide, $h, $pair, $to, $from, |a| a.abs()),
                ("neg", false, false) => op!(wide, $h, $pair, $to, $from, |a| -a),
                ("ex2", false, false) => op!(rare, $h, $pair, $to, $from, |a| f64::from(a).exp2() as f32),
                ("tanh", false, false) => op!(rare, $h, $pair, $to, $from, |a| f64::from(a).tanh() as f32),
                _ => return None,
            }
        };
    }
    Some(match ty {
        Type::F16 => forms!(f16, false, f16_to_f32, f32_to_f16),
        Type::F16x2 => forms!(f16, true, f16_to_f32, f32_to_f16),
        Type::Bf16 => forms!(bf16, false, bf16_to_f32, f32_to_bf16),
        Type::Bf16x2 => forms!(bf16, true, bf16_to_f32, f32_to_bf16),
        _ => return None,
    })
}
