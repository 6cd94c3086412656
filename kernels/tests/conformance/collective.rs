//! Operations that the lanes of a warp execute together, and barriers of warps and blocks.

use crate::case::{BLOCK, Case, Expect};
use crate::types::Type;

/// Returns the number of the first thread in a thread's warp.
fn warp(thread: usize) -> usize {
    thread / 32 * 32
}

/// Creates a case whose reference sees the operands of the warp and the lane.
fn of_warp(
    line: impl Into<String>,
    inputs: &[Type],
    outputs: &[Type],
    reference: impl Fn(&[Vec<u64>], usize) -> Vec<u64> + 'static,
) -> Case {
    Case::new(line, inputs, outputs, move |operands, thread| {
        let first = warp(thread);
        reference(&operands[first..first + 32], thread - first).into_iter().map(Expect::Bits).collect()
    })
}

pub fn cases() -> Vec<Case> {
    [shuffles(), votes(), reductions(), barriers()].into_iter().flatten().collect()
}

/// Returns the lane that a shuffle reads and whether it is in range, as the ISA defines it.
fn source(mode: &str, lane: i64, operand: i64, clamp: i64) -> (usize, bool) {
    let (operand, bound, segment) = (operand & 31, clamp & 31, clamp >> 8 & 31);
    let last = lane & segment | bound & !segment;
    let (from, valid) = match mode {
        "up" => (lane - operand, lane - operand >= last),
        "down" => (lane + operand, lane + operand <= last),
        "bfly" => (lane ^ operand, lane ^ operand <= last),
        _ => {
            let from = lane & segment | operand & !segment;
            (from, from <= last)
        }
    };
    (if valid { from } else { lane } as usize, valid)
}

fn shuffles() -> Vec<Case> {
    let mut cases = Vec::new();
    for mode in ["up", "down", "bfly", "idx"] {
        let bound = if mode == "up" { 0 } else { 31 };
        // Groups of 32, 8 and 4 lanes, and one that ends within its group.
        for clamp in [bound, 0x1800 | bound, 0x1c00 | bound, 0x1003] {
            for operand in [1, 2, 5, 16, 31] {
                let line = format!("shfl.sync.{mode}.b32 %x, %a, {operand}, {clamp}, -1;");
                cases.push(of_warp(line, &[Type::B32], &[Type::B32], move |warp, lane| {
                    vec![warp[source(mode, lane as i64, operand, clamp).0][0]]
                }));
            }
            // Each lane asks for a different lane.
            let line = format!("shfl.sync.{mode}.b32 %x|%y, %a, %b, {clamp}, -1;");
            let types = [Type::B32, Type::Count];
            cases.push(of_warp(line, &types, &[Type::B32, Type::Pred], move |warp, lane| {
                let (from, valid) = source(mode, lane as i64, warp[lane][1] as i64, clamp);
                vec![warp[from][0], valid.into()]
            }));
        }
    }
    cases
}

