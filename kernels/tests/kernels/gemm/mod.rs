//! Projections: `gemv`, `gemm_decode`, `gemm`.
//!
//! Lines missing in the PTX are tried by `mutants_are_noticed`. Masks were taken out of the source by hand:
//!
//! TABLE

mod mutants;
mod product;

use kernels::gemm::activation::Activation;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{Kernel, Product};

use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::number::{Random, Type, relative_error};
use product::{Options, Problem};

const KERNELS: [Kernel; 9] = [
    Kernel::Gemv(1),
    Kernel::Gemv(2),
    Kernel::Gemv(4),
    Kernel::Decode(8),
    Kernel::Decode(16),
    Kernel::Decode(32),
    Kernel::Decode(64),
    Kernel::Prefill(128),
    Kernel::Prefill(256),
];

const EPILOGUES: [Epilogue; 8] = [
    Epilogue::Half(None),
    Epilogue::Half(Some(Activation::Relu)),
    Epilogue::Half(Some(Activation::Gelu)),
    Epilogue::Half(Some(Activation::GeluTanh)),
    Epilogue::Half(Some(Activation::Silu)),
    Epilogue::Gated(Activation::Silu),
    Epilogue::Add,
    Epilogue::Float,
];

/// Tokens that a kernel is for, at most.
fn tokens(kernel: Kernel) -> u32 {
    match kernel {
        Kernel::Gemv(tokens) | Kernel::Decode(tokens) => tokens,
        Kernel::Prefill(_) => 150,
    }
}

/// Splits that a kernel can have.
fn splits(kernel: Kernel, splits: u32) -> u32 {
    if let Kernel::Gemv(_) = kernel { 1 } else { splits }
}

pub fn every_kernel(gpu: &mut Gpu) {
    for (seed, kernel) in (1..).zip(KERNELS) {
        for ty in Type::ALL {
            let product = Product { m: tokens(kernel), n: 72, k: 152, epilogue: Epilogue::Half(None) };
            Problem::with(product, kernel, splits(kernel, 2), Options::new(ty, seed)).check(gpu);
        }
    }
}

/// Every end of every matrix: rows that are missing in a tile, a `k` that ends within one, and rows with gaps between.
#[test]
fn ragged_shapes() {
    let mut random = Random(1);
    for (i, kernel) in KERNELS.into_iter().enumerate() {
        let mut gpu = Gpu::new(TARGETS[i % 2].0);
        let most = tokens(kernel);
        // Down to one row, column and vector; around the sizes of tiles.
        for (m, n, k, parts) in [
            (1, 1, 8, 1),
            (most, 61, 72, 1),
            (most.div_ceil(2), 130, 200, 2),
            (most - most / 3, 8 + random.below(56) as u32, 8 * (9 + random.below(40) as u32), 2),
        ] {
            let ty = Type::ALL[(random.next() % 2) as usize];
            let gaps = (8 * random.below(3) as u32, random.below(6) as u32);
            let options = Options { gaps, bias: n % 2 == 0, ..Options::new(ty, random.next()) };
            let product = Product { m, n, k, epilogue: Epilogue::Half(None) };
            Problem::with(product, kernel, splits(kernel, parts), options).check(&mut gpu);
        }
    }
}

/// What a ring longer than the work, as long, and gone through several times makes of it; and shares that are not equal.
#[test]
fn every_length_of_the_ring() {
    for kernel in [Kernel::Decode(8), Kernel::Decode(64), Kernel::Prefill(128)] {
        let mut gpu = Gpu::new("sm_90a");
        for (tiles, parts) in [(1, 1), (2, 1), (4, 1), (6, 1), (7, 1), (13, 1), (7, 3), (9, 8)] {
            let product = Product { m: 8, n: 24, k: tiles * 64, epilogue: Epilogue::Float };
            Problem::with(product, kernel, parts, Options::new(Type::Bf16, tiles.into())).check(&mut gpu);
        }
    }
}

#[test]
fn every_epilogue() {
    for (i, kernel) in [Kernel::Gemv(4), Kernel::Decode(16), Kernel::Prefill(256)].into_iter().enumerate() {
        let mut gpu = Gpu::new(TARGETS[i % 2].0);
        for (seed, epilogue) in (1..).zip(EPILOGUES) {
            for ty in Type::ALL {
                // Rows of whole fours, and rows that are not; with more than the ones added to at a time.
                for (gap, bias, n) in [(0, true, 80), (3, false, 48)] {
                    let product = Product { m: tokens(kernel), n, k: 40, epilogue };
                    let options = Options { gaps: (0, gap), bias, ..Options::new(ty, seed) };
                    Problem::with(product, kernel, 1, options).check(&mut gpu);
                }
            }
        }
    }
}

