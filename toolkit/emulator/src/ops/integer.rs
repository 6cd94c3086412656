//! Integer arithmetic, shifts, bit fields and logic.

use super::modifiers::Modifiers;
use super::types::Type;
use crate::lanes::{LaneOp, lanes, rare_lanes};

pub(super) fn integer(opcode: &str, ty: Type, modifiers: Modifiers) -> Option<LaneOp> {
    if modifiers.wide || modifiers.hi {
        return product(opcode, ty, modifiers);
    }
    Some(match (opcode, ty) {
        ("mov" | "and" | "or" | "xor" | "not" | "cnot" | "shl", _) => return bitwise(opcode, ty.bytes(), ty),
        ("shr", _) => return shift_right(ty),
        ("add" | "sub" | "mul" | "mad", _) => return wrapping(opcode, ty),
        ("div" | "rem" | "min" | "max" | "abs" | "neg", _) => return ordered(opcode, ty),
        ("popc", Type::B32) => lanes!(|a: u32| -> u32 { a.count_ones() }),
        ("popc", Type::B64) => lanes!(|a: u64| -> u32 { a.count_ones() }),
        ("clz", Type::B32) => lanes!(|a: u32| -> u32 { a.leading_zeros() }),
        ("clz", Type::B64) => lanes!(|a: u64| -> u32 { a.leading_zeros() }),
        ("brev", Type::B32) => lanes!(|a: u32| -> u32 { a.reverse_bits() }),
        ("brev", Type::B64) => lanes!(|a: u64| -> u64 { a.reverse_bits() }),
        ("bfind", Type::U32) => lanes!(|a: u32| -> u32 { 31u32.wrapping_sub(a.leading_zeros()) }),
        ("bfind", Type::S32) => {
            lanes!(|a: i32| -> u32 { 31u32.wrapping_sub((if a < 0 { !a } else { a }).leading_zeros()) })
        }
        ("bfind", Type::U64) => lanes!(|a: u64| -> u32 { 63u32.wrapping_sub(a.leading_zeros()) }),
        ("bfe", Type::U32) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            let (at, count) = (b & 255, c & 255);
            let shifted = if at > 31 { 0 } else { a >> at };
            if count > 31 { shifted } else { shifted & ((1 << count) - 1) }
        }),
        ("bfe", Type::S32) => lanes!(|a: i32, b: u32, c: u32| -> i32 {
            let (at, count) = ((b & 255).min(31), (c & 255).min(32));
            // Bits beyond the top repeat the sign. A field of no bits is zero.
            let lost = 32 - count;
            let wide = i64::from(a) >> at;
            if count == 0 { 0 } else { ((wide as u64) << lost) as u32 as i32 >> lost }
        }),
        ("bfe", Type::U64) => lanes!(|a: u64, b: u32, c: u32| -> u64 {
            let (at, count) = (b & 255, c & 255);
            let shifted = if at > 63 { 0 } else { a >> at };
            if count > 63 { shifted } else { shifted & ((1 << count) - 1) }
        }),
        ("prmt", Type::B32) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            let bytes = u64::from(b) << 32 | u64::from(a);
            let mut result = 0;
            for place in 0..4 {
                let choice = c >> (4 * place);
                let byte = (bytes >> (8 * (choice & 7))) as u32 & 255;
                let sign = if byte & 128 != 0 { 255 } else { 0 };
                result |= (if choice & 8 != 0 { sign } else { byte }) << (8 * place);
            }
            result
        }),
        _ => return None,
    })
}

/// Returns a funnel shift to the left or right, which wraps or clamps the distance.
pub(crate) fn funnel(left: bool, wrap: bool) -> LaneOp {
    match (left, wrap) {
        (true, true) => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32 })
        }
        (true, false) => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { ((u64::from(b) << 32 | u64::from(a)) << c.min(32) >> 32) as u32 })
        }
        (false, true) => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32 })
        }
        (false, false) => {
            lanes!(|a: u32, b: u32, c: u32| -> u32 { ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32 })
        }
    }
}

