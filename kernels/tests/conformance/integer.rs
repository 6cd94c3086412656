//! Integer arithmetic.

use crate::case::{Case, Expect};
use crate::types::{INTEGERS, Type};

/// Creates a case of integers. The reference computes in `i128`, and the result keeps the bits that fit.
fn exact(line: String, inputs: &[Type], output: Type, reference: impl Fn(&[i128]) -> i128 + 'static) -> Case {
    let types = inputs.to_vec();
    Case::lanes(line, inputs, output, move |bits| {
        let values: Vec<i128> = types.iter().zip(bits).map(|(ty, bits)| ty.integer(*bits)).collect();
        Expect::Bits(reference(&values) as u64 & output.mask())
    })
}

/// Returns the type of twice the width.
fn double(ty: Type) -> Type {
    match ty {
        Type::U16 => Type::U32,
        Type::S16 => Type::S32,
        Type::U32 => Type::U64,
        _ => Type::S64,
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in INTEGERS {
        let two = [ty; 2];
        cases.extend([
            exact(format!("add.{ty} %x, %a, %b;"), &two, ty, |v| v[0] + v[1]),
            exact(format!("sub.{ty} %x, %a, %b;"), &two, ty, |v| v[0] - v[1]),
            exact(format!("mul.lo.{ty} %x, %a, %b;"), &two, ty, |v| v[0].wrapping_mul(v[1])),
            exact(format!("mul.hi.{ty} %x, %a, %b;"), &two, ty, move |v| high(ty, v[0], v[1])),
            exact(format!("mad.lo.{ty} %x, %a, %b, %c;"), &[ty; 3], ty, |v| v[0].wrapping_mul(v[1]).wrapping_add(v[2])),
            exact(format!("mad.hi.{ty} %x, %a, %b, %c;"), &[ty; 3], ty, move |v| high(ty, v[0], v[1]) + v[2]),
            exact(format!("min.{ty} %x, %a, %b;"), &two, ty, |v| v[0].min(v[1])),
            exact(format!("max.{ty} %x, %a, %b;"), &two, ty, |v| v[0].max(v[1])),
        ]);
        // The result of a division by zero depends on the machine.
        let quotient = |opcode: &str, reference: fn(i128, i128) -> i128| {
            Case::lanes(format!("{opcode}.{ty} %x, %a, %b;"), &two, ty, move |bits| match ty.integer(bits[1]) {
                0 => Expect::Any,
                by => Expect::Bits(reference(ty.integer(bits[0]), by) as u64 & ty.mask()),
            })
        };
        cases.extend([quotient("div", |a, b| a / b), quotient("rem", |a, b| a % b)]);
        if ty.bits() < 64 {
            let wide = double(ty);
            cases.extend([
                exact(format!("mul.wide.{ty} %x, %a, %b;"), &two, wide, |v| v[0] * v[1]),
                exact(format!("mad.wide.{ty} %x, %a, %b, %c;"), &[ty, ty, wide], wide, |v| v[0] * v[1] + v[2]),
            ]);
        }
        if ty.is_signed() {
            cases.extend([
                exact(format!("abs.{ty} %x, %a;"), &[ty], ty, |v| v[0].abs()),
                exact(format!("neg.{ty} %x, %a;"), &[ty], ty, |v| -v[0]),
            ]);
        }
    }
    cases
}

/// Returns the upper half of a product.
fn high(ty: Type, a: i128, b: i128) -> i128 {
    if ty.is_signed() { (a * b) >> ty.bits() } else { ((a as u128 * b as u128) >> ty.bits()) as i128 }
}
