//! Attention over 8-bit caches, against plain attention in `f64` over the decoded numbers.

use kernels::attention::CAPPED_HEAD_SIZES;
use workbench::number::Type;
use workbench::paged::{PagedProblem, PagedShape};

use crate::decode::{self, CODES};
use crate::prefill::{self, span};

#[test]
fn decode_in_every_head_size_block_size_and_group_size() {
    let (mut gpus, contexts) = (decode::targets(), [1, 700, 16, 33, 300]);
    for (i, (heads, kv_heads, head_size, block_size, slots)) in [
        (2, 2, 32, 8, 5),
        (9, 1, 32, 16, 7),
        (3, 1, 64, 32, 3),
        (8, 2, 64, 8, 6),
        (20, 1, 64, 16, 2),
        (4, 4, 128, 16, 9),
        (7, 1, 128, 32, 3),
        (12, 2, 128, 8, 5),
        (3, 3, 80, 16, 4),
        (12, 1, 80, 8, 3),
        (10, 2, 80, 32, 7),
        (6, 2, 96, 16, 5),
        (9, 1, 96, 8, 2),
        (4, 2, 256, 16, 6),
        (12, 1, 256, 32, 3),
        (2, 1, 256, 8, 9),
    ]
    .into_iter()
    .enumerate()
    {
        for format in CODES {
            let shape = decode::shape(Type::ALL[i % 2], heads, kv_heads, head_size, block_size, 0);
            decode::check(&mut gpus, PagedShape { format, ..shape }, &contexts, 1, slots);
        }
    }
}

#[test]
fn prefill_in_every_head_size_block_size_and_group() {
    let cases = [
        (prefill::shape(3, 1, 32, 8, 0), vec![span(1, 1), span(64, 64), span(65, 200)]),
        (prefill::shape(1, 16, 32, 16, 1), vec![span(9, 9), span(1, 40)]),
        (prefill::shape(2, 3, 64, 16, 20), vec![span(43, 43), span(1, 1), span(30, 77)]),
        (prefill::shape(1, 7, 64, 32, 0), vec![span(20, 40), span(3, 700)]),
        (prefill::shape(2, 1, 64, 8, 33), vec![span(70, 220), span(0, 30), span(5, 5)]),
        (prefill::shape(2, 8, 128, 16, 0), vec![span(20, 60), span(17, 49)]),
        (prefill::shape(1, 1, 128, 32, 64), vec![span(70, 220)]),
        (prefill::shape(1, 2, 128, 8, 0), vec![span(100, 130)]),
        (prefill::shape(2, 3, 80, 16, 20), vec![span(43, 43), span(1, 1), span(30, 77)]),
        (prefill::shape(1, 1, 80, 8, 0), vec![span(70, 220)]),
        (prefill::shape(1, 4, 80, 32, 0), vec![span(33, 700)]),
        (prefill::shape(2, 2, 96, 16, 0), vec![span(64, 64), span(0, 30), span(65, 100)]),
        (prefill::shape(1, 1, 96, 32, 33), vec![span(70, 220)]),
        (prefill::shape(1, 3, 256, 16, 0), vec![span(40, 90), span(1, 33)]),
        (prefill::shape(1, 1, 256, 8, 40), vec![span(70, 130)]),
    ];
    for (seed, (shape, spans)) in cases.into_iter().enumerate() {
        // Each head size has two cases or more, so it has all pairs of types.
        for (i, format) in CODES.into_iter().enumerate() {
            let ty = Type::ALL[(seed + i) % 2];
            prefill::check(&PagedProblem::new(PagedShape { ty, format, ..shape }, &spans, 2, seed as u64), 0);
        }
    }
}

/// Kernels that ignored the padding would read other tokens.
#[test]
fn padding_after_blocks_is_skipped() {
    let mut gpus = decode::targets();
    for (i, (format, head_size)) in CODES.into_iter().flat_map(|format| [(format, 64), (format, 512)]).enumerate() {
        let shape = PagedShape { format, ..decode::shape(Type::ALL[i % 2], 6, 3, head_size, 16, 40) };
        let problem = PagedProblem::decode(shape, &[5, 300, 90], 0, 3).with_padding(1 + 16 * i as u32);
        decode::check_problem(&mut gpus, &problem, 3);
        let problem = PagedProblem::new(shape, &[span(40, 200), span(3, 60)], 0, 5).with_padding(1 + 16 * i as u32);
        prefill::check(&problem, 0);
    }
}

#[test]
fn softcaps_apply_to_scaled_scores() {
    let mut gpus = decode::targets();
    for (i, (format, head_size)) in CODES.into_iter().flat_map(|f| CAPPED_HEAD_SIZES.map(|size| (f, size))).enumerate()
    {
        for (ty, cap) in [(Type::ALL[i % 2], 0.5), (Type::ALL[(i + 1) % 2], 20.0)] {
            let shape = PagedShape { format, ..decode::shape(ty, 6, 2, head_size, 8 << (i % 3), [0, 25][i % 2]) };
            let problem = PagedProblem::decode(shape, &[1, 300, 33], 0, 4).with_softcap(cap);
            decode::check_problem(&mut gpus, &problem, 5);
            let problem = PagedProblem::new(shape, &[span(50, 50), span(33, 140)], 0, 4).with_softcap(cap);
            prefill::check(&if i % 3 == 0 { problem.with_sinks() } else { problem }, 0);
        }
    }
}

/// Scales of values are folded into the weights, which are rounded to 16 bits. Small values, and values near the
/// largest `f16`, must be as precise as others.
#[test]
fn values_of_any_size_are_weighted() {
    let mut gpus = decode::targets();
    for (format, factor) in CODES.into_iter().flat_map(|format| [1e-2, 3e4].map(|factor| (format, factor))) {
        let shape = PagedShape { format, ..decode::shape(Type::F16, 4, 1, 64, 16, 0) };
        let problem = PagedProblem::decode(shape, &[5, 700, 90], 0, 3).with_values_times(factor);
        decode::check_problem(&mut gpus, &problem, 3);
        let shape = PagedShape { format, ..prefill::shape(1, 2, 64, 16, 0) };
        prefill::check(&PagedProblem::new(shape, &[span(40, 400)], 0, 5).with_values_times(factor), 0);
    }
}
