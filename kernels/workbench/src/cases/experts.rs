//! Experts: routers, the tokens of each expert, products of all experts, and weighted sums.

use std::rc::Rc;

use cuda_std::vector::Vector;
use kernels::experts::combine::{combine_experts, shape};
use kernels::experts::plan::{ExpertsPlan, GroupedProduct, Groups, Router, Unit};
use kernels::experts::product::TOKENS;
use kernels::gemm::plan::GpuLimits;
use kernels::gemm::quantised::layout::CodeForm;
use kernels::with_element;

use super::exact;
use super::norm::rounding;
use crate::Floor;
use crate::case::{Case, Prepared, Scale};
use crate::experts::{GroupedProblem, Pattern, RoutingProblem, grouped};
use crate::number::{ProblemRng, Type, relative_error};
use crate::product::Data;

/// The clamped unit of gpt-oss.
pub const CLAMPED: Unit = Unit::Clamped { alpha: 1.702, limit: 7.0 };

pub(super) fn cases(scale: Scale, target: &str) -> Vec<Case> {
    let (tokens, top_k, experts, [n, k]) = match scale {
        Scale::Small => (20, 2, 6, [80, 200]),
        // Qwen3-30B-A3B.
        Scale::Full => (256, 8, 128, [1536, 2048]),
    };
    let mut cases = vec![
        routing(RoutingProblem::new(softmax(experts, top_k), tokens, 1)),
        routing(RoutingProblem {
            padding: 3,
            ..RoutingProblem::new(grouped_router(experts, top_k), tokens, 2).corrected(3)
        }),
        groups(ExpertsPlan::new(tokens, top_k, experts, 0..experts), Pattern::Random),
    ];
    cases.extend(Type::ALL.map(|ty| combined(ty, [tokens, top_k, experts], k)));
    cases.extend(projections([tokens, top_k, experts], [n, k]));
    cases.extend(hopper_projections([tokens, top_k, experts], [n, k], GpuLimits::H200.multiprocessors, target));
    cases
}

/// Gated projections with every tile, form of weights and type.
pub fn projections([tokens, top_k, experts]: [u32; 3], [n, k]: [u32; 2]) -> impl Iterator<Item = Case> {
    TOKENS.into_iter().flat_map(move |tile| {
        let plan = ExpertsPlan { tile, ..ExpertsPlan::new(tokens, top_k, experts, 0..experts) };
        let forms = CodeForm::GROUPED.into_iter().map(|form| Some((form, 32))).chain([None]);
        forms.flat_map(move |coded| {
            let product = GroupedProduct { plan, n, k, unit: Unit::Silu, coded };
            Type::ALL.map(|ty| projection(product, Pattern::Random, ty))
        })
    })
}

/// Gated and plain projections with Hopper's kernel, if the target has it, in at most `blocks` blocks.
pub fn hopper_projections(
    [tokens, top_k, experts]: [u32; 3],
    [n, k]: [u32; 2],
    blocks: u32,
    target: &str,
) -> impl Iterator<Item = Case> {
    let plan = hopper_plan(ExpertsPlan::new(tokens, top_k, experts, 0..experts), blocks);
    let types = if target == "sm_90a" { &Type::ALL[..] } else { &[] };
    // Both ways to store sums.
    types.iter().flat_map(move |&ty| {
        [Unit::Silu, Unit::Plain]
            .map(|unit| projection(GroupedProduct { plan, n, k, unit, coded: None }, Pattern::Random, ty))
    })
}

/// Returns the plan with Hopper's kernel in at most `blocks` blocks.
pub const fn hopper_plan(plan: ExpertsPlan, blocks: u32) -> ExpertsPlan {
    let gpu = GpuLimits { multiprocessors: blocks, hopper_from: Some(0), ..GpuLimits::H200 };
    plan.on_hopper(1, gpu)
}

/// A router with a softmax.
pub fn softmax(experts: u32, top_k: u32) -> Router {
    Router { experts, top_k, is_sigmoid: false, is_renormalised: true, scale: 1.0, groups: None, shared: None }
}

/// A router with two groups of experts and a shared expert with a gate.
pub fn grouped_router(experts: u32, top_k: u32) -> Router {
    let groups = Some(Groups { count: 2, top_k: 1, best: 2 });
    Router { is_sigmoid: true, scale: 2.5, groups, shared: Some(true), ..softmax(experts, top_k) }
}

/// The experts of each token.
pub fn routing(problem: RoutingProblem) -> Case {
    let Router { experts, top_k, .. } = problem.router;
    let numbers = problem.tokens * (experts + top_k + problem.router.uses());
    let problem = Rc::new(problem);
    Case {
        kernel: "route",
        shape: format!("{} tokens, {top_k} of {experts} experts", problem.tokens),
        floor: Floor { bytes: 4 * u64::from(numbers), flops: 0 },
        prepare: Box::new(move |gpu| {
            let (problem, placed) = (Rc::clone(&problem), problem.place(gpu)?);
            Ok(Prepared {
                launch: Box::new(move |gpu| placed.launch(gpu)),
                error: Box::new(move |gpu| problem.error(&placed, gpu)),
            })
        }),
    }
}

