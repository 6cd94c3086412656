//! Bitwise logic, shifts, bit fields, and moves between registers.

use crate::case::{Case, Expect};
use crate::types::Type;

fn bits(line: String, inputs: &[Type], output: Type, reference: impl Fn(&[u64]) -> u64 + 'static) -> Case {
    Case::lanes(line, inputs, output, move |values| Expect::Bits(reference(values) & output.mask()))
}

pub fn cases() -> Vec<Case> {
    [logic(), shifts(), counts(), fields(), moves()].into_iter().flatten().collect()
}

fn logic() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in [Type::Pred, Type::B16, Type::B32, Type::B64] {
        cases.extend([
            bits(format!("and.{ty} %x, %a, %b;"), &[ty; 2], ty, |v| v[0] & v[1]),
            bits(format!("or.{ty} %x, %a, %b;"), &[ty; 2], ty, |v| v[0] | v[1]),
            bits(format!("xor.{ty} %x, %a, %b;"), &[ty; 2], ty, |v| v[0] ^ v[1]),
            bits(format!("not.{ty} %x, %a;"), &[ty], ty, |v| !v[0]),
        ]);
        if ty != Type::Pred {
            cases.push(bits(format!("cnot.{ty} %x, %a;"), &[ty], ty, |v| u64::from(v[0] == 0)));
        }
    }
    for table in [0x96u8, 0xea, 0xe8, 0xca, 0x01, 0x80, 0x78, 0x2d] {
        let line = format!("lop3.b32 %x, %a, %b, %c, {table};");
        cases.push(bits(line, &[Type::B32; 3], Type::B32, move |v| {
            // The three bits are the index into the table, and the bit of `a` is the highest.
            (0..32)
                .map(|bit| {
                    let row = (v[0] >> bit & 1) * 4 + (v[1] >> bit & 1) * 2 + (v[2] >> bit & 1);
                    u64::from(table >> row & 1) << bit
                })
                .sum()
        }));
    }
    cases
}

fn shifts() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in [Type::B16, Type::B32, Type::B64] {
        let left = move |v: &[u64]| if v[1] < 64 { v[0] << v[1] } else { 0 };
        cases.push(bits(format!("shl.{ty} %x, %a, %b;"), &[ty, Type::Count], ty, left));
    }
    let right = [Type::B16, Type::B32, Type::B64, Type::U16, Type::U32, Type::U64, Type::S16, Type::S32, Type::S64];
    for ty in right {
        let shift = move |v: &[u64]| (ty.integer(v[0]) >> v[1].min(100)) as u64;
        cases.push(bits(format!("shr.{ty} %x, %a, %b;"), &[ty, Type::Count], ty, shift));
    }
    let both = |v: &[u64]| u128::from(v[1] << 32 | v[0]);
    let funnel = [Type::B32, Type::B32, Type::Count];
    cases.extend([
        bits("shf.l.wrap.b32 %x, %a, %b, %c;".into(), &funnel, Type::B32, move |v| {
            (both(v) << (v[2] % 32) >> 32) as u64
        }),
        bits("shf.r.wrap.b32 %x, %a, %b, %c;".into(), &funnel, Type::B32, move |v| (both(v) >> (v[2] % 32)) as u64),
        bits("shf.l.clamp.b32 %x, %a, %b, %c;".into(), &funnel, Type::B32, move |v| {
            (both(v) << v[2].min(32) >> 32) as u64
        }),
        bits("shf.r.clamp.b32 %x, %a, %b, %c;".into(), &funnel, Type::B32, move |v| (both(v) >> v[2].min(32)) as u64),
    ]);
    cases
}

