//! Barriers, waits and commits, each missing once.

use emulator::ORDERING;
use kernels::element::ElementType;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{GemmKernel, Operands, Product};
use workbench::number::Type;
use workbench::product::{Data, ProductProblem};

use super::normed::normed_cases;
use super::{problem, run};
use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate::{Mutant, only, without_each};

/// What orders the threads and copies of the other kernels.
const OPCODES: [&str; 3] = ["bar", "cp.async.wait_group", "cp.async.commit_group"];

/// Whether one of the problems shows that the PTX is not right, under some order of warps and blocks.
fn is_noticed(ptx: &str, problems: &[ProductProblem]) -> bool {
    problems.iter().any(|problem| {
        (0..3).any(|seed| {
            let mut gpu = Gpu::with_ptx(ptx);
            gpu.seed(seed);
            run(problem, &mut gpu).map_or(true, |(error, ..)| error > 1.0)
        })
    })
}

#[test]
fn mutants_are_noticed() {
    for (kernel, m) in [(GemmKernel::Decode(16), 16), (GemmKernel::Prefill(128), 128)] {
        let problem = |tiles: u32, parts| {
            let product = Product { m, n: 128, k: tiles * 64, epilogue: Epilogue::Half(None) };
            problem(product, kernel, parts, Data::new(Type::F16, 1))
        };
        // Seven tiles end where both rings begin: there the sums are put.
        let problems = [problem(7, 1), problem(8, 2)];
        let entry = problems[0].plan.call(ElementType::F16, Operands::NULL).descriptor().name;
        let mut mutants = without_each(TARGETS[1].1, entry, &OPCODES);
        assert!(mutants.len() >= 8, "{entry} has {} lines to lose", mutants.len());
        // A count that orders nothing.
        let ptx = only(TARGETS[1].1, entry).replace("atom.acq_rel.", "atom.relaxed.");
        mutants.push(Mutant { removed: "acq_rel".to_owned(), ptx });
        let normed = normed_cases(kernel, m);
        let unnoticed = mutants.into_iter().filter(|mutant| {
            !is_noticed(&mutant.ptx, &problems) && !normed.iter().any(|case| Gpu::notices(&mutant.ptx, case))
        });
        assert_eq!(unnoticed.map(|mutant| mutant.removed).collect::<Vec<_>>(), Vec::<String>::new(), "{entry}");
    }
}

/// What the emulator does not notice, once each, and why.
const REVIEWED: [&str; 2] = [
    // It makes the mbarriers known to other blocks of a cluster and to tensor copies. The emulator knows them at once.
    "fence.mbarrier_init.release.cluster;",
    // Of products that are added: as registers are dealt out now, nothing touches the sums since the products before.
    "wgmma.fence.sync.aligned;",
];

#[test]
fn mutants_of_hoppers_kernel_are_noticed() {
    // Tiles of the product for each block, and more of the operands than the ring has places.
    all_but_reviewed_are_noticed(GemmKernel::Hopper(128), [130, 100]);
}

#[test]
fn mutants_of_hoppers_kernel_for_some_tokens_are_noticed() {
    all_but_reviewed_are_noticed(GemmKernel::HopperDecode(32), [32, 20]);
}

/// Mutants of one of Hopper's kernels, with so many tokens: plain and whole, and added and in two parts.
fn all_but_reviewed_are_noticed(kernel: GemmKernel, tokens: [u32; 2]) {
    let problem = |m: u32, tiles: u32, parts, epilogue| {
        let product = Product { m, n: 304, k: tiles * 128, epilogue };
        problem(product, kernel, parts, Data::new(Type::F16, 1))
    };
    let (plain, added) = (Epilogue::Half(None), Epilogue::Add);
    let problems = [problem(tokens[0], 7, 1, plain), problem(tokens[1], 8, 2, added)];
    let entry = problems[0].plan.call(ElementType::F16, Operands::NULL).descriptor().name;
    let mut mutants = without_each(TARGETS[1].1, entry, &ORDERING);
    let alone = only(TARGETS[1].1, entry);
    let lines: Vec<&str> = alone.lines().collect();
    // Arrivals that announce no bytes; a count that orders nothing.
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.contains("arrive.expect_tx")) {
        let (arrival, _) = line.rsplit_once(',').unwrap();
        let changed = arrival.replace(".expect_tx", "") + ";";
        let rest = lines.iter().enumerate().map(|(i, line)| if i == at { changed.as_str() } else { line });
        mutants.push(Mutant { removed: format!("the bytes of {line}"), ptx: rest.collect::<Vec<_>>().join("\n") });
    }
    mutants.push(Mutant { removed: "acq_rel".to_owned(), ptx: alone.replace("atom.acq_rel.", "atom.relaxed.") });
    assert!(mutants.len() >= 20, "{entry} has {} lines to lose", mutants.len());
    let normed = normed_cases(kernel, 3);
    let unnoticed = mutants.into_iter().filter(|mutant| {
        !is_noticed(&mutant.ptx, &problems) && !normed.iter().any(|case| Gpu::notices(&mutant.ptx, case))
    });
    let unnoticed: Vec<_> = unnoticed.map(|mutant| mutant.removed).collect();
    let instructions: Vec<_> =
        unnoticed.iter().map(|line| line.split_once(": ").map_or(&**line, |(_, it)| it)).collect();
    assert_eq!(instructions, REVIEWED, "{entry}: {unnoticed:?}");
}
