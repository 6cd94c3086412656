//! Mutants that lack one barrier, wait or commit, or whose arrivals and counts are too weak.

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

/// Opcodes that order the threads and copies of the kernels that are not Hopper's.
const OPCODES: [&str; 3] = ["bar", "cp.async.wait_group", "cp.async.commit_group"];

/// Returns whether one of the problems fails with this PTX, in some order of warps and blocks.
fn is_noticed(ptx: &str, problems: &[ProductProblem]) -> bool {
    problems.iter().any(|problem| {
        (0..3).any(|seed| {
            let mut gpu = Gpu::with_ptx(ptx);
            gpu.seed(seed);
            run(problem, &mut gpu).map_or(true, |(error, ..)| error > 1.0)
        })
    })
}

/// Returns the removals that go unnoticed, both by the problems and by problems with a norm of `normed_tokens` tokens.
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
        // Seven tiles end where both rings begin. The sums are stored there, differently for each epilogue.
        let plain = Epilogue::Half(None);
        let others = [Epilogue::Add, Epilogue::Gated(Activation::Silu), Epilogue::Float];
        let mut problems = vec![problem(7, 1, plain), problem(8, 2, plain)];
        problems.extend(others.map(|epilogue| problem(7, 1, epilogue)));
        let entry = problems[0].plan.call(ElementType::F16, Operands::NULL).descriptor().name;
        let mut mutants = without_each(TARGETS[1].1, entry, &OPCODES);
        assert!(mutants.len() >= 8, "{entry} has only {} lines to remove", mutants.len());
        // A count that orders nothing.
        let ptx = only(TARGETS[1].1, entry).replace("atom.acq_rel.", "atom.relaxed.");
        mutants.push(Mutant { removed: "acq_rel".to_owned(), ptx });
        assert_eq!(unnoticed(mutants, &problems, m), Vec::<String>::new(), "{entry}");
    }
}

/// A problem of `m` tokens with a weight of several row tiles, and `tiles` tiles of 128 along `k`.
fn tiles(kernel: GemmKernel, m: u32, tiles: u32, parts: u32, epilogue: Epilogue) -> ProductProblem {
    let product = Product { m, n: 304, k: tiles * 128, epilogue };
    problem(product, kernel, parts, Data::new(Type::F16, 1))
}

#[test]
fn weaker_arrivals_and_counts_of_hoppers_kernel_are_noticed() {
    // Each block has several tiles of the product, and the operands have more tiles than the ring has slots.
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

/// Asserts that the problems notice mutants of one of Hopper's kernels. In each mutant one arrival announces no bytes,
/// or the count orders nothing. The sweep covers missing barriers, waits and fences.
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
    assert!(mutants.len() >= 2, "{entry} has only {} arrivals", mutants.len());
    mutants.push(Mutant { removed: "acq_rel".to_owned(), ptx: alone.replace("atom.acq_rel.", "atom.relaxed.") });
    assert_eq!(unnoticed(mutants, problems, 3), Vec::<String>::new(), "{entry}");
}
