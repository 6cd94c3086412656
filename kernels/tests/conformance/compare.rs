//! `setp`: comparisons, and their combinations with predicates.

use std::cmp::Ordering;

use crate::case::{Case, Expect, widen};
use crate::types::Type;

/// Returns the comparison with this name. It takes the order of the operands, which is `None` if one is NaN.
fn test(name: &str) -> fn(Option<Ordering>) -> bool {
    match name {
        "eq" => |o| o == Some(Ordering::Equal),
        "ne" => |o| matches!(o, Some(Ordering::Less | Ordering::Greater)),
        "lt" | "lo" => |o| o == Some(Ordering::Less),
        "le" | "ls" => |o| matches!(o, Some(Ordering::Less | Ordering::Equal)),
        "gt" | "hi" => |o| o == Some(Ordering::Greater),
        "ge" | "hs" => |o| matches!(o, Some(Ordering::Greater | Ordering::Equal)),
        "equ" => |o| matches!(o, None | Some(Ordering::Equal)),
        "neu" => |o| o != Some(Ordering::Equal),
        "ltu" => |o| matches!(o, None | Some(Ordering::Less)),
        "leu" => |o| o != Some(Ordering::Greater),
        "gtu" => |o| matches!(o, None | Some(Ordering::Greater)),
        "geu" => |o| o != Some(Ordering::Less),
        "num" => |o| o.is_some(),
        "nan" => |o| o.is_none(),
        other => panic!("not a comparison: {other}"),
    }
}

const FLOATS: [&str; 14] = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

fn order(ty: Type, flush: bool, a: u64, b: u64) -> Option<Ordering> {
    match ty {
        Type::F16 | Type::Bf16 | Type::F32 | Type::F64 => {
            let value = |bits| match widen(ty, bits) {
                small if flush && small.abs() < f64::from(f32::MIN_POSITIVE) => 0.0,
                value => value,
            };
            value(a).partial_cmp(&value(b))
        }
        _ => Some(ty.integer(a).cmp(&ty.integer(b))),
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut compare = |ty: Type, names: &[&str], ftz: bool| {
        for name in names {
            let test = test(name);
            let line = format!("setp.{name}{}.{ty} %x, %a, %b;", if ftz { ".ftz" } else { "" });
            cases.push(Case::lanes(line, &[ty; 2], Type::Pred, move |v| {
                Expect::Bits(test(order(ty, ftz, v[0], v[1])).into())
            }));
        }
    };
    let signed = ["eq", "ne", "lt", "le", "gt", "ge"];
    let unsigned = ["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"];
    for ty in [Type::S16, Type::S32, Type::S64] {
        compare(ty, &signed, false);
    }
    for ty in [Type::U16, Type::U32, Type::U64] {
        compare(ty, &unsigned, false);
    }
    for ty in [Type::B16, Type::B32, Type::B64] {
        compare(ty, &["eq", "ne"], false);
    }
    for ty in [Type::F16, Type::Bf16, Type::F32, Type::F64] {
        compare(ty, &FLOATS, false);
    }
    compare(Type::F32, &FLOATS, true);
    cases.extend(combined());
    cases
}

/// The result combined with a predicate, and the complement combined with the same predicate.
fn combined() -> Vec<Case> {
    type Combine = fn(bool, bool) -> bool;
    let combinations: [(&str, Combine); 3] = [("and", |a, b| a & b), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)];
    let mut cases = Vec::new();
    for (combination, combine) in combinations {
        for ty in [Type::U32, Type::S32, Type::U64, Type::S64, Type::F32] {
            for (third, negated) in [("%c", false), ("!%c", true)] {
                let line = format!("setp.lt.{combination}.{ty} %x|%y, %a, %b, {third};");
                cases.push(Case::new(line, &[ty, ty, Type::Pred], &[Type::Pred; 2], move |operands, thread| {
                    let v = &operands[thread];
                    let less = order(ty, false, v[0], v[1]) == Some(Ordering::Less);
                    let with = (v[2] == 1) != negated;
                    [less, !less].map(|result| Expect::Bits(combine(result, with).into())).to_vec()
                }));
            }
            let line = format!("setp.ge.{combination}.{ty} %x, %a, %b, %c;");
            cases.push(Case::lanes(line, &[ty, ty, Type::Pred], Type::Pred, move |v| {
                let result = matches!(order(ty, false, v[0], v[1]), Some(Ordering::Greater | Ordering::Equal));
                Expect::Bits(combine(result, v[2] == 1).into())
            }));
        }
    }
    let pair = Case::new("setp.eq.u32 %x|%y, %a, %b;", &[Type::U32; 2], &[Type::Pred; 2], |operands, thread| {
        let equal = operands[thread][0] == operands[thread][1];
        vec![Expect::Bits(equal.into()), Expect::Bits((!equal).into())]
    });
    cases.push(pair);
    cases
}
