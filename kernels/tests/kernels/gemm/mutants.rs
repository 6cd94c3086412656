//! Barriers, waits and commits, each missing once.

use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{Kernel, Product};
use workbench::number::Type;
use workbench::product::{Data, Problem};

use super::{problem, run};
use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate::{only, without_each};

const OPCODES: [&str; 3] = ["bar", "cp.async.wait_group", "cp.async.commit_group"];

/// The mutants of a kernel that none of the problems notices, each under some orders of warps and blocks.
fn unnoticed(kernel: Kernel, problems: &[Problem]) -> Vec<String> {
    let entry = problems[0].plan.entry("f16").unwrap().descriptor().name;
    let mut mutants = without_each(TARGETS[1].1, entry, &OPCODES);
    let count =
        only(TARGETS[1].1, entry).lines().position(|line| line.trim_start().starts_with("atom.acq_rel")).unwrap();
    // The barrier between a block's parts of sums and their count orders them for other blocks, and the emulator runs one
    // block after the other.
    let before_count = mutants.iter().rposition(|mutant| mutant.line < count && mutant.removed.contains("bar.sync"));
    mutants.remove(before_count.unwrap());
    assert!(mutants.len() >= 8, "{kernel:?} has {} lines to lose", mutants.len());
    let is_noticed = |ptx: &str| {
        problems.iter().any(|problem| {
            (0..3).any(|seed| {
                let mut gpu = Gpu::with_ptx(ptx);
                gpu.seed(seed);
                run(problem, &mut gpu).map_or(true, |(error, ..)| error > 1.0)
            })
        })
    };
    mutants.into_iter().filter(|mutant| !is_noticed(&mutant.ptx)).map(|mutant| mutant.removed).collect()
}

#[test]
fn mutants_are_noticed() {
    for (kernel, m) in [(Kernel::Decode(16), 16), (Kernel::Prefill(128), 128)] {
        let problem = |tiles: u32, parts| {
            let product = Product { m, n: 128, k: tiles * 64, epilogue: Epilogue::Half(None) };
            problem(product, kernel, parts, Data::new(Type::F16, 1))
        };
        // Seven tiles end where both rings begin: there the sums are put.
        let unnoticed = unnoticed(kernel, &[problem(7, 1), problem(8, 2)]);
        assert_eq!(unnoticed, Vec::<String>::new(), "{kernel:?}");
    }
}
