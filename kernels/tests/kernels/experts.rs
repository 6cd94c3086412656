//! Experts: `route`, `group_by_expert`, `grouped_product`, `grouped_hopper`, `grouped_quantised`, `combine_experts`.

mod on_hopper;

use kernels::experts::plan::{ExpertsPlan, GroupedProduct, Groups, Router, Unit};
use kernels::experts::product::TOKENS;
use kernels::gemm::quantised::layout::CodeForm;
use workbench::cases::experts::{CLAMPED, combined, grouped_router, groups, routing, softmax};
use workbench::experts::{GroupedProblem, Pattern, RoutingProblem};
use workbench::number::Type;
use workbench::product::Data;

use crate::frame::gpu::{Gpu, TARGETS};

#[test]
fn routers_of_every_kind() {
    let mut gpu = Gpu::new("sm_80");
    for (experts, top_k) in [(1, 1), (8, 2), (33, 7), (64, 32), (160, 6)] {
        let plain = softmax(experts, top_k);
        let sigmoid = Router { is_sigmoid: true, is_renormalised: false, scale: 0.5, ..plain };
        for router in [plain, sigmoid, Router { is_renormalised: false, shared: Some(false), ..plain }] {
            for tokens in [1, 5] {
                let problem = RoutingProblem::new(router, tokens, experts.into());
                gpu.run(&routing(problem.clone()));
                gpu.run(&routing(problem.corrected(7)));
            }
        }
    }
}

#[test]
fn groups_limit_the_choice_of_experts() {
    let mut gpu = Gpu::new("sm_90a");
    for (experts, count, top_groups, best, top_k) in [(8, 4, 2, 1, 3), (64, 8, 4, 2, 8), (256, 32, 3, 8, 20)] {
        let groups = Some(Groups { count, top_k: top_groups, best });
        for router in [grouped_router(experts, top_k), softmax(experts, top_k)] {
            let problem = RoutingProblem::new(Router { groups, ..router }, 6, count.into());
            gpu.run(&routing(problem.clone()));
            gpu.run(&routing(problem.corrected(8)));
        }
    }
}

/// Ties of all experts, NaN, infinities and both zeros.
#[test]
fn unusual_logits_are_routed_as_defined() {
    let mut gpu = Gpu::new("sm_80");
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows = [
        [1.25; 8],
        [9.0, 8.0, 1.0, nan, 0.0, 0.0, 0.0, 0.0],
        [nan; 8],
        [-nan, 1.0, 2.0, nan, 3.0, nan, 4.0, 5.0],
        [inf, 0.0, -inf, 1.0, 2.0, 3.0, 4.0, 5.0],
        [-inf; 8],
        [-0.0, 0.0, -0.0, 0.0, -0.0, 0.0, -1.0, 0.0],
    ];
    for router in [softmax(8, 3), Router { is_sigmoid: true, ..softmax(8, 3) }] {
        for groups in [None, Some(Groups { count: 4, top_k: 2, best: 2 })] {
            let router = Router { groups, ..router };
            let logits = rows.concat();
            let tokens = rows.len() as u32;
            let problem =
                RoutingProblem { router, tokens, logits, stride: 8, padding: 0, correction: None, scale: None };
            assert!(groups.is_some() || problem.truth().chosen.starts_with(&[0, 1, 2, 0, 1, 3, 0, 1, 2]));
            gpu.run(&routing(problem));
        }
    }
}

#[test]
fn slots_are_grouped_by_expert() {
    for (i, pattern) in Pattern::ALL.into_iter().enumerate() {
        let mut gpu = Gpu::new(TARGETS[i % 2].0);
        for (tokens, top_k, experts) in [(1, 1, 1), (1, 8, 64), (16, 2, 4), (17, 2, 2), (100, 3, 300), (300, 4, 8)] {
            gpu.seed(u64::from(tokens) % 3);
            gpu.run(&groups(ExpertsPlan::new(tokens, top_k, experts, 0..experts), pattern));
        }
        // The upper half of the experts.
        gpu.run(&groups(ExpertsPlan::new(70, 2, 8, 4..8), pattern));
    }
}

