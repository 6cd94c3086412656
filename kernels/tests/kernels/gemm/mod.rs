//! Projections: `gemv`, `gemm_decode`, `gemm`.
//!
//! `mutants_are_noticed` removes lines from the PTX. These masks were removed from the source by hand:
//!
//! | removed | tests that failed |
//! | --- | --- |
//! | `TileCopy::copy`: rows past the matrix's end | `ragged_shapes`, `every_epilogue`, `every_length_of_the_ring`, `plans_...` |
//! | `TileCopy::copy`: vectors past a row's end | `ragged_shapes`, `every_epilogue` |
//! | `gemm_decode`: threads that copy 8 tokens | `ragged_shapes`, `every_length_of_the_ring`, `plans_...` |
//! | `ProductOutput::store`: rows past the end | `ragged_shapes`, `every_epilogue`, `every_length_of_the_ring`, `plans_...` |
//! | `ProductOutput::store`: columns of an incomplete four, or the test for complete fours | `ragged_shapes` |
//! | `ProductOutput::store`: rows that do not begin at a four | `ragged_shapes`, `every_epilogue` |
//! | `ProductOutput::store`: fours entirely past the end | none: these are not stored anyway, the mask saves work |
//! | `ProductOutput::bias4`: rows past the end | `ragged_shapes` |
//! | `gemv`: rows past the end, copied or stored | `ragged_shapes` |
//! | `gemv`: vectors past a row's end | `ragged_shapes`, `every_epilogue`, `plans_...` |
//! | `gemv`: tokens that do not exist, read or stored | `ragged_shapes`, `plans_...` |
//! | `gemv`: rows of up stored as outputs | `every_epilogue`, `plans_...` |
//! | `gemm`: the last tile follows itself | `ragged_shapes`, `every_epilogue`, `every_length_of_the_ring` |
//! | `gemm`: columns past the end of the previous output | `every_epilogue`, `the_order_of_warps_and_blocks_...` |
//! | `gemm_hopper`: a block of a pair fetches the other block's half of the weight | `pairs_...`, all with pairs |
//! | `share`: the remainder of a division | `ragged_shapes`, `every_length_of_the_ring` |

mod counts;
mod mutants;
mod normed;

use emulator::CostReport;
use kernels::element::ElementType;
use kernels::gemm::activation::Activation;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::hopper;
use kernels::gemm::plan::{GemmKernel, GemmPlan, GpuLimits, Operands, Product};
use launch::Error;
use workbench::number::{ProblemRng, Type};
use workbench::product::{Data, ProductProblem, is_for_hopper, kernels};

use crate::frame::gpu::{Gpu, TARGETS};

const EPILOGUES: [Epilogue; 9] = [
    Epilogue::Half(None),
    Epilogue::Half(Some(Activation::Relu)),
    Epilogue::Half(Some(Activation::Gelu)),
    Epilogue::Half(Some(Activation::GeluTanh)),
    Epilogue::Half(Some(Activation::Silu)),
    Epilogue::Gated(Activation::Silu),
    Epilogue::Gated(Activation::GeluTanh),
    Epilogue::Add,
    Epilogue::Float,
];

/// A problem for a kernel, which need not be the planned one. A kernel without splits gets one part.
fn problem(product: Product, kernel: GemmKernel, splits: u32, data: Data) -> ProductProblem {
    let splits = match kernel {
        GemmKernel::Gemv(_) => 1,
        GemmKernel::Hopper(columns) | GemmKernel::HopperPairs(columns) => {
            splits.min(product.k.div_ceil(hopper::depth(columns)))
        }
        GemmKernel::HopperDecode(_) => splits.min(product.k.div_ceil(hopper::decode::TILE_DEPTH)),
        _ => splits,
    };
    // Hopper's kernel gets few blocks, and each of them computes several tiles.
    ProductProblem::new(GemmPlan { product, kernel, splits, blocks: 3 }, data)
}

/// Returns how many tokens a kernel for up to `tokens` is tested with: a few tiles, the last one partial.
fn some_tokens(kernel: GemmKernel, tokens: u32) -> u32 {
    tokens.min(if let GemmKernel::HopperPairs(_) = kernel { 300 } else { 150 })
}