/// Activations where they are small and large, not only where their sums' scale is.
#[test]
fn activations_keep_their_precision() {
    let mut gpu = Gpu::new("sm_80");
    for act in Activation::ALL {
        let mut problem = Problem::with(
            Product { m: 1, n: 256, k: 8, epilogue: Epilogue::Half(Some(act)) },
            Kernel::Gemv(1),
            1,
            Options::new(Type::Bf16, 1),
        );
        // The sums are the bias: from -8 to 8.
        problem.set_bias((0..256).map(|i| f64::from(i - 128) / 16.0));
        let (results, _) = problem.run(&mut gpu).unwrap();
        for (result, truth) in results.into_iter().zip(problem.truth()) {
            assert!((result - truth).abs() <= truth.abs() / 256.0, "{act:?}: {result} for {truth}");
        }
    }
}

/// The result is the same to the bit whoever comes last.
#[test]
fn orders_of_warps_and_blocks() {
    for (kernel, m) in [(Kernel::Decode(8), 5), (Kernel::Decode(32), 32), (Kernel::Prefill(128), 40)] {
        let product = Product { m, n: 200, k: 640, epilogue: Epilogue::Add };
        let problem = Problem::with(product, kernel, 3, Options::new(Type::F16, 4));
        let results: Vec<_> = (0..4)
            .map(|seed| {
                let mut gpu = Gpu::new("sm_90a");
                gpu.seed(seed);
                problem.run(&mut gpu).unwrap().0
            })
            .collect();
        assert!(relative_error(results[0].iter().copied(), &problem.truth()) <= problem.tolerance());
        assert!(results.iter().all(|other| *other == results[0]), "{:?}", problem.plan);
    }
}

/// Plans as they are, launched: not too large for a test, on a GPU so small that it needs several splits and rounds.
#[test]
fn plans_are_launched_as_they_are() {
    for m in [1, 3, 7, 20, 50, 70, 300] {
        let product = Product { m, n: 96, k: 1024, epilogue: Epilogue::Gated(Activation::GeluTanh) };
        Problem::new(product, Options::new(Type::Bf16, m.into())).check(&mut Gpu::new("sm_80"));
    }
}

/// On aligned shapes nothing is loaded or stored in parts of sectors, there are no bank conflicts, and DRAM moves what the
/// floor says.
#[test]
fn traffic_is_what_it_must_be() {
    for kernel in KERNELS {
        for (epilogue, parts) in [(Epilogue::Half(None), 1), (Epilogue::Add, 1), (Epilogue::Float, 2)] {
            let (m, parts) =
                (if let Kernel::Prefill(_) = kernel { 128 } else { tokens(kernel) }, splits(kernel, parts));
            let product = Product { m, n: 256, k: 1024, epilogue };
            let problem = Problem::with(product, kernel, parts, Options::new(Type::F16, 3));
            let report = problem.check(&mut Gpu::new("sm_90a"));
            assert_eq!(report.total.bank_conflicts(), 0, "{:?}", problem.plan);
            assert!(report.total.sector_ratio() <= 1.02, "{:?}: {}", problem.plan, report.total.sector_ratio());
            let workspace = if parts == 1 { 0 } else { problem.plan.workspace_bytes() + 64 };
            let bytes = product.floor().bytes + u64::from(product.n) * 2 + workspace;
            assert!(report.distinct_sectors * 32 <= bytes, "{:?}: {report:?}", problem.plan);
        }
    }
}

/// What comes from L2 as well as from DRAM: the weight once, activations once a block.
#[test]
fn the_weight_is_streamed_once() {
    for tokens in [8, 64] {
        let product = Product { m: tokens, n: 512, k: 512, epilogue: Epilogue::Half(None) };
        let problem =
            Problem::with(product, Kernel::Decode(tokens), 2, Options { bias: false, ..Options::new(Type::F16, 3) });
        let report = problem.check(&mut Gpu::new("sm_80"));
        let (tiles, _, _) = problem.plan.grid();
        let operands = 2 * 512 * u64::from(512 + tokens * tiles);
        let stored = 2 * 512 * u64::from(tokens);
        let counts = 16 * u64::from(tiles);
        assert!(report.total.global_bytes <= operands + 2 * problem.plan.workspace_bytes() + stored + counts);
    }
}