fn product(plan: ExpertsPlan, [n, k]: [u32; 2], unit: Unit, coded: Option<(CodeForm, u32)>) -> GroupedProduct {
    GroupedProduct { plan, n, k, unit, coded }
}

/// Returns the results of each slot after checking them.
fn check(product: GroupedProduct, pattern: Pattern, data: Data, gpu: &mut Gpu) -> Vec<(u32, Vec<u16>)> {
    let ExpertsPlan { tokens, top_k, first, count, .. } = product.plan;
    let problem = GroupedProblem::new(product, pattern.chosen(tokens, top_k, first + count, 3), data);
    let gpu = gpu.bench();
    let placed = problem.place(gpu).unwrap();
    placed.launch(gpu).unwrap();
    let results = problem.results(&placed, gpu).unwrap_or_else(|error| panic!("{product:?}: {error}"));
    let error = problem.error(&results);
    assert!(error <= 1.0, "{product:?}, {pattern:?}: the error is {error} times the allowed one");
    results
}

/// Rows that are missing in a tile and in a fragment, a `k` that ends within a step, rows with gaps, experts of another
/// worker, and every unit and routing.
#[test]
fn ragged_groups() {
    let units = [Unit::Plain, Unit::Silu, CLAMPED, Unit::GeluTanh];
    for (i, tile) in TOKENS.into_iter().enumerate() {
        let mut gpu = Gpu::new(TARGETS[i].0);
        for (seed, (tokens, top_k, experts, first)) in
            (1..).zip([(1, 1, 1, 0), (3, 2, 8, 0), (tile + 3, 2, 3, 0), (40, 2, 4, 2), (5, 4, 4, 0)])
        {
            for (unit, shape) in units.into_iter().zip([[40, 72], [144, 8], [16, 200], [96, 64]]) {
                let plan = ExpertsPlan { tile, ..ExpertsPlan::new(tokens, top_k, experts, first..experts) };
                let ty = Type::ALL[seed as usize % 2];
                let data = Data { gaps: (8, 1), bias: unit != Unit::Silu, ..Data::new(ty, seed) };
                check(product(plan, shape, unit, None), Pattern::ALL[seed as usize % 3], data, &mut gpu);
            }
        }
    }
}

#[test]
fn ragged_groups_with_codes() {
    for (i, tile) in TOKENS.into_iter().enumerate() {
        let mut gpu = Gpu::new(TARGETS[i].0);
        for (seed, form) in (1..).zip(CodeForm::GROUPED) {
            for group in [form.least_group(), 128] {
                let plan = ExpertsPlan { tile, ..ExpertsPlan::new(tile / 2 + 12, 2, 3, 0..3) };
                for (unit, shape) in [(Unit::Plain, [40, 136]), (CLAMPED, [144, 160])] {
                    let data = Data::new(Type::ALL[seed as usize % 2], seed);
                    check(product(plan, shape, unit, Some((form, group))), Pattern::Random, data, &mut gpu);
                }
            }
        }
    }
}

/// A token's result is the same to the bit alone, in any tile, and in any order of warps and blocks.
#[test]
fn results_do_not_depend_on_other_tokens() {
    for coded in [None, Some((CodeForm::Int4, 32))] {
        let mut gpu = Gpu::new("sm_90a");
        let mut run = |tokens: u32, tile: u32, seed: u64| {
            let plan = ExpertsPlan { tile, ..ExpertsPlan::new(tokens, 2, 4, 0..4) };
            gpu.seed(seed);
            let product = product(plan, [160, 320], CLAMPED, coded);
            check(product, Pattern::Random, Data::new(Type::F16, 5), &mut gpu)
        };
        let all = run(50, 64, 0);
        for (tokens, tile, seed) in [(1, 16, 0), (7, 64, 0), (50, 16, 0), (50, 64, 3)] {
            let some = run(tokens, tile, seed);
            assert_eq!(some, all[..some.len()], "{tokens} tokens, tiles of {tile}");
        }
    }
}

#[test]
fn results_are_combined() {
    for (i, ty) in Type::ALL.into_iter().enumerate() {
        for (shape, width) in [([1, 1, 2], 8), ([7, 4, 6], 2056)] {
            Gpu::new(TARGETS[i].0).run(&combined(ty, shape, width));
        }
    }
}