/// Returns a target that has the kernel. If both have it, `number` selects one.
fn target_of(kernel: GemmKernel, number: usize) -> &'static str {
    if is_for_hopper(kernel) { "sm_90a" } else { TARGETS[number % 2].0 }
}

/// Launches a problem. Returns its error as a multiple of the allowed error, its result, and its cost.
fn run(problem: &ProductProblem, gpu: &mut Gpu) -> Result<(f64, Vec<f64>, CostReport), Error> {
    let gpu = gpu.bench();
    let placed = problem.place(gpu)?;
    let reports = gpu.reported(|gpu| placed.launch(gpu))?;
    let results = problem.results(&placed, gpu)?;
    let report = reports.into_iter().next().map(|launch| launch.report).unwrap_or_default();
    Ok((problem.error(results.clone(), &problem.truth()), results, report))
}

/// Launches a problem and asserts that the result is right. Returns the cost.
fn check(problem: &ProductProblem, gpu: &mut Gpu) -> CostReport {
    let (error, _, report) = run(problem, gpu).unwrap_or_else(|error| panic!("{:?}: {error}", problem.plan));
    assert!(error <= 1.0, "{:?}: the error is {error} times the allowed one", problem.plan);
    report
}

/// Every edge of every matrix: rows that are missing in a tile, a `k` that ends within a tile, and rows with gaps.
#[test]
fn ragged_shapes() {
    let mut random = ProblemRng(1);
    for (i, (kernel, tokens)) in kernels("sm_90a").enumerate() {
        let mut gpu = Gpu::new(target_of(kernel, i));
        let most = some_tokens(kernel, tokens);
        // Down to one row, column and vector, and around the sizes of tiles.
        for (m, n, k, parts) in [
            (1, 1, 8, 1),
            (most, 61, 72, 1),
            (most, 264, 136, 1),
            (most.div_ceil(2), 130, 200, 2),
            (most - most / 3, 8 + random.below(56) as u32, 8 * (9 + random.below(40) as u32), 2),
        ] {
            let ty = Type::ALL[random.below(2) as usize];
            // Outputs that tensor copies can store, and others.
            let gap = random.below(6) as u32;
            let gaps = (8 * random.below(3) as u32, if n % 8 == 0 { 8 * (gap / 3) } else { gap });
            let data = Data { gaps, bias: n % 2 == 0, ..Data::new(ty, random.word()) };
            check(&problem(Product { m, n, k, epilogue: Epilogue::Half(None) }, kernel, parts, data), &mut gpu);
        }
    }
}

/// Rings that are longer than the work, as long, and reused several times, and shares of unequal size.
#[test]
fn every_length_of_the_ring() {
    let all = [
        GemmKernel::Decode(8),
        GemmKernel::Decode(64),
        GemmKernel::Prefill(128),
        GemmKernel::Hopper(128),
        GemmKernel::Hopper(256),
        GemmKernel::HopperPairs(128),
        GemmKernel::HopperPairs(256),
        GemmKernel::HopperDecode(8),
        GemmKernel::HopperDecode(64),
    ];
    for kernel in all {
        let mut gpu = Gpu::new("sm_90a");
        for (tiles, parts) in [(1, 1), (2, 1), (4, 1), (6, 1), (7, 1), (13, 1), (7, 3), (9, 8)] {
            let product = Product { m: 8, n: 24, k: tiles * 64, epilogue: Epilogue::Float };
            check(&problem(product, kernel, parts, Data::new(Type::Bf16, tiles.into())), &mut gpu);
        }
    }
}

#[test]
fn every_epilogue() {
    let kernels = [
        (GemmKernel::Gemv(4), 4),
        (GemmKernel::Decode(16), 16),
        (GemmKernel::Prefill(128), 130),
        (GemmKernel::Prefill(256), 70),
        (GemmKernel::Hopper(128), 130),
        (GemmKernel::Hopper(256), 70),
        (GemmKernel::HopperPairs(128), 70),
        (GemmKernel::HopperPairs(256), 260),
        (GemmKernel::HopperDecode(8), 7),
        (GemmKernel::HopperDecode(64), 61),
    ];
    for (i, (kernel, m)) in kernels.into_iter().enumerate() {
        let mut gpu = Gpu::new(target_of(kernel, i));
        for (seed, epilogue) in (1..).zip(EPILOGUES) {
            // Rows of whole vectors in both types, of whole fours, and others. Also an end within 16 columns, with NaN
            // after it.
            let end = if let Epilogue::Gated(_) = epilogue { 176 } else { 168 };
            let cases = [(0, true, 80), (0, true, 80), (4, true, 80), (3, false, 48), (8, false, end)];
            for (j, (gap, bias, n)) in cases.into_iter().enumerate() {
                let data = Data { gaps: (0, gap), bias, ..Data::new(Type::ALL[(i + j) % 2], seed) };
                check(&problem(Product { m, n, k: 40, epilogue }, kernel, 1, data), &mut gpu);
            }
        }
    }
}

