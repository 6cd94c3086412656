//! `atom` and `red`. Each thread uses a word of its own, so the values before and after are known.

use crate::case::{Case, Expect, is_nan};
use crate::exact::{Exact, Rounding};
use crate::float::flush;
use crate::types::Type;

/// Computes the value that an operation leaves in memory, from the old value and its operands.
type Operation = fn(Type, &[u64]) -> u64;

/// Returns the greater or the smaller value, as numbers of the type.
fn keep(ty: Type, v: &[u64], greater: bool) -> u64 {
    if (ty.integer(v[1]) > ty.integer(v[0])) == greater { v[1] } else { v[0] }
}

fn float_sum(ty: Type, v: &[u64]) -> u64 {
    Exact::of(ty, v[0]).plus(Exact::of(ty, v[1])).round(ty, Rounding::Nearest)
}

/// Adds two pairs.
fn pair_sums(ty: Type, v: &[u64]) -> u64 {
    let half = |shift: u32| float_sum(ty.halves(), &[v[0] >> shift & 0xffff, v[1] >> shift & 0xffff]);
    half(0) | half(16) << 16
}

/// Returns the operations and the types that support them.
fn operations() -> Vec<(&'static str, Vec<Type>, Operation)> {
    use Type::{B32, B64, Bf16x2, F16x2, F32, F64, S32, S64, U32, U64};
    vec![
        ("add", vec![U32, S32, U64], |_, v| v[0].wrapping_add(v[1])),
        ("add", vec![F32, F64], float_sum),
        ("add.noftz", vec![F16x2, Bf16x2], pair_sums),
        ("min", vec![U32, S32, U64, S64], |ty, v| keep(ty, v, false)),
        ("max", vec![U32, S32, U64, S64], |ty, v| keep(ty, v, true)),
        ("and", vec![B32, B64], |_, v| v[0] & v[1]),
        ("or", vec![B32, B64], |_, v| v[0] | v[1]),
        ("xor", vec![B32, B64], |_, v| v[0] ^ v[1]),
        ("inc", vec![U32], |_, v| if v[0] >= v[1] { 0 } else { v[0] + 1 }),
        ("dec", vec![U32], |_, v| if v[0] == 0 || v[0] > v[1] { v[1] } else { v[0] - 1 }),
        ("exch", vec![B32, B64], |_, v| v[1]),
        ("cas", vec![B32, B64], |_, v| if v[0] == v[1] { v[2] } else { v[0] }),
    ]
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let orders = ["", ".relaxed.gpu", ".relaxed.cta", ".acquire.gpu", ".release.gpu", ".acq_rel.gpu", ".relaxed.sys"];
    let places = [("", "%out"), (".global", "%out"), (".shared", "%tile")];
    for (name, types, operation) in operations() {
        for ty in types {
            for order in orders {
                for (space, address) in places {
                    // Only global memory supports additions of halves.
                    if name == "add.noftz" && space == ".shared" {
                        continue;
                    }
                    cases.push(case("atom", &format!("{order}{space}.{name}"), address, ty, operation));
                    let reduces = !matches!(name, "exch" | "cas") && !order.contains("acq");
                    if reduces {
                        cases.push(case("red", &format!("{order}{space}.{name}"), address, ty, operation));
                    }
                }
            }
        }
    }
    cases
}

fn case(opcode: &str, modifiers: &str, address: &str, ty: Type, operation: Operation) -> Case {
    let swaps = modifiers.ends_with("cas");
    let inputs = if swaps { vec![ty; 3] } else { vec![ty; 2] };
    let operands = if swaps { "%b, %c" } else { "%b" };
    let returns = opcode == "atom";
    let result = if returns { "%x, " } else { "" };
    let line = format!("{opcode}{modifiers}.{ty} {result}[{address}], {operands};");
    let shared = address == "%tile";
    let outputs = vec![ty; 1 + usize::from(returns)];
    let register = ty.register();
    let space = if shared { "shared" } else { "global" };
    let case = Case::new(line, &inputs, &outputs, move |operands, thread| {
        let v = &operands[thread];
        let after = if ty == Type::F32 && !shared {
            // In global memory subnormals count as zero.
            flush(operation(ty, &[flush(v[0]), flush(v[1])]))
        } else {
            operation(ty, v) & ty.mask()
        };
        let float = matches!(ty, Type::F32 | Type::F64);
        let after = if float && is_nan(ty, after) { Expect::Nan(ty) } else { Expect::Bits(after) };
        if returns { vec![Expect::Bits(v[0]), after] } else { vec![after] }
    });
    let last = if returns { "%y" } else { "%x" };
    case.before(format!("st.{space}.{register} [{address}], %a;"))
        .after(format!("ld.{space}.{register} {last}, [{address}];"))
}
