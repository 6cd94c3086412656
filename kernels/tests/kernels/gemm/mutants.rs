//! Barriers, waits and commits, each missing once.

use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{Kernel, Product};

use super::product::{Options, Problem};
use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate::without_each;
use crate::frame::number::{Type, relative_error};

const OPCODES: [&str; 3] = ["bar", "cp.async.wait_group", "cp.async.commit_group"];

/// The mutants of a kernel that none of the problems notices, each under some orders of warps and blocks.
fn unnoticed(kernel: Kernel, problems: &[Problem]) -> Vec<String> {
    let entry = problems[0].plan.entry("f16").unwrap().descriptor().name;
    let mutants = without_each(TARGETS[1].1, entry, &OPCODES);
    assert!(mutants.len() >= 8, "{kernel:?} has {} lines to lose", mutants.len());
    let is_noticed = |ptx: &str| {
        let mut gpu = Gpu::with_ptx(ptx);
        problems.iter().any(|problem| {
            let truth = problem.truth();
            (0..3).any(|seed| {
                gpu.seed(seed);
                let run = problem.run(&mut gpu);
                run.map_or(true, |(results, _)| relative_error(results, &truth) > problem.tolerance())
            })
        })
    };
    mutants.into_iter().filter(|mutant| !is_noticed(&mutant.ptx)).map(|mutant| mutant.removed).collect()
}

#[test]
fn mutants_are_noticed() {
    for (kernel, m) in [(Kernel::Decode(16), 16), (Kernel::Prefill(128), 128)] {
        let problem = |n, tiles: u32, parts| {
            let product = Product { m, n, k: tiles * 64, epilogue: Epilogue::Half(None) };
            Problem::with(product, kernel, parts, Options::new(Type::F16, 1))
        };
        let unnoticed = unnoticed(kernel, &[problem(128, 7, 1), problem(128, 8, 2)]);
        assert_eq!(unnoticed, Vec::<String>::new(), "{kernel:?}");
    }
}
