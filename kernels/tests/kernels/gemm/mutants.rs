//! Barriers, waits and commits, each missing once.

use kernels::element::ElementType;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{GemmKernel, Operands, Product};
use workbench::number::Type;
use workbench::product::{Data, ProductProblem};

use super::{problem, run};
use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate::{Mutant, only, without_each};

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
        let unnoticed = mutants.into_iter().filter(|mutant| !is_noticed(&mutant.ptx, &problems));
        assert_eq!(unnoticed.map(|mutant| mutant.removed).collect::<Vec<_>>(), Vec::<String>::new(), "{entry}");
    }
}