/// Counting and finding bits.
fn counts() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in [Type::B32, Type::B64] {
        let width = ty.bits();
        let reversed = move |v: &[u64]| (0..width).map(|bit| (v[0] >> bit & 1) << (width - 1 - bit)).sum();
        cases.extend([
            bits(format!("popc.{ty} %x, %a;"), &[ty], Type::U32, move |v| (0..width).map(|bit| v[0] >> bit & 1).sum()),
            bits(format!("clz.{ty} %x, %a;"), &[ty], Type::U32, move |v| {
                (0..width).rev().take_while(|bit| v[0] >> bit & 1 == 0).count() as u64
            }),
            bits(format!("brev.{ty} %x, %a;"), &[ty], ty, reversed),
        ]);
    }
    for ty in [Type::U32, Type::S32, Type::U64] {
        cases.push(bits(format!("bfind.{ty} %x, %a;"), &[ty], Type::U32, move |v| {
            let value = ty.integer(v[0]);
            let value = if value < 0 { -value - 1 } else { value };
            value.checked_ilog2().map_or(u64::MAX, u64::from)
        }));
    }
    cases
}

fn fields() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in [Type::U32, Type::S32, Type::U64] {
        let line = format!("bfe.{ty} %x, %a, %b, %c;");
        cases.push(bits(line, &[ty, Type::Count, Type::Count], ty, move |v| {
            // Only eight bits of position and length count. Bits past the value repeat its sign.
            let (at, length) = (v[1] & 255, v[2] & 255);
            let shifted = ty.integer(v[0]) >> at.min(100);
            match length {
                0 => 0,
                1..64 => {
                    let field = shifted as u64 & ((1 << length) - 1);
                    let sign = ty.is_signed() && shifted >> (length - 1) & 1 == 1;
                    if sign { field | !((1 << length) - 1) } else { field }
                }
                _ => shifted as u64,
            }
        }));
    }
    let line = "bfi.b32 %x, %a, %b, %c, %e;".into();
    cases.push(bits(line, &[Type::B32, Type::B32, Type::Count, Type::Count], Type::B32, |v| {
        let (at, length) = (v[2] & 255, v[3] & 255);
        (0..32).fold(v[1], |result, bit| {
            let inside = bit >= at && bit - at < length;
            let source = if inside { v[0] >> (bit - at) & 1 } else { result >> bit & 1 };
            result & !(1 << bit) | source << bit
        })
    }));
    cases.push(bits("prmt.b32 %x, %a, %b, %c;".into(), &[Type::B32; 3], Type::B32, |v| {
        let bytes = [v[0].to_le_bytes(), v[1].to_le_bytes()];
        let chosen = |place: u32| {
            let choice = v[2] >> (4 * place) & 15;
            let byte = bytes[(choice & 7) as usize / 4][(choice & 3) as usize];
            // The fourth bit replicates the byte's sign instead.
            u64::from(if choice < 8 { byte } else { (byte as i8 >> 7) as u8 })
        };
        (0..4).map(|place| chosen(place) << (8 * place)).sum()
    }));
    cases
}

/// `mov` and `selp`.
fn moves() -> Vec<Case> {
    let mut cases = Vec::new();
    let all = [Type::B16, Type::U16, Type::S16, Type::B32, Type::U32, Type::S32, Type::F32];
    for ty in all.into_iter().chain([Type::B64, Type::U64, Type::S64, Type::F64]) {
        cases.push(bits(format!("mov.{ty} %x, %a;"), &[ty], ty, |v| v[0]));
        let select = |v: &[u64]| if v[2] == 1 { v[0] } else { v[1] };
        cases.push(bits(format!("selp.{ty} %x, %a, %b, %c;"), &[ty, ty, Type::Pred], ty, select));
    }
    cases.push(bits("mov.pred %x, %a;".into(), &[Type::Pred], Type::Pred, |v| v[0]));
    cases.push(bits("mov.pred %x, 0;".into(), &[Type::Pred], Type::Pred, |_| 0));
    cases.push(bits("mov.pred %x, -1;".into(), &[Type::Pred], Type::Pred, |_| 1));
    for (whole, part) in [(Type::B32, Type::B16), (Type::B64, Type::B32)] {
        let width = part.bits();
        cases.push(bits(format!("mov.{whole} %x, {{%a, %b}};"), &[part; 2], whole, move |v| v[0] | v[1] << width));
        let line = format!("mov.{whole} {{%x, %y}}, %a;");
        cases.push(Case::new(line, &[whole], &[part; 2], move |operands, thread| {
            let value = operands[thread][0];
            vec![Expect::Bits(value & part.mask()), Expect::Bits(value >> width)]
        }));
    }
    cases
}
