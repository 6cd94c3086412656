//! Projections with quantised weights: `gemm_quantised`.

use emulator::CostReport;
use kernels::element::ElementType;
use kernels::gemm::activation::Activation;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{GpuLimits, Operands, Product};
use kernels::gemm::quantised::TOKENS;
use kernels::gemm::quantised::layout::CodeForm;
use kernels::gemm::quantised::plan::{PackedOperand, QuantisedPlan};
use launch::Error;
use workbench::number::{ProblemRng, Type};
use workbench::product::Data;
use workbench::quantised::QuantisedProblem;

use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate::{Mutant, only, without_each};

/// Returns all kernels, each as the form of its codes and the tokens of its tile.
fn kernels() -> impl Iterator<Item = (CodeForm, u32)> {
    CodeForm::DENSE.into_iter().flat_map(|form| TOKENS.map(|tokens| (form, tokens)))
}

/// Launches a problem. Returns its error as a multiple of the allowed error, its result, and its cost.
fn run(problem: &QuantisedProblem, gpu: &mut Gpu) -> Result<(f64, Vec<f64>, CostReport), Error> {
    let gpu = gpu.bench();
    let placed = problem.place(gpu)?;
    let reports = gpu.reported(|gpu| placed.launch(gpu))?;
    let results = problem.rest.results(&placed, gpu)?;
    let report = reports.into_iter().next().map(|launch| launch.report).unwrap_or_default();
    Ok((problem.rest.error(results.clone(), &problem.truth()), results, report))
}

/// Launches a problem and asserts that the result is right. Returns the cost.
fn check(plan: QuantisedPlan, data: Data, gpu: &mut Gpu) -> CostReport {
    let problem = QuantisedProblem::new(plan, data);
    let (error, _, report) = run(&problem, gpu).unwrap_or_else(|error| panic!("{plan:?}: {error}"));
    assert!(error <= 1.0, "{plan:?}: the error is {error} times the allowed one");
    report
}

fn plain(m: u32, n: u32, k: u32) -> Product {
    Product { m, n, k, epilogue: Epilogue::Half(None) }
}

/// Every edge of every matrix: rows that are missing in a tile and in a fragment, a `k` that ends within a step and
/// within a group, partial tiles of tokens, and rows with gaps.
#[test]
fn ragged_shapes() {
    let mut random = ProblemRng(1);
    for (i, (form, tokens)) in kernels().enumerate() {
        let mut gpu = Gpu::new(TARGETS[i % 2].0);
        for (m, n, k, splits) in [
            (1, 1, 8, 1),
            (tokens, 61, 72, 1),
            (tokens / 2 + 1, 130, 200, 2),
            (2 * tokens + 3, 88, 160, 2),
            (tokens - tokens / 3, 8 + random.below(56) as u32, 32 * (3 + random.below(10) as u32), 3),
        ] {
            let groups = [16, 32, 64, 128, 256].into_iter().filter(|&group| group >= form.least_group());
            for group in groups {
                let ty = Type::ALL[random.below(2) as usize];
                let gaps = (8 * random.below(3) as u32, random.below(6) as u32);
                let data = Data { gaps, bias: n % 2 == 0, ..Data::new(ty, random.word()) };
                check(QuantisedPlan { product: plain(m, n, k), form, group, tokens, splits }, data, &mut gpu);
            }
        }
    }
}

/// Rings that are longer than the work, as long, and reused several times, and shares of unequal size.
#[test]
fn every_length_of_the_ring() {
    let mut gpu = Gpu::new("sm_80");
    for (form, tokens) in [(CodeForm::Int4, 8), (CodeForm::Int8, 64), (CodeForm::Fp8, 16)] {
        for (steps, splits) in [(1, 1), (2, 1), (4, 1), (7, 1), (8, 1), (9, 1), (17, 1), (7, 3), (9, 8)] {
            let product = Product { m: 8, n: 24, k: steps * 64, epilogue: Epilogue::Float };
            let plan = QuantisedPlan { product, form, group: 128, tokens, splits };
            check(plan, Data::new(Type::Bf16, steps.into()), &mut gpu);
        }
    }
}

#[test]
fn every_epilogue() {
    let epilogues = [
        Epilogue::Half(None),
        Epilogue::Half(Some(Activation::Relu)),
        Epilogue::Half(Some(Activation::Gelu)),
        Epilogue::Half(Some(Activation::GeluTanh)),
        Epilogue::Half(Some(Activation::Silu)),
        Epilogue::Gated(Activation::Silu),
        Epilogue::Add,
        Epilogue::Float,
    ];
    for (i, (form, tokens)) in [(CodeForm::Int4, 8), (CodeForm::Int8, 32), (CodeForm::Fp8, 16)].into_iter().enumerate()
    {
        let mut gpu = Gpu::new(TARGETS[i % 2].0);
        for (seed, epilogue) in (1..).zip(epilogues) {
            for ty in Type::ALL {
                // Rows of whole fours, and others.
                for (gap, bias, n) in [(0, true, 80), (3, false, 48)] {
                    let data = Data { gaps: (0, gap), bias, ..Data::new(ty, seed) };
                    let product = Product { m: tokens + 2, n, k: 96, epilogue };
                    check(QuantisedPlan { product, form, group: 32, tokens, splits: 1 }, data, &mut gpu);
                }
            }
        }
    }
}