/// Small and large sums, beyond the scale of typical sums.
#[test]
fn activations_keep_their_precision() {
    let mut gpu = Gpu::new("sm_80");
    for act in Activation::ALL {
        let product = Product { m: 1, n: 256, k: 8, epilogue: Epilogue::Half(Some(act)) };
        let mut problem = problem(product, GemmKernel::Gemv(1), 1, Data::new(Type::Bf16, 1));
        // The sums are the bias: from -8 to 8.
        problem.set_bias((0..256).map(|i| f64::from(i - 128) / 16.0));
        let (_, results, _) = run(&problem, &mut gpu).unwrap();
        for (result, truth) in results.into_iter().zip(problem.truth()) {
            assert!((result - truth).abs() <= truth.abs() / 256.0, "{act:?}: {result} for {truth}");
        }
    }
}

/// Every number of tokens of Hopper's decode kernel, with the narrowest instance, and every fourth with all instances
/// that are wide enough.
#[test]
fn every_number_of_tokens() {
    let mut gpu = Gpu::new("sm_90a");
    for m in 1..=64 {
        let is_narrowest = |tokens: u32| tokens == 8 || m > tokens / 2;
        let some = |tokens: &u32| m <= *tokens && (is_narrowest(*tokens) || m % 4 == 1);
        for tokens in [8, 16, 32, 64].into_iter().filter(some) {
            let ty = Type::ALL[(m / 2 % 2) as usize];
            let product = Product { m, n: 144, k: 264, epilogue: EPILOGUES[m as usize % EPILOGUES.len()] };
            let problem = problem(product, GemmKernel::HopperDecode(tokens), 1 + m % 3, Data::new(ty, m.into()));
            check(&problem, &mut gpu);
        }
    }
}

/// The result is the same to the bit whichever block arrives last.
#[test]
fn the_order_of_warps_and_blocks_does_not_change_results() {
    let all = [
        (GemmKernel::Decode(8), 5),
        (GemmKernel::Decode(32), 32),
        (GemmKernel::Prefill(128), 40),
        (GemmKernel::Hopper(128), 150),
        (GemmKernel::HopperPairs(256), 300),
        (GemmKernel::HopperDecode(8), 5),
        (GemmKernel::HopperDecode(32), 32),
    ];
    for (kernel, m) in all {
        let product = Product { m, n: 200, k: 640, epilogue: Epilogue::Add };
        let problem = problem(product, kernel, 3, Data::new(Type::F16, 4));
        let runs = (0..4).map(|seed| {
            let mut gpu = Gpu::new("sm_90a");
            gpu.seed(seed);
            run(&problem, &mut gpu).unwrap()
        });
        let runs: Vec<_> = runs.map(|(error, results, _)| (error, results)).collect();
        assert!(runs[0].0 <= 1.0, "{:?}", problem.plan);
        assert!(runs.iter().all(|other| *other == runs[0]), "{:?}", problem.plan);
    }
}

#[test]
fn plans_give_right_results() {
    for m in [1, 3, 7, 20, 50, 300] {
        let product = Product { m, n: 96, k: 1024, epilogue: Epilogue::Gated(Activation::GeluTanh) };
        let without = GpuLimits { hopper_from: None, ..GpuLimits::H200 };
        for (target, limits) in [("sm_80", without), ("sm_90a", GpuLimits::H200)] {
            let plan = GemmPlan::new(product, limits).unwrap();
            check(&ProductProblem::new(plan, Data::new(Type::Bf16, m.into())), &mut Gpu::new(target));
        }
    }
}