fn bitwise(opcode: &str, bytes: u8, ty: Type) -> Option<LaneOp> {
    if ty == Type::Predicate {
        return Some(match opcode {
            "mov" => lanes!(|a: bool| -> bool { a }),
            "and" => lanes!(|a: bool, b: bool| -> bool { a & b }),
            "or" => lanes!(|a: bool, b: bool| -> bool { a | b }),
            "xor" => lanes!(|a: bool, b: bool| -> bool { a ^ b }),
            "not" => lanes!(|a: bool| -> bool { !a }),
            _ => return None,
        });
    }
    macro_rules! op {
        ($t:ty, $bits:literal) => {
            match opcode {
                "mov" => lanes!(|a: $t| -> $t { a }),
                "and" => lanes!(|a: $t, b: $t| -> $t { a & b }),
                "or" => lanes!(|a: $t, b: $t| -> $t { a | b }),
                "xor" => lanes!(|a: $t, b: $t| -> $t { a ^ b }),
                "not" => lanes!(|a: $t| -> $t { !a }),
                "cnot" => lanes!(|a: $t| -> $t { (a == 0).into() }),
                "shl" => lanes!(|a: $t, b: u32| -> $t { if b >= $bits { 0 } else { a << b } }),
                _ => return None,
            }
        };
    }
    Some(match bytes {
        2 => op!(u16, 16),
        4 => op!(u32, 32),
        8 => op!(u64, 64),
        _ => return None,
    })
}

fn shift_right(ty: Type) -> Option<LaneOp> {
    Some(match ty {
        Type::S16 => rare_lanes!(|a: i16, b: u32| -> i16 { a >> b.min(15) }),
        Type::S32 => lanes!(|a: i32, b: u32| -> i32 { a >> b.min(31) }),
        Type::S64 => lanes!(|a: i64, b: u32| -> i64 { a >> b.min(63) }),
        Type::B16 | Type::U16 => rare_lanes!(|a: u16, b: u32| -> u16 { if b > 15 { 0 } else { a >> b } }),
        Type::B32 | Type::U32 => lanes!(|a: u32, b: u32| -> u32 { if b > 31 { 0 } else { a >> b } }),
        Type::B64 | Type::U64 => lanes!(|a: u64, b: u32| -> u64 { if b > 63 { 0 } else { a >> b } }),
        _ => return None,
    })
}

fn wrapping(opcode: &str, ty: Type) -> Option<LaneOp> {
    macro_rules! op {
        ($t:ty) => {
            match opcode {
                "add" => lanes!(|a: $t, b: $t| -> $t { a.wrapping_add(b) }),
                "sub" => lanes!(|a: $t, b: $t| -> $t { a.wrapping_sub(b) }),
                "mul" => lanes!(|a: $t, b: $t| -> $t { a.wrapping_mul(b) }),
                _ => lanes!(|a: $t, b: $t, c: $t| -> $t { a.wrapping_mul(b).wrapping_add(c) }),
            }
        };
    }
    Some(match ty {
        Type::U16 | Type::S16 => op!(u16),
        Type::U32 | Type::S32 => op!(u32),
        Type::U64 | Type::S64 => op!(u64),
        _ => return None,
    })
}

/// Returns an operation that depends on the sign. Division by zero gives all ones, as on the hardware.
fn ordered(opcode: &str, ty: Type) -> Option<LaneOp> {
    macro_rules! unsigned {
        ($form:ident, $t:ty) => {
            match opcode {
                "div" => lanes!($form |a: $t, b: $t| -> $t { a.checked_div(b).unwrap_or(<$t>::MAX) }),
                "rem" => lanes!($form |a: $t, b: $t| -> $t { a.checked_rem(b).unwrap_or(a) }),
                "min" => lanes!($form |a: $t, b: $t| -> $t { a.min(b) }),
                "max" => lanes!($form |a: $t, b: $t| -> $t { a.max(b) }),
                _ => return None,
            }
        };
    }
    macro_rules! signed {
        ($form:ident, $t:ty) => {
            match opcode {
                "div" => lanes!($form |a: $t, b: $t| -> $t { if b == 0 { -1 } else { a.wrapping_div(b) } }),
                "rem" => lanes!($form |a: $t, b: $t| -> $t { if b == 0 { a } else { a.wrapping_rem(b) } }),
                "min" => lanes!($form |a: $t, b: $t| -> $t { a.min(b) }),
                "max" => lanes!($form |a: $t, b: $t| -> $t { a.max(b) }),
                "abs" => lanes!($form |a: $t| -> $t { a.wrapping_abs() }),
                _ => lanes!($form |a: $t| -> $t { a.wrapping_neg() }),
            }
        };
    }
    Some(match ty {
        Type::U16 => unsigned!(rare, u16),
        Type::U32 => unsigned!(wide, u32),
        Type::U64 => unsigned!(wide, u64),
        Type::S16 => signed!(rare, i16),
        Type::S32 => signed!(wide, i32),
        Type::S64 => signed!(wide, i64),
        _ => return None,
    })
}

