//! Projections: the kernels of `kernels::gemm`.

use std::rc::Rc;

use kernels::gemm::activation::Activation;
use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{GemmKernel, GemmPlan, GpuLimits, Operands, Product};

use crate::case::{Case, Prepared, Scale};
use crate::number::Type;
use crate::product::{Data, ProductProblem, kernels};

/// Weights of OPT-13B and LLaMA-3-8B: rows, row length and epilogue.
const WEIGHTS: [(u32, u32, Epilogue); 10] = [
    (15360, 5120, Epilogue::Half(None)),
    (5120, 5120, Epilogue::Half(None)),
    (20480, 5120, Epilogue::Half(Some(Activation::Relu))),
    (5120, 20480, Epilogue::Half(None)),
    (50272, 5120, Epilogue::Float),
    (6144, 4096, Epilogue::Half(None)),
    (4096, 4096, Epilogue::Half(None)),
    (28672, 4096, Epilogue::Gated(Activation::Silu)),
    (4096, 14336, Epilogue::Half(None)),
    (128_256, 4096, Epilogue::Float),
];

pub(super) fn cases(scale: Scale, target: &str) -> Vec<Case> {
    let gpu = if target == "sm_90a" { GpuLimits::H200 } else { GpuLimits { hopper_from: None, ..GpuLimits::H200 } };
    let every_kernel = |m: u32, n: u32, k: u32, splits: u32| {
        Type::ALL.into_iter().flat_map(move |ty| {
            kernels(target).map(move |(kernel, tokens)| {
                // A warp of `gemv` takes 256 elements of a row at a time, and should do so twice. `gemv` has no splits.
                let (splits, k) = if matches!(kernel, GemmKernel::Gemv(_)) { (1, k.max(512)) } else { (splits, k) };
                let product = Product { m: m.min(tokens), n, k, epilogue: Epilogue::Half(None) };
                // The Hopper kernels get fewer blocks than parts of tiles, so each block processes several.
                case(GemmPlan { product, kernel, splits, blocks: 3 }, ty)
            })
        })
    };
    match scale {
        Scale::Small => every_kernel(128, 256, 256, 2).collect(),
        Scale::Full => {
            let planned = WEIGHTS
                .into_iter()
                .flat_map(|(n, k, epilogue)| [1, 4, 16, 64, 256, 1024, 4096].map(|m| Product { m, n, k, epilogue }));
            let planned = planned.filter_map(|product| GemmPlan::new(product, gpu).ok());
            // No planned product has this shape, so these cases can be told apart from the planned ones.
            every_kernel(1024, 8192, 8192, 1).chain(planned.map(|plan| case(plan, Type::F16))).collect()
        }
    }
}

/// Makes a case of a plan on random data.
pub fn case(plan: GemmPlan, ty: Type) -> Case {
    let Product { m, n, k, epilogue } = plan.product;
    let floor = plan.product.floor();
    Case {
        kernel: plan.call(ty.element(), Operands::NULL).descriptor().name,
        shape: format!("{m} x {n} x {k}, {}, {} splits", what(epilogue), plan.splits),
        floor,
        prepare: Box::new(move |gpu| {
            // With many tokens, the reference is computed for only a few of them.
            let data = Data { every: m.div_ceil(8), ..Data::new(ty, 1) };
            let problem = Rc::new(ProductProblem::new(plan, data));
            let placed = problem.place(gpu)?;
            Ok(Prepared {
                launch: Box::new(move |gpu| placed.launch(gpu)),
                error: Box::new(move |gpu| Ok(problem.error(problem.results(&placed, gpu)?, &problem.truth()))),
            })
        }),
    }
}

/// Names the epilogue in a word or two.
fn what(epilogue: Epilogue) -> String {
    match epilogue {
        Epilogue::Half(None) => "plain".to_owned(),
        Epilogue::Half(Some(act)) => format!("{act:?}"),
        Epilogue::Gated(act) => format!("gated by {act:?}"),
        Epilogue::Add => "added".to_owned(),
        Epilogue::Float => "in f32".to_owned(),
    }
}
