//! Barriers, waits and commits, each missing once.

use emulator::ORDERING;
use kernels::element::ElementType;
use kernels::gemm::activation::Activation;
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

/// What the mutants of a kernel lack that neither the problems notice nor those with a norm of so many tokens.
fn unnoticed(mutants: Vec<Mutant>, problems: &[ProductProblem], normed_tokens: u32) -> Vec<String> {
    let normed = normed_cases(problems[0].plan.kernel, normed_tokens);
    let unnoticed = mutants.into_iter().filter(|mutant| {
        !is_noticed(&mutant.ptx, problems) && !normed.iter().any(|case| Gpu::notices(&mutant.ptx, case))
    });
    unnoticed.map(|mutant| mutant.removed).collect()
}

#[test]
fn mutants_are_noticed() {
    for (kernel, m) in [(GemmKernel::Decode(16), 16), (GemmKernel::Prefill(128), 128)] {
        let problem = |tiles: u32, parts, epilogue| {
            let product = Product { m, n: 128, k: tiles * 64, epilogue };
            problem(product, kernel, parts, Data::new(Type::F16, 1))
        };
        // Seven tiles end where both rings begin: there the sums are put.
        let plain = Epilogue::Half(None);
        let problems = [problem(7, 1, plain), problem(8, 2, plain), problem(7, 1, Epilogue::Add)];
        let entry = problems[0].plan.call(ElementType::F16, Operands::NULL).descriptor().name;
        let mut mutants = without_each(TARGETS[1].1, entry, &OPCODES);
        assert!(mutants.len() >= 8, "{entry} has {} lines to lose", mutants.len());
        // A count that orders nothing.
        let ptx = only(TARGETS[1].1, entry).replace("atom.acq_rel.", "atom.relaxed.");
        mutants.push(Mutant { removed: "acq_rel".to_owned(), ptx });
        assert_eq!(unnoticed(mutants, &problems, m), Vec::<String>::new(), "{entry}");
    }
}

/// What the emulator does not notice, once each, and why.
const REVIEWED: [&str; 2] = [
    // It makes the mbarriers known to other blocks of a cluster and to tensor copies. The emulator knows them at once.
    "fence.mbarrier_init.release.cluster;",
    // Of products that are added: as registers are dealt out now, nothing touches the sums since the products before.
    "wgmma.fence.sync.aligned;",
];

/// A problem of some tokens, rows of a weight that are several tiles, and so many tiles of 128 along `k`.
fn tiles(kernel: GemmKernel, m: u32, tiles: u32, parts: u32, epilogue: Epilogue) -> ProductProblem {
    let product = Product { m, n: 304, k: tiles * 128, epilogue };
    problem(product, kernel, parts, Data::new(Type::F16, 1))
}

#[test]
fn mutants_of_hoppers_kernel_are_noticed() {
    // Tiles of the product for each block, and more of the operands than the ring has places.
    let (alone, pairs) = (GemmKernel::Hopper(128), GemmKernel::HopperPairs(128));
    all_but_reviewed_are_noticed(&[
        tiles(alone, 130, 7, 1, Epilogue::Half(None)),
        tiles(alone, 100, 8, 2, Epilogue::Add),
        tiles(alone, 130, 1, 1, Epilogue::Gated(Activation::Silu)),
        tiles(alone, 130, 1, 1, Epilogue::Float),
        tiles(pairs, 200, 7, 1, Epilogue::Half(None)),
        tiles(pairs, 200, 1, 2, Epilogue::Add),
    ]);
}

#[test]
fn mutants_of_hoppers_kernel_for_some_tokens_are_noticed() {
    let kernel = GemmKernel::HopperDecode(32);
    all_but_reviewed_are_noticed(&[
        tiles(kernel, 32, 7, 1, Epilogue::Half(None)),
        tiles(kernel, 20, 8, 2, Epilogue::Add),
    ]);
}

/// Mutants of one of Hopper's kernels, by problems for it.
fn all_but_reviewed_are_noticed(problems: &[ProductProblem]) {
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
    let unnoticed = unnoticed(mutants, problems, 3);
    let instructions: Vec<_> =
        unnoticed.iter().map(|line| line.split_once(": ").map_or(&**line, |(_, it)| it)).collect();
    assert_eq!(instructions, REVIEWED, "{entry}: {unnoticed:?}");
}