/// The result is the same to the bit whichever block arrives last.
#[test]
fn the_order_of_warps_and_blocks_does_not_change_results() {
    for (form, tokens) in [(CodeForm::Int4, 8), (CodeForm::Int8, 64)] {
        let product = Product { m: 2 * tokens, n: 200, k: 640, epilogue: Epilogue::Add };
        let plan = QuantisedPlan { product, form, group: 64, tokens, splits: 3 };
        let problem = QuantisedProblem::new(plan, Data::new(Type::F16, 4));
        let runs = (0..4).map(|seed| {
            let mut gpu = Gpu::new("sm_90a");
            gpu.seed(seed);
            let (error, results, _) = run(&problem, &mut gpu).unwrap();
            (error, results)
        });
        let runs: Vec<_> = runs.collect();
        assert!(runs[0].0 <= 1.0, "{plan:?}");
        assert!(runs.iter().all(|other| *other == runs[0]), "{plan:?}");
    }
}

#[test]
fn plans_give_right_results() {
    for (form, m) in CodeForm::DENSE.into_iter().flat_map(|form| [1, 7, 20, 50, 150].map(|m| (form, m))) {
        let product = Product { m, n: 96, k: 1024, epilogue: Epilogue::Gated(Activation::GeluTanh) };
        let plan = QuantisedPlan::new(product, form, 128, GpuLimits::H200).unwrap();
        check(plan, Data::new(Type::Bf16, m.into()), &mut Gpu::new(TARGETS[m as usize % 2].0));
    }
}

/// On aligned shapes every sector is loaded and stored whole, no accesses conflict in a bank, and DRAM moves no more
/// than the floor: codes and scales, but no 16-bit weights.
#[test]
fn traffic_is_what_it_must_be() {
    for (form, tokens) in kernels() {
        for (group, epilogue, splits) in
            [(128, Epilogue::Half(None), 1), (32, Epilogue::Add, 1), (64, Epilogue::Float, 2)]
        {
            let product = Product { m: tokens, n: 256, k: 512, epilogue };
            let plan = QuantisedPlan { product, form, group, tokens, splits };
            let report = check(plan, Data::new(Type::F16, 3), &mut Gpu::new("sm_80"));
            assert_eq!(report.total.bank_conflicts(), 0, "{plan:?}");
            assert!(report.total.sector_ratio() <= 1.02, "{plan:?}: {}", report.total.sector_ratio());
            let sums = if splits == 1 { 0 } else { plan.workspace_bytes() + 64 };
            let bytes = plan.floor().bytes + u64::from(product.n) * 2 + sums;
            assert!(report.distinct_sectors * 32 <= bytes, "{plan:?}: {} for {bytes}", report.distinct_sectors * 32);
        }
    }
}

/// Warp instructions for 16 rows by 64 columns of the weight, from the slope over `k`. They are the budget of a decode
/// step.
#[test]
fn codes_cost_few_instructions() {
    for (form, tokens, most) in [
        (CodeForm::Int4, 8, 172.0),
        (CodeForm::Int4, 64, 315.0),
        (CodeForm::Int8, 8, 247.0),
        (CodeForm::Int8, 64, 505.0),
        (CodeForm::Fp8, 8, 178.0),
        (CodeForm::Fp8, 64, 322.0),
    ] {
        for ty in Type::ALL {
            let [short, long] = [1024, 2048].map(|k| {
                let plan = QuantisedPlan { product: plain(tokens, 256, k), form, group: 128, tokens, splits: 1 };
                let data = Data { bias: false, ..Data::new(ty, 1) };
                check(plan, data, &mut Gpu::new("sm_80")).total.instructions as f64
            });
            let marginal = (long - short) / f64::from(256 / 16 * 1024 / 64);
            println!("{form:?}, {tokens} tokens, {}: {marginal:.1} instructions", ty.label());
            assert!(marginal <= most, "{form:?}, {tokens} tokens, {}: {marginal}", ty.label());
        }
    }
}

/// Barriers, waits and commits, each missing once.
#[test]
fn mutants_are_noticed() {
    let (form, tokens) = (CodeForm::Int4, 16);
    let problem = |steps: u32, splits| {
        let plan = QuantisedPlan { product: plain(16, 128, steps * 64), form, group: 32, tokens, splits };
        QuantisedProblem::new(plan, Data::new(Type::F16, 1))
    };
    // Nine steps end where the ring begins. The sums are stored there.
    let problems = [problem(9, 1), problem(10, 2)];
    let entry = problems[0].plan.call(ElementType::F16, Operands::NULL, PackedOperand::NULL).descriptor().name;
    let mut mutants = without_each(TARGETS[1].1, entry, &["bar", "cp.async.wait_group", "cp.async.commit_group"]);
    assert!(mutants.len() >= 8, "{entry} has only {} lines to remove", mutants.len());
    // A count that orders nothing.
    let ptx = only(TARGETS[1].1, entry).replace("atom.acq_rel.", "atom.relaxed.");
    mutants.push(Mutant { removed: "acq_rel".to_owned(), ptx });
    let is_noticed = |ptx: &str| {
        problems.iter().any(|problem| {
            (0..3).any(|seed| {
                let mut gpu = Gpu::with_ptx(ptx);
                gpu.seed(seed);
                run(problem, &mut gpu).map_or(true, |(error, ..)| error > 1.0)
            })
        })
    };
    let unnoticed = mutants.into_iter().filter(|mutant| !is_noticed(&mutant.ptx));
    assert_eq!(unnoticed.map(|mutant| mutant.removed).collect::<Vec<_>>(), Vec::<String>::new(), "{entry}");
}