/// Returns `.wide` and `.hi` products.
fn product(opcode: &str, ty: Type, modifiers: Modifiers) -> Option<LaneOp> {
    macro_rules! wide {
        ($form:ident, $t:ty, $wide:ty) => {
            match opcode {
                "mul" => lanes!($form |a: $t, b: $t| -> $wide { <$wide>::from(a) * <$wide>::from(b) }),
                "mad" => {
                    lanes!($form |a: $t, b: $t, c: $wide| -> $wide { (<$wide>::from(a) * <$wide>::from(b)).wrapping_add(c) })
                }
                _ => return None,
            }
        };
    }
    macro_rules! high {
        ($form:ident, $t:ty, $wide:ty) => {
            match opcode {
                "mul" => lanes!($form |a: $t, b: $t| -> $t { ((<$wide>::from(a) * <$wide>::from(b)) >> <$t>::BITS) as $t }),
                "mad" => lanes!($form |a: $t, b: $t, c: $t| -> $t {
                    (((<$wide>::from(a) * <$wide>::from(b)) >> <$t>::BITS) as $t).wrapping_add(c)
                }),
                _ => return None,
            }
        };
    }
    Some(match (ty, modifiers.hi) {
        (Type::U16, false) => wide!(rare, u16, u32),
        (Type::S16, false) => wide!(rare, i16, i32),
        (Type::U32, false) => wide!(wide, u32, u64),
        (Type::S32, false) => wide!(wide, i32, i64),
        (Type::U16, true) => high!(rare, u16, u32),
        (Type::S16, true) => high!(rare, i16, i32),
        (Type::U32, true) => high!(wide, u32, u64),
        (Type::S32, true) => high!(rare, i32, i64),
        (Type::U64, true) => high!(wide, u64, u128),
        (Type::S64, true) => high!(rare, i64, i128),
        _ => return None,
    })
}

/// Computes `bfi.b32`, which inserts a field of `a` into `b`. It has four operands, so it is not an operation on lanes.
pub(crate) fn insert_field(a: u32, b: u32, at: u32, count: u32) -> u32 {
    let (at, count) = (at & 255, count & 255);
    if at > 31 || count == 0 {
        return b;
    }
    let field = if count > 31 { u32::MAX } else { (1 << count) - 1 };
    b & !(field << at) | (a & field) << at
}

/// Computes `lop3.b32`: any function of three bits, given as a truth table.
pub(crate) fn logic3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    (0..8).filter(|row| table >> row & 1 == 1).fold(0, |result, row| {
        let pick = |bit: u32, value: u32| if row >> bit & 1 == 1 { value } else { !value };
        result | pick(2, a) & pick(1, b) & pick(0, c)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_inserted_and_tables_applied() {
        assert_eq!(insert_field(0xff, 0, 8, 4), 0xf00);
        assert_eq!(insert_field(0xff, 7, 40, 4), 7);
        assert_eq!(logic3(0xf0, 0xcc, 0xaa, 0x96) & 0xff, 0xf0 ^ 0xcc ^ 0xaa);
        assert_eq!(logic3(0xf0, 0xcc, 0xaa, 0xea) & 0xff, 0xf0 & 0xcc | 0xaa);
    }
}
