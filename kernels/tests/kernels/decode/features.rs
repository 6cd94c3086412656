//! Sinks, softcaps and windows in decode attention, and heads of 512.

use kernels::attention::{AttentionShape, CAPPED_HEAD_SIZES, HEAD_SIZES, UnsupportedShape};
use kernels::layout::KvFormat;
use workbench::number::Type;
use workbench::paged::{PagedProblem, PagedShape};

use super::{CODES, check_problem, shape, targets};

const CONTEXTS: [u32; 5] = [1, 300, 16, 33, 450];

#[test]
fn sinks_join_the_denominator() {
    let mut gpus = targets();
    for (i, head_size) in HEAD_SIZES.into_iter().enumerate() {
        let ty = Type::ALL[i % 2];
        for (heads, format) in [(6, KvFormat::Plain), (12, KvFormat::Plain), (4, CODES[i % 2])] {
            let window = [0, 40][i % 2];
            let shape = PagedShape { format, ..shape(ty, heads, 1, head_size, 16, window) };
            check_problem(&mut gpus, &PagedProblem::decode(shape, &CONTEXTS, 0, 3).with_sinks(), 4);
        }
    }
}

#[test]
fn softcaps_bound_scores() {
    let mut gpus = targets();
    for (i, head_size) in CAPPED_HEAD_SIZES.into_iter().enumerate() {
        for (ty, cap) in Type::ALL.into_iter().flat_map(|ty| [0.5, 3.0, 50.0].map(|cap| (ty, cap))) {
            let shape = shape(ty, 6 + 3 * i as u32, 3, head_size, 8 << i, [0, 17, 100][i]);
            let problem = PagedProblem::decode(shape, &CONTEXTS, 0, 4).with_softcap(cap);
            check_problem(&mut gpus, &problem, 5);
            check_problem(&mut gpus, &problem.with_sinks(), 5);
        }
    }
}

/// The greatest logit of a head may be the sink's by far, or the sink may be negligible.
#[test]
fn extreme_sinks_give_no_nan() {
    let mut gpus = targets();
    for cap in [None, Some(2.0)] {
        let mut problem = PagedProblem::decode(shape(Type::F16, 4, 2, 128, 16, 0), &[1, 500], 0, 5);
        problem.softcap = cap;
        problem.sinks = Some(vec![300.0, -300.0, 3e38, f32::NEG_INFINITY]);
        check_problem(&mut gpus, &problem, 3);
    }
}

/// Scores that differ by more than the exponents of `f32`, and products that are infinite as powers of two.
#[test]
fn large_products_under_a_softcap() {
    let mut gpus = targets();
    for ty in Type::ALL {
        let mut problem = PagedProblem::decode(shape(ty, 2, 1, 32, 16, 0), &[40, 300], 0, 6).with_softcap(20.0);
        problem.query.iter_mut().for_each(|q| *q = ty.bits(600.0 * ty.number(*q)));
        check_problem(&mut gpus, &problem, 3);
    }
}

#[test]
fn heads_of_512_in_every_format_and_window() {
    let mut gpus = targets();
    for (i, window) in [1, 16, 100, 257].into_iter().enumerate() {
        for format in [KvFormat::Plain, CODES[i % 2]] {
            let shape = PagedShape { format, ..shape(Type::ALL[i / 2], 4, 2, 512, 8 << (i % 3), window) };
            check_problem(&mut gpus, &PagedProblem::decode(shape, &[1, 17, 100, 258, 400], 0, 7), 4);
        }
    }
}

#[test]
fn softcaps_without_a_kernel_are_refused() {
    let shape = |size| AttentionShape::new(8, 2, size, 16).unwrap();
    assert!(shape(256).with_softcap().is_ok());
    let refused = shape(512).with_softcap().unwrap_err();
    assert_eq!(refused, UnsupportedShape::Capped(512));
    assert_eq!(
        refused.to_string(),
        "attention with a softcap has no kernels for head size 512; supported head sizes: [32, 128, 256]"
    );
}
