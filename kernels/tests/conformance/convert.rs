//! `cvt`: conversions between all types.

use crate::case::{Case, Expect};
use crate::exact::{Exact, Rounding};
use crate::float::{flush, saturate};
use crate::types::Type;

const INTEGERS: [Type; 8] = [Type::U8, Type::S8, Type::U16, Type::S16, Type::U32, Type::S32, Type::U64, Type::S64];

/// Roundings to an integral value.
const INTEGRAL: [(&str, Rounding); 4] =
    [("rni", Rounding::Nearest), ("rzi", Rounding::Zero), ("rmi", Rounding::Down), ("rpi", Rounding::Up)];

pub fn cases() -> Vec<Case> {
    [between_integers(), with_integers(), between_floats(), pairs()].into_iter().flatten().collect()
}

fn between_integers() -> Vec<Case> {
    let mut cases = Vec::new();
    for from in INTEGERS {
        for to in INTEGERS {
            cases.push(Case::lanes(format!("cvt.{to}.{from} %x, %a;"), &[from], to, move |v| {
                // A value that is narrower than its register is extended to the register.
                let register = if to.bits() == 8 { 0xffff } else { to.mask() };
                let kept = to.integer(from.integer(v[0]) as u64);
                Expect::Bits(kept as u64 & register)
            }));
        }
    }
    cases
}

fn with_integers() -> Vec<Case> {
    let mut cases = Vec::new();
    for integer in INTEGERS {
        for float in [Type::F16, Type::Bf16, Type::F32, Type::F64] {
            let narrow = matches!(float, Type::F16 | Type::Bf16);
            if float == Type::Bf16 && integer.bits() == 8 {
                continue; // no such form exists
            }
            // The conditions leave out forms that neither Rust nor a kernel uses: halves of 64-bit integers, narrow
            // integers of f64.
            if integer.bits() < 64 || !narrow {
                cases.push(Case::lanes(format!("cvt.rn.{float}.{integer} %x, %a;"), &[integer], float, move |v| {
                    Expect::Bits(Exact::of_integer(integer.integer(v[0])).round(float, Rounding::Nearest))
                }));
            }
            if integer.bits() == 64 || float != Type::F64 {
                for (name, rounding) in INTEGRAL {
                    let line = format!("cvt.{name}.{integer}.{float} %x, %a;");
                    let register = if integer.bits() == 8 { 0xffff } else { integer.mask() };
                    let convert =
                        move |bits| Exact::of(float, bits).round_to_integer(integer, rounding) as u64 & register;
                    cases.push(Case::lanes(line, &[float], integer, move |v| Expect::Bits(convert(v[0]))));
                    if float == Type::F32 {
                        let line = format!("cvt.{name}.ftz.{integer}.f32 %x, %a;");
                        cases.push(Case::lanes(line, &[float], integer, move |v| Expect::Bits(convert(flush(v[0])))));
                    }
                }
            }
        }
    }
    cases
}

/// 16-bit NaNs are canonical. The ISA does not specify other NaNs.
fn result(ty: Type, bits: u64) -> Expect {
    if ty.bits() == 16 { Expect::Bits(bits) } else { Expect::float(ty, bits) }
}

fn between_floats() -> Vec<Case> {
    use Type::{Bf16, F16, F32, F64};
    let mut cases = Vec::new();
    let mut convert = |modifiers: &str, to: Type, from: Type, rounding: Rounding| {
        let line = format!("cvt{modifiers}.{to}.{from} %x, %a;");
        let ftz = modifiers.ends_with(".ftz");
        cases.push(Case::lanes(line, &[from], to, move |v| {
            let bits = if ftz && from == F32 { flush(v[0]) } else { v[0] };
            result(to, Exact::of(from, bits).round(to, rounding))
        }));
    };
    // Widening is exact, since a subnormal half is a normal f32.
    for (modifiers, to, from) in [("", F32, F16), (".ftz", F32, F16), ("", F32, Bf16), ("", F64, F16)] {
        convert(modifiers, to, from, Rounding::Nearest);
    }
    convert("", F64, F32, Rounding::Nearest);
    convert(".ftz", F64, F32, Rounding::Nearest);
    convert(".ftz", F32, F32, Rounding::Nearest);
    for (to, from) in [(F32, F64), (F16, F32), (Bf16, F32), (F16, F64), (Bf16, F64)] {
        convert(".rn", to, from, Rounding::Nearest);
    }
    convert(".rn.ftz", F16, F32, Rounding::Nearest);
    convert(".rz", F16, F32, Rounding::Zero);
    convert(".rz", Bf16, F32, Rounding::Zero);
    for ty in [F32, F64] {
        for (name, rounding) in INTEGRAL {
            cases.push(Case::lanes(format!("cvt.{name}.{ty}.{ty} %x, %a;"), &[ty], ty, move |v| {
                let integral = match Exact::of(ty, v[0]) {
                    Exact::Finite { negative, mantissa, exponent: exponent @ ..0 } => {
                        let value = Exact::Finite { negative, mantissa, exponent };
                        let rounded = value.round_to_integer(Type::S64, rounding);
                        // A zero keeps the sign.
                        Exact::Finite { negative, mantissa: rounded.unsigned_abs(), exponent: 0 }
                    }
                    already => already,
                };
                result(ty, integral.round(ty, Rounding::Nearest))
            }));
        }
    }
    cases.push(Case::lanes("cvt.sat.f32.f32 %x, %a;", &[F32], F32, |v| Expect::Bits(saturate(v[0]))));
    cases
}

/// Converts two `f32` to a pair of halves. The first becomes the upper half.
fn pairs() -> Vec<Case> {
    let mut cases = Vec::new();
    for pair in [Type::F16x2, Type::Bf16x2] {
        for (name, rounding) in [("rn", Rounding::Nearest), ("rz", Rounding::Zero)] {
            cases.push(Case::lanes(format!("cvt.{name}.{pair}.f32 %x, %a, %b;"), &[Type::F32; 2], pair, move |v| {
                let half = |bits| Exact::of(Type::F32, bits).round(pair.halves(), rounding);
                Expect::Bits(half(v[0]) << 16 | half(v[1]))
            }));
        }
    }
    cases
}
