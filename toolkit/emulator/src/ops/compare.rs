//! Comparisons and selections.

use super::types::Type;
use crate::lanes::{LaneOp, lanes, rare_lanes};
use crate::number::{bf16_to_f32, f16_to_f32, flush};
use half::{bf16, f16};

/// Calls a macro with the comparisons of floats added to its arguments, each as a name and a test.
///
/// If an operand is NaN, the plain forms are false and the forms with `u` are true.
macro_rules! float_tests {
    ($macro:ident!($($arguments:tt)*)) => {
        $macro!($($arguments)*, {
            "eq" => |a, b| a == b,
            "ne" => |a, b| a < b || a > b,
            "lt" => |a, b| a < b,
            "le" => |a, b| a <= b,
            "gt" => |a, b| a > b,
            "ge" => |a, b| a >= b,
            "equ" => |a, b| !(a < b || a > b),
            "neu" => |a, b| a != b,
            "ltu" => |a, b| !(a >= b),
            "leu" => |a, b| !(a > b),
            "gtu" => |a, b| !(a <= b),
            "geu" => |a, b| !(a < b),
            "num" => |a, b| !a.is_nan() && !b.is_nan(),
            "nan" => |a, b| a.is_nan() || b.is_nan(),
        })
    };
}

/// Returns the comparison of `setp.<name>.<type>`.
pub(crate) fn compare(name: &str, ty: Type, ftz: bool) -> Option<LaneOp> {
    macro_rules! ordered {
        ($form:ident, $t:ty) => {
            match name {
                "eq" => lanes!($form |a: $t, b: $t| -> bool { a == b }),
                "ne" => lanes!($form |a: $t, b: $t| -> bool { a != b }),
                "lt" | "lo" => lanes!($form |a: $t, b: $t| -> bool { a < b }),
                "le" | "ls" => lanes!($form |a: $t, b: $t| -> bool { a <= b }),
                "gt" | "hi" => lanes!($form |a: $t, b: $t| -> bool { a > b }),
                "ge" | "hs" => lanes!($form |a: $t, b: $t| -> bool { a >= b }),
                _ => return None,
            }
        };
    }
    macro_rules! float {
        ($form:ident, $t:ty, |$x:ident| $value:expr) => {
            float_tests!(float!(@all $form, $t, |$x| $value))
        };
        (@all $form:ident, $t:ty, |$x:ident| $value:expr, { $($name:literal => |$a:ident, $b:ident| $test:expr,)+ }) => {
            match name {
                $($name => lanes!($form |a: $t, b: $t| -> bool {
                    let $a = { let $x = a; $value };
                    let $b = { let $x = b; $value };
                    $test
                }),)+
                _ => return None,
            }
        };
    }
    #[allow(
        clippy::neg_cmp_op_on_partial_ord,
        clippy::double_comparisons,
        reason = "unordered comparisons are true for NaN"
    )]
    Some(match ty {
        Type::F32 if ftz => float!(rare, f32, |x| flush(x)),
        Type::F32 => float!(wide, f32, |x| x),
        _ if ftz => return None,
        Type::F64 => float!(rare, f64, |x| x),
        Type::F16 => float!(rare, f16, |x| f16_to_f32(x)),
        Type::Bf16 => float!(rare, bf16, |x| bf16_to_f32(x)),
        Type::B16 | Type::U16 => ordered!(rare, u16),
        Type::S16 => ordered!(rare, i16),
        Type::B32 | Type::U32 => ordered!(wide, u32),
        Type::S32 => ordered!(wide, i32),
        Type::B64 | Type::U64 => ordered!(wide, u64),
        Type::S64 => ordered!(wide, i64),
        _ => return None,
    })
}

/// Returns the comparison of `set.<name>.<type>.<type>` on pairs of halves. A true half becomes 1, or all ones with
/// `mask`. A false half becomes 0.
pub(crate) fn set_pair(name: &str, ty: Type, mask: bool) -> Option<LaneOp> {
    macro_rules! op {
        ($h:ty, $to:ident, $holds:expr, { $($name:literal => |$a:ident, $b:ident| $test:expr,)+ }) => {
            match name {
                $($name => rare_lanes!(|a: [$h; 2], b: [$h; 2]| -> [$h; 2] {
                    let mut result = [<$h>::ZERO; 2];
                    for half in 0..2 {
                        let ($a, $b) = ($to(a[half]), $to(b[half]));
                        if $test {
                            result[half] = $holds;
                        }
                    }
                    result
                }),)+
                _ => return None,
            }
        };
    }
    macro_rules! tests {
        ($h:ty, $to:ident, $holds:expr) => {
            float_tests!(op!($h, $to, $holds))
        };
    }
    #[allow(
        clippy::neg_cmp_op_on_partial_ord,
        clippy::double_comparisons,
        reason = "unordered comparisons are true for NaN"
    )]
    Some(match ty {
        Type::F16x2 if mask => tests!(f16, f16_to_f32, f16::from_bits(u16::MAX)),
        Type::F16x2 => tests!(f16, f16_to_f32, f16::ONE),
        Type::Bf16x2 if mask => tests!(bf16, bf16_to_f32, bf16::from_bits(u16::MAX)),
        Type::Bf16x2 => tests!(bf16, bf16_to_f32, bf16::ONE),
        _ => return None,
    })
}

/// Returns `selp`: the first operand if the predicate is true, otherwise the second.
pub(crate) fn select(ty: Type) -> Option<LaneOp> {
    Some(match ty.bytes() {
        2 => lanes!(|a: u16, b: u16, c: bool| -> u16 { if c { a } else { b } }),
        4 => lanes!(|a: u32, b: u32, c: bool| -> u32 { if c { a } else { b } }),
        8 => lanes!(|a: u64, b: u64, c: bool| -> u64 { if c { a } else { b } }),
        _ => return None,
    })
}