/// The tokens of each expert.
pub fn groups(plan: ExpertsPlan, pattern: Pattern) -> Case {
    let experts = plan.first + plan.count;
    let chosen = pattern.chosen(plan.tokens, plan.top_k, experts.max(plan.top_k), 5);
    let (order, tiles) = grouped(plan, &chosen);
    Case {
        kernel: "group_by_expert",
        shape: format!("{} slots of {experts} experts, {pattern:?}", plan.slots()),
        floor: Floor { bytes: 8 * u64::from(plan.slots()), flops: 0 },
        prepare: Box::new(move |gpu| {
            // Slots of other workers' experts leave the end of the list unused.
            let order_to = gpu.upload("order", &vec![u32::MAX; plan.slots() as usize])?;
            let tiles_to = gpu.alloc::<u32>("tiles", 4 * plan.tiles() as usize)?;
            let call = plan.call(gpu.upload("chosen", &chosen)?.ptr(), order_to.mut_ptr(), tiles_to.mut_ptr());
            let mut want = order.clone();
            want.resize(plan.slots() as usize, u32::MAX);
            let tiles = tiles.concat();
            Ok(Prepared {
                // SAFETY: the arrays have the plan's sizes.
                launch: Box::new(move |gpu| unsafe { gpu.launch(plan.shape(), call) }),
                error: Box::new(move |gpu| {
                    Ok(exact(&gpu.download(order_to)?, &want) + exact(&gpu.download(tiles_to)?, &tiles))
                }),
            })
        }),
    }
}

/// A projection of all experts.
pub fn projection(product: GroupedProduct, pattern: Pattern, ty: Type) -> Case {
    let ExpertsPlan { tokens, top_k, first, count, tile, .. } = product.plan;
    let kernel = match product.coded {
        Some(_) => "grouped_quantised",
        None if product.plan.is_for_hopper() => "grouped_hopper",
        None => "grouped_product",
    };
    Case {
        kernel,
        shape: format!(
            "{}, {tokens} tokens, {top_k} of {count} experts of {} x {}, tiles of {tile}, {:?}",
            ty.label(),
            product.n,
            product.k,
            product.coded
        ),
        floor: product.floor(count),
        prepare: Box::new(move |gpu| {
            let chosen = pattern.chosen(tokens, top_k, first + count, 7);
            // Rows of the output on Hopper are whole vectors.
            let gap = if product.plan.is_for_hopper() { 2 } else { 1 };
            // With many tokens, the reference is computed for only a few of them.
            let data = Data { every: product.plan.slots().div_ceil(64), gaps: (8, gap), ..Data::new(ty, 1) };
            let problem = Rc::new(GroupedProblem::new(product, chosen, data));
            let placed = problem.place(gpu)?;
            Ok(Prepared {
                launch: Box::new(move |gpu| placed.launch(gpu)),
                error: Box::new(move |gpu| Ok(problem.error(&problem.results(&placed, gpu)?))),
            })
        }),
    }
}

/// Weighted sums of the results of the upper half of the experts, and of a shared expert.
pub fn combined(ty: Type, [tokens, top_k, experts]: [u32; 3], width: u32) -> Case {
    let (first, vectors) = (experts / 2, width / 8);
    let rows = u64::from(tokens * (top_k + 2));
    Case {
        kernel: "combine_experts",
        shape: format!("{}, {tokens} tokens, {top_k} results of {width}", ty.label()),
        floor: Floor { bytes: 2 * rows * u64::from(width), flops: 0 },
        prepare: Box::new(move |gpu| {
            let mut random = ProblemRng(9);
            let chosen = Pattern::Random.chosen(tokens, top_k, experts, 8);
            let mut results = random.bits(ty, (tokens * top_k * width) as usize);
            // Results of other experts must not be read.
            let of_slot = results.chunks_mut(width as usize).zip(&chosen);
            of_slot.filter(|(_, expert)| **expert < first).for_each(|(row, _)| row.fill(ty.nan()));
            let shared = random.bits(ty, (tokens * width) as usize);
            let factors: Vec<f32> = (0..tokens * (top_k + 1)).map(|_| random.unit() as f32).collect();
            let out = gpu.alloc::<u16>("out", shared.len())?;
            let args = combine_experts {
                results: gpu.upload("results", &results)?.ptr(),
                chosen: gpu.upload("chosen", &chosen)?.ptr(),
                factors: gpu.upload("factors", &factors)?.ptr(),
                shared: gpu.upload("shared", &shared)?.ptr::<Vector>(),
                out: out.mut_ptr(),
                tokens,
                vectors,
                top_k,
                first,
                count: experts - first,
            };
            let call = with_element!(ty.element(), T => args.instance::<T>());
            let sum = move |at: usize| {
                let (token, column) = (at / width as usize, at % width as usize);
                let factor = |i: usize| f64::from(factors[token * (top_k as usize + 1) + i]);
                let slots = (0..top_k as usize).map(|i| (i, token * top_k as usize + i));
                let own = slots.filter(|(_, slot)| chosen[*slot] >= first);
                let of_experts = own.map(|(i, slot)| factor(i) * ty.number(results[slot * width as usize + column]));
                of_experts.sum::<f64>() + factor(top_k as usize) * ty.number(shared[at])
            };
            let truth: Vec<f64> = (0..out.len()).map(sum).collect();
            Ok(Prepared {
                // SAFETY: the arrays have these shapes.
                launch: Box::new(move |gpu| unsafe { gpu.launch(shape(tokens, vectors), call) }),
                error: Box::new(move |gpu| {
                    let got = gpu.download(out)?.into_iter().map(|x| ty.number(x));
                    Ok(relative_error(got, &truth) / rounding(ty))
                }),
            })
        }),
    }
}