fn votes() -> Vec<Case> {
    let holding = |warp: &[Vec<u64>]| warp.iter().filter(|v| v[0] == 1).count();
    let vote = |mode: &str, reference: fn(usize) -> bool| {
        // Depends on the lane's number too, so some warps agree.
        let agree = "mov.u32 %r0, %laneid;\nsetp.ne.u32 %p0, %r0, 9;\nmov.u32 %r1, %ctaid.x;\n\
                     setp.eq.u32 %p1, %r1, 1;\nor.pred %p2, %a, %p1;\nsetp.eq.u32 %p1, %r1, 2;\nnot.pred %p1, %p1;\n\
                     and.pred %p2, %p2, %p1;";
        let line = format!("vote.sync.{mode}.pred %x, %p2, -1;");
        Case::new(line, &[Type::Pred], &[Type::Pred], move |operands, thread| {
            let first = warp(thread);
            let holds = match thread / BLOCK {
                1 => 32,
                2 => 0,
                _ => holding(&operands[first..first + 32]),
            };
            vec![Expect::Bits(reference(holds).into())]
        })
        .before(agree)
    };
    let ballot = |line: &str, negated: u64| {
        of_warp(line, &[Type::Pred], &[Type::B32], move |warp, _| {
            vec![warp.iter().enumerate().map(|(lane, v)| (v[0] ^ negated) << lane).sum()]
        })
    };
    vec![
        vote("all", |holds| holds == 32),
        vote("any", |holds| holds > 0),
        vote("uni", |holds| holds == 0 || holds == 32),
        ballot("vote.sync.ballot.b32 %x, %a, -1;", 0),
        ballot("vote.sync.ballot.b32 %x, !%a, -1;", 1),
        of_warp("activemask.b32 %x;", &[Type::B32], &[Type::B32], |_, _| vec![u64::from(u32::MAX)]),
        // Half of the warp votes.
        Case::new("@%p0 vote.sync.ballot.b32 %x, %a, 0xffff;", &[Type::Pred], &[Type::B32], |operands, thread| {
            let (first, lane) = (warp(thread), thread % 32);
            let ballot = (0..16).map(|lane| operands[first + lane][0] << lane).sum();
            vec![Expect::Bits(if lane < 16 { ballot } else { 0 })]
        })
        .before("mov.b32 %x, 0;\nmov.u32 %r0, %laneid;\nsetp.lt.u32 %p0, %r0, 16;"),
    ]
}

fn reductions() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut reduction = |opcode: &str, ty: Type, combine: fn(i128, i128) -> i128| {
        let line = format!("redux.sync.{opcode}.{ty} %x, %a, -1;");
        cases.push(of_warp(line, &[ty], &[ty], move |warp, _| {
            let all = warp.iter().map(|v| ty.integer(v[0])).reduce(combine);
            vec![all.map_or(0, |value| value as u64 & ty.mask())]
        }));
    };
    for ty in [Type::U32, Type::S32] {
        reduction("add", ty, |a, b| a + b);
        reduction("min", ty, i128::min);
        reduction("max", ty, i128::max);
    }
    reduction("and", Type::B32, |a, b| a & b);
    reduction("or", Type::B32, |a, b| a | b);
    reduction("xor", Type::B32, |a, b| a ^ b);
    for (ty, register) in [(Type::B32, "%r0"), (Type::B64, "%d0")] {
        let line = format!("match.any.sync.{ty} %x, {register}, -1;");
        let case = of_warp(line, &[ty], &[Type::B32], |warp, lane| {
            let same = |other: usize| u64::from(warp[other][0] & 3 == warp[lane][0] & 3) << other;
            vec![(0..32).map(same).sum()]
        });
        // Only two bits, so some lanes agree.
        cases.push(case.before(format!("and.{ty} {register}, %a, 3;")));
    }
    cases
}

/// Every thread writes its word, and after the barrier reads another thread's word.
fn barriers() -> Vec<Case> {
    let exchange = |line: &str, distance: usize, before: &str, after: &str| {
        Case::new(line, &[Type::B32], &[Type::B32], move |operands, thread| {
            vec![Expect::Bits(operands[thread ^ distance][0])]
        })
        .before(format!("st.shared.b32 [%tile], %a;\n{before}"))
        .after(format!(
            "{after}\nxor.b32 %r0, %t, {distance};\nsub.s32 %r0, %r0, %t;\nmad.lo.s32 %r0, %r0, 32, %tile;\n\
             ld.shared.b32 %x, [%r0];"
        ))
    };
    let far = BLOCK / 2;
    vec![
        exchange("bar.warp.sync -1;", 17, "", ""),
        exchange("bar.sync 0;", far, "", ""),
        exchange("bar.sync 3, 256;", far, "", ""),
        exchange("barrier.sync.aligned 2;", far, "", ""),
        // Each half of the block arrives at the barrier at which the other half waits.
        exchange(
            "@%p0 bar.arrive 1, 256;",
            far,
            "setp.lt.u32 %p0, %t, 128;\nmembar.cta;",
            "@!%p0 bar.sync 1, 256;\n@!%p0 bar.arrive 2, 256;\n@%p0 bar.sync 2, 256;",
        ),
    ]
}
