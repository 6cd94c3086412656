//! Sinks, softcaps and windows in prefill attention, heads of 512, and prompts whose prefix is known.

use kernels::attention::{CAPPED_HEAD_SIZES, HEAD_SIZES};
use kernels::layout::KvFormat;
use workbench::number::{ProblemRng, Type};
use workbench::paged::{PagedProblem, PagedShape};

use super::{attend, check, hopper, shape, span};
use crate::frame::gpu::Gpu;

#[test]
fn sinks_join_the_denominator() {
    for (i, head_size) in HEAD_SIZES.into_iter().enumerate() {
        for format in [KvFormat::Plain, [KvFormat::Int8, KvFormat::Fp8][i % 2]] {
            let shape = PagedShape { ty: Type::ALL[i % 2], format, ..shape(2, 3, head_size, 16, [0, 30][i % 2]) };
            let problem = PagedProblem::new(shape, &[span(40, 40), span(3, 90), span(21, 70)], 0, i as u64);
            check(&problem.with_sinks(), 5);
        }
    }
}

#[test]
fn softcaps_bound_scores() {
    for (i, head_size) in CAPPED_HEAD_SIZES.into_iter().enumerate() {
        for (j, cap) in [0.5, 3.0, 50.0].into_iter().enumerate() {
            let ty = Type::ALL[(i + j) % 2];
            let shape = PagedShape { ty, ..shape(2, 2, head_size, 8 << i, [0, 25, 70][i]) };
            let problem = PagedProblem::new(shape, &[span(50, 50), span(1, 90), span(33, 140)], 0, 4);
            check(&problem.with_softcap(cap), 0);
        }
        let problem = PagedProblem::new(shape(1, 4, head_size, 16, 0), &[span(30, 100)], 0, 5);
        check(&problem.with_softcap(2.0).with_sinks(), 0);
    }
}

#[test]
fn extreme_sinks_give_no_nan() {
    for (head_size, cap) in [(64, None), (32, Some(2.0))] {
        let mut problem = PagedProblem::new(shape(2, 2, head_size, 16, 0), &[span(9, 9), span(2, 130)], 0, 5);
        problem.softcap = cap;
        problem.sinks = Some(vec![300.0, -300.0, 3e38, f32::NEG_INFINITY]);
        check(&problem, 0);
    }
}

#[test]
fn heads_of_512_in_every_format() {
    for (i, format) in KvFormat::ALL.into_iter().enumerate() {
        let shape = PagedShape { ty: Type::ALL[i % 2], format, ..shape(1, 3, 512, 8 << i, [0, 1, 50][i]) };
        check(&PagedProblem::new(shape, &[span(13, 13), span(40, 131)], 0, 6), 3);
    }
}

/// Tokens get the same bits whether their prefix is known or computed in the same launch. Keys begin at any token of a
/// tile because of the windows, and the references of the softmax are raised at different keys in different rows.
#[test]
fn a_known_prefix_gives_the_same_bits() {
    const CONTEXT: u32 = 300;
    for (i, (head_size, format, capped)) in [
        (32, KvFormat::Plain, true),
        (64, KvFormat::Plain, false),
        (64, KvFormat::Fp8, false),
        (128, KvFormat::Plain, false),
        (128, KvFormat::Plain, true),
        (512, KvFormat::Plain, false),
        (512, KvFormat::Int8, false),
    ]
    .into_iter()
    .enumerate()
    {
        for window in [0, [1, 37][i % 2], [128, 200][i % 2]] {
            let shape = PagedShape { format, ..shape(1, 2, head_size, 8 << (i % 3), window) };
            let mut whole = PagedProblem::new(shape, &[span(CONTEXT, CONTEXT)], 0, i as u64).with_sinks();
            let mut random = ProblemRng(7);
            whole.query.iter_mut().for_each(|query| *query = shape.ty.bits(60.0 * random.unit()));
            whole.softcap = capped.then_some(30.0);
            let supported = whole.supported().unwrap();
            for on_hopper in [false, true] {
                if on_hopper && !hopper::shape::serves(supported) {
                    continue;
                }
                let mut gpu = Gpu::new("sm_90a");
                let mut run = |problem: &PagedProblem| attend(&mut gpu, problem, 0, on_hopper).unwrap().0;
                let all = run(&whole);
                let parts: &[u32] =
                    if window == 0 { &[1, 50, 129, 299] } else { [&[1, 129][..], &[50, 299]][i / 2 % 2] };
                for &new in parts {
                    let mut part = PagedProblem::new(shape, &[span(CONTEXT, CONTEXT)], 0, i as u64).with_sinks();
                    part.softcap = whole.softcap;
                    part.spans[0].new = new;
                    let row = (shape.heads * head_size) as usize;
                    part.query = whole.query[whole.query.len() - new as usize * row..].to_vec();
                    assert!(
                        run(&part)[..] == all[all.len() - new as usize * row..],
                        "{shape:?}, {new} new tokens, Hopper: {on_hopper}"
                    );
                }
            }
        }
    }
}
