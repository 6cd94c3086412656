//! Correctly rounded arithmetic in all floating-point formats.

use std::cmp::Ordering;

use crate::case::{Case, Expect, widen};
use crate::exact::{Exact, Rounding};
use crate::types::Type;

/// Replaces a subnormal by a zero of its sign.
pub fn flush(bits: u64) -> u64 {
    if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

/// Computes an operation from the bits of one number for each operand. `Exact::round` defines the NaNs.
type Operation = Box<dyn Fn(Type, &[u64]) -> u64>;

fn rounded(exact: impl Fn(&[Exact]) -> Exact + 'static) -> Operation {
    Box::new(move |ty, v| {
        let values: Vec<Exact> = v.iter().map(|bits| Exact::of(ty, *bits)).collect();
        exact(&values).round(ty, Rounding::Nearest)
    })
}

/// Computes in the host's f64, which has more than twice the bits of an f32. Rounding twice then equals rounding once.
fn through_f64(function: fn(&[f64]) -> f64) -> Operation {
    Box::new(move |ty, v| {
        let values: Vec<f64> = v.iter().map(|bits| widen(ty, *bits)).collect();
        Exact::of(Type::F64, function(&values).to_bits()).round(ty, Rounding::Nearest)
    })
}

/// Returns the extreme of two numbers. A number wins over NaN, unless `nan_wins`.
fn extreme(keep: Ordering, nan_wins: bool) -> Operation {
    Box::new(move |ty, v| {
        let [a, b] = [widen(ty, v[0]), widen(ty, v[1])];
        let nan = Exact::Nan.round(ty, Rounding::Nearest);
        match (a.is_nan(), b.is_nan()) {
            (true, true) => nan,
            (true, false) | (false, true) if nan_wins => nan,
            (true, false) => v[1],
            (false, true) => v[0],
            // -0 is below +0.
            _ if a.total_cmp(&b) == keep => v[0],
            _ => v[1],
        }
    })
}

/// Returns the operations, each with its name up to the type's modifiers. `f32` and `f64` have more operations.
fn operations(ty: Type) -> Vec<(&'static str, usize, Operation)> {
    let half = !matches!(ty, Type::F32 | Type::F64);
    let mut operations: Vec<(&str, usize, Operation)> = vec![
        ("add", 2, rounded(|v| v[0].plus(v[1]))),
        ("add.rn", 2, rounded(|v| v[0].plus(v[1]))),
        ("sub", 2, rounded(|v| v[0].plus(v[1].negate()))),
        ("sub.rn", 2, rounded(|v| v[0].plus(v[1].negate()))),
        ("mul", 2, rounded(|v| v[0].times(v[1]))),
        ("mul.rn", 2, rounded(|v| v[0].times(v[1]))),
        ("fma.rn", 3, rounded(|v| v[0].times(v[1]).plus(v[2]))),
        ("min", 2, extreme(Ordering::Less, false)),
        ("max", 2, extreme(Ordering::Greater, false)),
    ];
    if half || ty == Type::F32 {
        operations.push(("min.NaN", 2, extreme(Ordering::Less, true)));
        operations.push(("max.NaN", 2, extreme(Ordering::Greater, true)));
    }
    if half {
        operations.push((
            "fma.rn.relu",
            3,
            Box::new(|ty, v| {
                let values: Vec<Exact> = v.iter().map(|bits| Exact::of(ty, *bits)).collect();
                let result = values[0].times(values[1]).plus(values[2]);
                // The ISA does not specify zeros. Here -0 stays, and other negative values become 0 before rounding.
                let negative =
                    matches!(result, Exact::Infinity { negative: true } | Exact::Finite { negative: true, .. });
                let result = if negative && !result.is_zero() { Exact::of_integer(0) } else { result };
                result.round(ty, Rounding::Nearest)
            }),
        ));
    } else {
        operations.push(("div.rn", 2, through_f64(|v| v[0] / v[1])));
        operations.push(("sqrt.rn", 1, through_f64(|v| v[0].sqrt())));
        operations.push(("rcp.rn", 1, through_f64(|v| 1.0 / v[0])));
    }
    operations
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in [Type::F16, Type::Bf16, Type::F16x2, Type::Bf16x2, Type::F32, Type::F64] {
        for (name, arity, operation) in operations(ty) {
            let line = instruction(&format!("{name}.{ty}"), arity);
            cases.push(Case::lanes(line, &vec![ty; arity], ty, move |v| each(ty, v, &operation)));
        }
        cases.extend(signs(ty));
    }
    for (name, arity, operation) in operations(Type::F32) {
        // The rounding modifier comes before `.ftz`, and `.NaN` after it.
        let name = match name.strip_suffix(".NaN") {
            Some(name) => format!("{name}.ftz.NaN.f32"),
            None => format!("{name}.ftz.f32"),
        };
        cases.push(Case::lanes(instruction(&name, arity), &vec![Type::F32; arity], Type::F32, move |v| {
            let flushed: Vec<u64> = v.iter().map(|bits| flush(*bits)).collect();
            Expect::float(Type::F32, flush(operation(Type::F32, &flushed)))
        }));
    }
    for (name, arity, operation) in operations(Type::F32) {
        if ["add.rn", "sub.rn", "mul.rn", "fma.rn"].contains(&name) {
            let line = instruction(&format!("{name}.sat.f32"), arity);
            cases.push(Case::lanes(line, &vec![Type::F32; arity], Type::F32, move |v| {
                Expect::Bits(saturate(operation(Type::F32, v)))
            }));
        }
    }
    cases
}

/// Clamps a value to between 0 and 1. NaN becomes 0.
pub fn saturate(bits: u64) -> u64 {
    match widen(Type::F32, bits) {
        value if value >= 1.0 => 0x3f80_0000,
        value if value > 0.0 => bits,
        _ => 0,
    }
}

fn instruction(opcode: &str, arity: usize) -> String {
    format!("{opcode} %x, {};", ["%a", "%b", "%c"][..arity].join(", "))
}

/// Applies an operation to a number, or to each of a pair. 16-bit NaNs are canonical. The ISA does not specify other
/// NaNs.
fn each(ty: Type, v: &[u64], operation: &Operation) -> Expect {
    match ty {
        Type::F16x2 | Type::Bf16x2 => {
            let half = |shift: u32| {
                let parts: Vec<u64> = v.iter().map(|pair| pair >> shift & 0xffff).collect();
                operation(ty.halves(), &parts)
            };
            Expect::Bits(half(0) | half(16) << 16)
        }
        Type::F16 | Type::Bf16 => Expect::Bits(operation(ty, v)),
        _ => Expect::float(ty, operation(ty, v)),
    }
}

/// `abs`, `neg` and `copysign`. The ISA does not specify which NaN results from a NaN.
fn signs(ty: Type) -> Vec<Case> {
    let (halves, sign) = match ty {
        Type::F16x2 | Type::Bf16x2 => (vec![(0, ty.halves()), (16, ty.halves())], 1u64 << 15),
        _ => (vec![(0, ty)], 1 << (ty.bits() - 1)),
    };
    let change = |opcode: &str, change: fn(u64, u64) -> u64| {
        let halves = halves.clone();
        Case::lanes(format!("{opcode}.{ty} %x, %a;"), &[ty], ty, move |v| {
            let expected = halves.iter().map(|&(shift, one)| {
                let bits = v[0] >> shift & one.mask();
                (Expect::float(one, change(bits, sign)), shift)
            });
            expected
                .reduce(|low, high| match (low.0, high.0) {
                    (Expect::Bits(low), Expect::Bits(upper)) => (Expect::Bits(low | upper << high.1), 0),
                    _ => (Expect::Any, 0),
                })
                .map_or(Expect::Any, |(expect, _)| expect)
        })
    };
    let mut cases = vec![change("abs", |bits, sign| bits & !sign), change("neg", |bits, sign| bits ^ sign)];
    if matches!(ty, Type::F32 | Type::F64) {
        let line = format!("copysign.{ty} %x, %a, %b;");
        let copy = move |v: &[u64]| Expect::float(ty, v[0] & sign | v[1] & !sign);
        cases.push(Case::lanes(line, &[ty; 2], ty, copy));
    }
    cases
}
