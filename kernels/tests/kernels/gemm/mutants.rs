//! Barriers, waits and commits, each missing once; arrivals and counts that are weaker than they must be.

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
        // Seven tiles end where both rings begin: there the sums are put, each time in another way.
        let plain = Epilogue::Half(None);
        let others = [Epilogue::Add, Epilogue::Gated(Activation::Silu), Epilogue::Float];
        let mut problems = vec![problem(7, 1, plain), problem(8, 2, plain)];
        problems.extend(others.map(|epilogue| problem(7, 1, epilogue)));
        let entry = problems[0].plan.call(ElementType::F16, Operands::NULL).descriptor().name;
        let mut mutants = without_each(TARGETS[1].1, entry, &OPCODES);
        assert!(mutants.len() >= 8, "{entry} has {} lines to lose", mutants.len());
        // A count that orders nothing.
        let ptx = only(TARGETS[1].1, entry).replace("atom.acq_rel.", "atom.relaxed.");
        mutants.push(Mutant { removed: "acq_rel".to_owned(), ptx });
        assert_eq!(unnoticed(mutants, &problems, m), Vec::<String>::new(), "{entry}");
    }
}

/// A problem of some tokens, rows of a weight that are several tiles, and so many tiles of 128 along `k`.
fn tiles(kernel: GemmKernel, m: u32, tiles: u32, parts: u32, epilogue: Epilogue) -> ProductProblem {
    let product = Product { m, n: 304, k: tiles * 128, epilogue };
    problem(product, kernel, parts, Data::new(Type::F16, 1))
}

#[test]
fn weaker_arrivals_and_counts_of_hoppers_kernel_are_noticed() {
    // Tiles of the product for each block, and more of the operands than the ring has places.
    let (alone, pairs) = (GemmKernel::Hopper(128), GemmKernel::HopperPairs(128));
    weaker_ones_are_noticed(&[
        tiles(alone, 130, 7, 1, Epilogue::Half(None)),
        tiles(alone, 100, 8, 2, Epilogue::Add),
        tiles(alone, 130, 1, 1, Epilogue::Gated(Activation::Silu)),
        tiles(alone, 130, 1, 1, Epilogue::Float),
        tiles(pairs, 200, 7, 1, Epilogue::Half(None)),
        tiles(pairs, 200, 1, 2, Epilogue::Add),
    ]);
}

#[test]
fn weaker_arrivals_and_counts_for_some_tokens_are_noticed() {
    let kernel = GemmKernel::HopperDecode(32);
    weaker_ones_are_noticed(&[tiles(kernel, 32, 7, 1, Epilogue::Half(None)), tiles(kernel, 20, 8, 2, Epilogue::Add)]);
}

/// One of Hopper's kernels whose arrivals announce no bytes, one at a time, or whose count orders nothing. What it lacks without a
/// barrier, a wait or a fence is in the sweep.
fn weaker_ones_are_noticed(problems: &[ProductProblem]) {
    let entry = problems[0].plan.call(ElementType::F16, Operands::NULL).descriptor().name;
    let alone = only(TARGETS[1].1, entry);
    let lines: Vec<&str> = alone.lines().collect();
    let weaker_arrival = |at: usize| {
        let (arrival, _) = lines[at].rsplit_once(',').unwrap();
        let changed = arrival.replace(".expect_tx", "") + ";";
        let rest = lines.iter().enumerate().map(|(i, line)| if i == at { changed.as_str() } else { line });
        Mutant { removed: format!("the bytes of {}", lines[at]), ptx: rest.collect::<Vec<_>>().join("\n") }
    };
    let arrivals = (0..lines.len()).filter(|&at| lines[at].contains("arrive.expect_tx"));
    let mut mutants: Vec<_> = arrivals.map(weaker_arrival).collect();
    assert!(mutants.len() >= 2, "{entry} has {} arrivals", mutants.len());
    mutants.push(Mutant { removed: "acq_rel".to_owned(), ptx: alone.replace("atom.acq_rel.", "atom.relaxed.") });
    assert_eq!(unnoticed(mutants, problems, 3), Vec::<String>::new(), "{entry}");
}
