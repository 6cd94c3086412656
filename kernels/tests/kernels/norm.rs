//! Norms of rows.
//!
//! Tried by hand on the source: without the bound `at(i) < vectors` in `sum`, `rows_of_any_width_are_normalised` fails.

use workbench::cases::norm::{NormProblem, divided, gated, part, squares};
use workbench::number::Type;

use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate::without_each;

fn norm(ty: Type, layer: bool, rows: usize, width: usize, parts: usize) -> NormProblem {
    let [residual, weight, bias] = [1, 2, 4].map(|bit| parts & bit != 0);
    NormProblem {
        ty,
        layer,
        rows,
        width,
        residual,
        weight: weight || !layer,
        bias: bias && layer,
        neutral: false,
        seed: 3,
    }
}

#[test]
fn rows_of_any_width_are_normalised() {
    let mut gpus = TARGETS.map(|(target, _)| Gpu::new(target));
    for (i, (width, rows)) in [(8, 1), (64, 3), (264, 2), (768, 3), (4104, 2), (16384, 1)].into_iter().enumerate() {
        for (j, (layer, parts)) in
            [(true, 0), (true, 3), (true, 5), (true, 6), (false, 0), (false, 1)].into_iter().enumerate()
        {
            let norm = norm(Type::ALL[(i + j) % 2], layer, rows, width, parts);
            let gpu = &mut gpus[(i + j / 2) % 2];
            gpu.seed((i + j) as u64);
            let case = norm.case();
            let report = gpu.run(&case);
            if !gpu.is_emulator() {
                continue;
            }
            assert_eq!(report.total.bank_conflicts(), 0);
            if width.is_multiple_of(16) {
                assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
                let weights = 2 * rows * width * (usize::from(norm.weight) + usize::from(norm.bias));
                assert_eq!(report.total.sectors * 32, case.floor.bytes + weights as u64, "{norm:?}");
            }
        }
    }
}

/// OLMo 2 normalises all query heads together, and all key heads.
#[test]
fn a_part_of_longer_rows_is_normalised() {
    for (i, (width, parts)) in [(64, 1), (264, 3), (1536, 2), (4104, 2)].into_iter().enumerate() {
        for ty in Type::ALL {
            let mut gpu = Gpu::new(TARGETS[i % 2].0);
            gpu.seed(i as u64);
            gpu.run(&part(ty, 3, width, parts));
        }
    }
}

/// OLMo 2 on several GPUs.
#[test]
fn rows_that_are_divided_among_ranks_are_normalised() {
    for (i, (queries, keys)) in [(64, 64), (264, 8), (4104, 0)].into_iter().enumerate() {
        for ty in Type::ALL {
            Gpu::new(TARGETS[i % 2].0).run(&squares(ty, 3, queries, keys));
            Gpu::new(TARGETS[i % 2].0).run(&divided(ty, 3, queries, i as u32 % 2));
        }
    }
}

/// Delta nets normalise each head and then multiply by the gate, and Mamba-2 multiplies first and normalises rows.
#[test]
fn results_with_gates_are_normalised() {
    for (i, width) in [16, 128, 4104].into_iter().enumerate() {
        for (j, ty) in Type::ALL.into_iter().enumerate() {
            [false, true]
                .into_iter()
                .for_each(|gate_first| drop(Gpu::new(TARGETS[(i + j) % 2].0).run(&gated(ty, 3, width, gate_first))));
        }
    }
}

#[test]
fn a_missing_barrier_is_noticed() {
    for (layer, entry, barriers) in [(true, "layer_norm_f16", 2), (false, "rms_norm_f16", 1)] {
        let mutants = without_each(TARGETS[0].1, entry, &["bar.sync", "barrier.sync"]);
        assert_eq!(mutants.len(), barriers);
        let case = norm(Type::F16, layer, 2, 768, 7).case();
        for mutant in mutants {
            assert!(Gpu::notices(&mutant.ptx, &case), "{entry} without {}", mutant.removed);
        }
    }
}
