//! Operations of instructions with irregular forms.

use super::types::Type;
use crate::lanes::{LaneOp, lanes, rare_lanes};

/// Returns `bmsk`: a mask of `b` bits starting at bit `a`. Numbers beyond 31 wrap, or clamp the mask.
pub(crate) fn mask(wrap: bool) -> LaneOp {
    if wrap {
        rare_lanes!(|a: u32, b: u32| -> u32 { (((1u64 << (b & 31)) - 1) << (a & 31)) as u32 })
    } else {
        rare_lanes!(|a: u32, b: u32| -> u32 { if a > 31 { 0 } else { (((1u64 << b.min(32)) - 1) << a) as u32 } })
    }
}

/// Returns `sad`: `c` plus the absolute difference of `a` and `b`.
pub(crate) fn distance(ty: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($t:ty, $u:ty) => {
            rare_lanes!(|a: $t, b: $t, c: $u| -> $u { a.abs_diff(b).wrapping_add(c) })
        };
    }
    Some(match ty {
        Type::U16 => op!(u16, u16),
        Type::S16 => op!(i16, u16),
        Type::U32 => op!(u32, u32),
        Type::S32 => op!(i32, u32),
        Type::U64 => op!(u64, u64),
        Type::S64 => op!(i64, u64),
        _ => return None,
    })
}

/// Returns `dp4a`: `c` plus the dot product of the four bytes of `a` and of `b`, each signed or not.
pub(crate) fn dot4(a: Type, b: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($a:ty, $b:ty) => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 {
                let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
                let mut sum = c;
                for i in 0..4 {
                    sum = sum.wrapping_add((i32::from(a[i] as $a) * i32::from(b[i] as $b)) as u32);
                }
                sum
            })
        };
    }
    Some(match (a, b) {
        (Type::U32, Type::U32) => op!(u8, u8),
        (Type::U32, Type::S32) => op!(u8, i8),
        (Type::S32, Type::U32) => op!(i8, u8),
        (Type::S32, Type::S32) => op!(i8, i8),
        _ => return None,
    })
}

/// Returns `slct`: `a` if `c` is not negative, otherwise `b`. A NaN selects `b`.
pub(crate) fn select_by_sign(ty: Type, sign: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($t:ty) => {
            match sign {
                Type::S32 => rare_lanes!(|a: $t, b: $t, c: i32| -> $t { if c >= 0 { a } else { b } }),
                Type::F32 => rare_lanes!(|a: $t, b: $t, c: f32| -> $t { if c >= 0.0 { a } else { b } }),
                _ => return None,
            }
        };
    }
    Some(match ty.bytes() {
        2 => op!(u16),
        4 => op!(u32),
        8 => op!(u64),
        _ => return None,
    })
}

/// Returns `testp`: whether a number has a property.
pub(crate) fn test_property(property: &str, ty: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($t:ty) => {
            match property {
                "finite" => rare_lanes!(|a: $t| -> bool { a.is_finite() }),
                "infinite" => rare_lanes!(|a: $t| -> bool { a.is_infinite() }),
                "number" => rare_lanes!(|a: $t| -> bool { !a.is_nan() }),
                "notanumber" => rare_lanes!(|a: $t| -> bool { a.is_nan() }),
                "normal" => rare_lanes!(|a: $t| -> bool { a.is_normal() || a == 0.0 }),
                "subnormal" => rare_lanes!(|a: $t| -> bool { a.is_subnormal() }),
                _ => return None,
            }
        };
    }
    Some(match ty {
        Type::F32 => op!(f32),
        Type::F64 => op!(f64),
        _ => return None,
    })
}

/// Returns `prmt` with a mode: four bytes of `a` and `b`, selected by the lowest two bits of `c`.
pub(crate) fn permute(mode: &str) -> Option<LaneOp> {
    macro_rules! op {
        (|$c:ident, $place:ident| $choice:expr) => {
            rare_lanes!(|a: u32, b: u32, c: u32| -> u32 {
                let (bytes, $c, mut result) = (u64::from(b) << 32 | u64::from(a), c & 3, 0);
                for $place in 0..4u32 {
                    result |= ((bytes >> (8 * ($choice))) as u32 & 255) << (8 * $place);
                }
                result
            })
        };
    }
    Some(match mode {
        "f4e" => op!(|c, place| c + place),
        "b4e" => op!(|c, place| c.wrapping_sub(place) & 7),
        "rc8" => op!(|c, _place| c),
        "ecl" => op!(|c, place| c.max(place)),
        "ecr" => op!(|c, place| c.min(place)),
        "rc16" => op!(|c, place| (c & 1) * 2 + (place & 1)),
        _ => return None,
    })
}

/// Returns `bfind.shiftamt`: the shift that moves the highest non-sign bit to the top.
pub(crate) fn shift_amount(ty: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($t:ty, |$a:ident| $value:expr) => {
            rare_lanes!(|a: $t| -> u32 {
                let $a = a;
                let value = $value;
                if value == 0 { u32::MAX } else { value.leading_zeros() }
            })
        };
    }
    Some(match ty {
        Type::U32 => op!(u32, |a| a),
        Type::S32 => op!(i32, |a| if a < 0 { !a } else { a }),
        Type::U64 => op!(u64, |a| a),
        Type::S64 => op!(i64, |a| if a < 0 { !a } else { a }),
        _ => return None,
    })
}

/// Returns the sum, minimum or maximum of pairs of 16-bit integers.
pub(crate) fn pair(opcode: &str, ty: &str) -> Option<LaneOp> {
    macro_rules! op {
        ($t:ty, |$x:ident, $y:ident| $value:expr) => {
            rare_lanes!(|a: u32, b: u32| -> u32 {
                let mut result = 0;
                for half in [0, 16] {
                    let ($x, $y) = ((a >> half) as $t, (b >> half) as $t);
                    result |= u32::from($value as u16) << half;
                }
                result
            })
        };
    }
    Some(match (opcode, ty) {
        ("add", "u16x2" | "s16x2") => op!(u16, |x, y| x.wrapping_add(y)),
        ("min", "u16x2") => op!(u16, |x, y| x.min(y)),
        ("max", "u16x2") => op!(u16, |x, y| x.max(y)),
        ("min", "s16x2") => op!(i16, |x, y| x.min(y)),
        ("max", "s16x2") => op!(i16, |x, y| x.max(y)),
        _ => return None,
    })
}

/// Computes `bfi.b64`, which inserts a field of `a` into `b`.
pub(crate) fn insert_wide_field(a: u64, b: u64, at: u32, count: u32) -> u64 {
    let (at, count) = (at & 255, count & 255);
    if at > 63 || count == 0 {
        return b;
    }
    let field = if count > 63 { u64::MAX } else { (1 << count) - 1 };
    b & !(field << at) | (a & field) << at
}