/// On aligned shapes every sector is loaded and stored whole, no accesses conflict in a bank, and DRAM moves no more
/// than the floor.
#[test]
fn traffic_is_what_it_must_be() {
    for (kernel, tokens) in kernels("sm_90a") {
        let mut gpu = Gpu::new("sm_90a");
        // With few tokens and a gated output, two threads read sums from one bank, so these kernels skip that case.
        let gated = (tokens == u32::MAX).then_some((Epilogue::Gated(Activation::Silu), 1));
        let others = [(Epilogue::Half(None), 1), (Epilogue::Add, 1), (Epilogue::Float, 2)];
        for (epilogue, parts) in others.into_iter().chain(gated) {
            let product = Product { m: tokens.min(256), n: 256, k: 512, epilogue };
            let problem = problem(product, kernel, parts, Data::new(Type::F16, 3));
            let report = check(&problem, &mut gpu);
            assert_eq!(report.total.bank_conflicts(), 0, "{:?}", problem.plan);
            // A warp of `gemv` stores four results of 2 bytes for each token.
            let most = if matches!(kernel, GemmKernel::Gemv(_)) { 1.05 } else { 1.02 };
            assert!(report.total.sector_ratio() <= most, "{:?}: {}", problem.plan, report.total.sector_ratio());
            let sums = if problem.plan.splits == 1 { 0 } else { problem.plan.workspace_bytes() + 64 };
            let bytes = product.floor().bytes + u64::from(product.n) * 2 + sums;
            assert!(report.distinct_sectors * 32 <= bytes, "{:?}: {report:?}", problem.plan);
        }
    }
}

/// L2 as well as DRAM moves the weight once, and the activations once for each block.
#[test]
fn the_weight_is_streamed_once() {
    let both =
        |tokens| [(GemmKernel::Decode(tokens), "sm_80", tokens), (GemmKernel::HopperDecode(tokens), "sm_90a", tokens)];
    for (kernel, target, tokens) in [8, 64].into_iter().flat_map(both) {
        let product = Product { m: tokens, n: 512, k: 512, epilogue: Epilogue::Half(None) };
        let data = Data { bias: false, ..Data::new(Type::F16, 3) };
        let problem = problem(product, kernel, 2, data);
        let report = check(&problem, &mut Gpu::new(target));
        let [tiles, ..] = problem.plan.shape().grid;
        let operands = 2 * 512 * u64::from(512 + tokens * tiles);
        let stored = 2 * 512 * u64::from(tokens);
        let counts = 16 * u64::from(tiles);
        assert!(report.total.global_bytes <= operands + 2 * problem.plan.workspace_bytes() + stored + counts);
    }
}

/// Only Hopper's own kernels and `gemv` load the weight before they wait for earlier launches. The emulator allows this
/// for a buffer that is named as a weight. Here the buffer has another name, so it must fault.
#[test]
fn weights_come_ahead_of_the_wait() {
    for (kernel, tokens) in kernels("sm_90a") {
        let product = Product { m: tokens.min(150), n: 256, k: 256, epilogue: Epilogue::Half(None) };
        let plan = problem(product, kernel, 1, Data::new(Type::F16, 1)).plan;
        let mut gpu = Gpu::new("sm_90a");
        if !gpu.is_emulator() {
            return;
        }
        let [x, weight] =
            [product.m, product.n].map(|rows| gpu.upload("a matrix", &vec![0u16; (rows * product.k) as usize]));
        let out = gpu.alloc::<u8>("out", 2 * (product.m * product.n) as usize);
        let operands = Operands {
            x: x.ptr(),
            x_stride: product.k,
            weight: weight.ptr(),
            out: out.mut_ptr(),
            out_stride: product.n,
            ..Operands::NULL
        };
        let comes_early = is_for_hopper(kernel) || matches!(kernel, GemmKernel::Gemv(_));
        // SAFETY: the shapes match the plan, and one part of `k` needs no workspace.
        let launched = unsafe { gpu.try_launch(plan.shape(), plan.call(ElementType::F16, operands)) };
        match launched {
            Ok(_) => assert!(!comes_early, "{kernel:?} waits before it loads the weight"),
            Err(fault) => {
                assert!(comes_early && fault.to_string().contains("no griddepcontrol.wait before"), "{fault}");
            }
        }
    }
}
