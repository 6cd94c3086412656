//! Branches, guards, exits of threads, and registers that describe the thread.

use crate::case::{BLOCK, Case, Expect, GRID};
use crate::types::Type;

pub fn cases() -> Vec<Case> {
    let chosen = |line: &str, taken: u64, not: u64| {
        Case::lanes(line, &[Type::Pred], Type::U32, move |v| Expect::Bits(if v[0] == 1 { taken } else { not }))
    };
    let mut cases = vec![
        chosen("@%a bra past;", 1, 2).before("mov.b32 %x, 1;").after("mov.b32 %x, 2;\npast:"),
        chosen("@!%a bra past;", 2, 1).before("mov.b32 %x, 1;").after("mov.b32 %x, 2;\npast:"),
        chosen("bra.uni past;", 1, 1).before("mov.b32 %x, 1;").after("mov.b32 %x, 2;\npast:"),
        // Guarded instructions also execute in only some lanes.
        chosen("@%a mov.b32 %x, 3;", 3, 1).before("mov.b32 %x, 1;"),
        chosen("@!%a mov.b32 %x, 3;", 1, 3).before("mov.b32 %x, 1;"),
    ];
    // Each lane branches to the target that its operand selects.
    let table = Case::lanes("brx.idx %r0, targets;", &[Type::B32], Type::U32, |v| Expect::Bits(10 + v[0] % 3));
    cases.push(
        table
            .before("rem.u32 %r0, %a, 3;\nmov.b32 %x, 10;\ntargets: .branchtargets zero, one, two;")
            .after("two:\nadd.s32 %x, %x, 1;\none:\nadd.s32 %x, %x, 1;\nzero:"),
    );
    for end in ["ret", "exit"] {
        let case = chosen(&format!("@%a {end};"), 1, 2);
        cases.push(case.before("mov.b64 %d0, 1;\nst.global.b64 [%out], %d0;").after("mov.b32 %x, 2;"));
    }
    type OfThread = fn(usize) -> usize;
    let registers: [(&str, OfThread); 13] = [
        ("%tid.x", |thread| thread % BLOCK),
        ("%tid.y", |_| 0),
        ("%tid.z", |_| 0),
        ("%ntid.x", |_| BLOCK),
        ("%ntid.y", |_| 1),
        ("%ntid.z", |_| 1),
        ("%ctaid.x", |thread| thread / BLOCK),
        ("%ctaid.y", |_| 0),
        ("%ctaid.z", |_| 0),
        ("%nctaid.x", |_| GRID),
        ("%nctaid.y", |_| 1),
        ("%nctaid.z", |_| 1),
        ("%laneid", |thread| thread % 32),
    ];
    for (register, reference) in registers {
        cases.push(Case::new(format!("mov.u32 %x, {register};"), &[Type::Pred], &[Type::U32], move |_, thread| {
            vec![Expect::Bits(reference(thread) as u64)]
        }));
    }
    cases
}
