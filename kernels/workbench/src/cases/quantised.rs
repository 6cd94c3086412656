//! Projections with quantised weights: `kernels::gemm::quantised`.

use std::rc::Rc;

use kernels::gemm::epilogue::Epilogue;
use kernels::gemm::plan::{GpuLimits, Operands, Product};
use kernels::gemm::quantised::TOKENS;
use kernels::gemm::quantised::layout::CodeForm;
use kernels::gemm::quantised::plan::{PackedOperand, QuantisedPlan};

use crate::case::{Case, Prepared, Scale};
use crate::number::Type;
use crate::product::Data;
use crate::quantised::QuantisedProblem;

/// Weights of LLaMA-3-8B: rows and their length.
const WEIGHTS: [(u32, u32); 4] = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)];

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let kinds = || CodeForm::DENSE.into_iter().flat_map(|form| Type::ALL.map(|ty| (form, ty)));
    let all = |n: u32, k: u32, splits: u32| {
        kinds().flat_map(move |(form, ty)| {
            TOKENS.map(move |tokens| {
                let product = Product { m: tokens, n, k, epilogue: Epilogue::Half(None) };
                case(QuantisedPlan { product, form, group: 128, tokens, splits }, ty)
            })
        })
    };
    match scale {
        Scale::Small => all(256, 512, 2).collect(),
        Scale::Full => {
            let products = WEIGHTS.into_iter().flat_map(|(n, k)| {
                [1, 4, 16, 64, 256, 1024].map(|m| Product { m, n, k, epilogue: Epilogue::Half(None) })
            });
            let planned = products.flat_map(|product| {
                CodeForm::DENSE.map(|form| QuantisedPlan::new(product, form, 128, GpuLimits::H200).ok())
            });
            // No planned product has this shape, so these cases can be told apart from the planned ones.
            all(8192, 8192, 1).chain(planned.flatten().map(|plan| case(plan, Type::F16))).collect()
        }
    }
}

/// Makes a case of a plan on random data.
pub fn case(plan: QuantisedPlan, ty: Type) -> Case {
    let Product { m, n, k, .. } = plan.product;
    Case {
        kernel: plan.call(ty.element(), Operands::NULL, PackedOperand::NULL).descriptor().name,
        shape: format!("{m} x {n} x {k}, {:?}, groups of {}, {} splits", plan.form, plan.group, plan.splits),
        floor: plan.floor(),
        prepare: Box::new(move |gpu| {
            // With many tokens, the reference is computed for only a few of them.
            let data = Data { every: m.div_ceil(8), ..Data::new(ty, 1) };
            let problem = Rc::new(QuantisedProblem::new(plan, data));
            let placed = problem.place(gpu)?;
            Ok(Prepared {
                launch: Box::new(move |gpu| placed.launch(gpu)),
                error: Box::new(move |gpu| {
                    Ok(problem.rest.error(problem.rest.results(&placed, gpu)?, &problem.truth()))
                }),
            })
        }),
    }
}
