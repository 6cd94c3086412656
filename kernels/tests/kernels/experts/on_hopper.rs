//! `grouped_hopper`: ragged groups, results that do not depend on other tokens, an arrival that announces too little, and
//! counts. `docs/benchmarks` has the figures. With `-- --nocapture` the tests print them.

use emulator::CostReport;
use kernels::experts::hopper::{COLUMNS, STAGES, TOKENS};
use kernels::experts::plan::{ExpertsPlan, Unit};
use kernels::gemm::operand::DEPTH;
use workbench::cases::experts::{CLAMPED, hopper_plan, hopper_projections};
use workbench::experts::{GroupedProblem, Pattern};
use workbench::number::Type;
use workbench::product::Data;

use super::{check, product};
use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate::only;

/// Both warp groups or one of them, several tiles of rows and of the weight in a block, experts without tokens, all
/// tokens with one expert, experts of another worker, and every unit.
#[test]
fn ragged_groups() {
    let mut gpu = Gpu::new("sm_90a");
    let units = [Unit::Plain, Unit::Silu, CLAMPED, Unit::GeluTanh];
    let patterns = [Pattern::Random, Pattern::Same, Pattern::Turns];
    for (i, (tokens, top_k, experts, first)) in
        [(1, 1, 1, 0), (3, 2, 8, 0), (TOKENS + 3, 1, 3, 0), (70, 2, 4, 2), (200, 1, 2, 0)].into_iter().enumerate()
    {
        for (unit, shape) in units.into_iter().zip([[40, 328], [272, 8], [16, 200], [96, 64]]) {
            let plan = hopper_plan(ExpertsPlan::new(tokens, top_k, experts, first..experts), 3);
            let data = Data { gaps: (8, 2), bias: unit != Unit::Silu, ..Data::new(Type::ALL[i % 2], i as u64) };
            gpu.seed(i as u64);
            check(product(plan, shape, unit, None), patterns[i % 3], data, &mut gpu);
        }
    }
}

/// A token's result is the same to the bit with few tokens and with many, in any order of warps and blocks.
#[test]
fn results_do_not_depend_on_other_tokens() {
    let mut gpu = Gpu::new("sm_90a");
    let mut run = |tokens: u32, blocks: u32, seed: u64| {
        let plan = hopper_plan(ExpertsPlan::new(tokens, 2, 3, 0..3), blocks);
        gpu.seed(seed);
        check(product(plan, [272, 320], CLAMPED, None), Pattern::Random, Data::new(Type::F16, 5), &mut gpu)
    };
    let all = run(200, 3, 0);
    for (tokens, blocks, seed) in [(1, 132, 0), (7, 1, 0), (90, 2, 1), (200, 132, 3)] {
        let some = run(tokens, blocks, seed);
        assert_eq!(some, all[..some.len()], "{tokens} tokens in {blocks} blocks");
    }
}

/// Readers must not see a slot before all bytes of its weight have arrived.
#[test]
fn an_arrival_that_announces_no_bytes_is_noticed() {
    let ring = (2 * STAGES + 1) * DEPTH;
    let case = hopper_projections([TOKENS, 1, 1], [COLUMNS, ring], 1, "sm_90a").next().unwrap();
    let ptx = only(TARGETS[1].1, "grouped_hopper_f16");
    let arrival = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [";
    let (before, after) = ptx.split_once(arrival).unwrap();
    let (barrier, rest) = after.split_once(',').unwrap();
    let (_, rest) = rest.split_once(';').unwrap();
    let weaker = format!("{before}mbarrier.arrive.shared::cta.b64 _, [{barrier};{rest}");
    assert!(!Gpu::notices(&ptx, &case) && Gpu::notices(&weaker, &case));
}

/// Returns the cost of a product of two experts that both have all tokens. There are 512 weight rows.
fn report(tile: u32, tokens: u32, k: u32, unit: Unit) -> CostReport {
    let plan = ExpertsPlan::new(tokens, 2, 2, 0..2);
    let plan = if tile == TOKENS { hopper_plan(plan, 132) } else { ExpertsPlan { tile, ..plan } };
    let data = Data { bias: false, every: 97, ..Data::new(Type::F16, 1) };
    let problem = GroupedProblem::new(product(plan, [512, k], unit, None), Pattern::Same.chosen(tokens, 2, 2, 3), data);
    let mut gpu = Gpu::new("sm_90a");
    let placed = problem.place(gpu.bench()).unwrap();
    let launches = gpu.bench().reported(|gpu| placed.launch(gpu)).unwrap();
    assert!(problem.error(&problem.results(&placed, gpu.bench()).unwrap()) <= 1.0);
    launches.into_iter().next().unwrap().report
}

/// Warp instructions for each 16 x 8 x 16 of the work, from the slope over `k`, and those that do not depend on `k` for
/// each 128 x 256 results.
#[test]
fn products_of_many_tokens_cost_few_instructions() {
    for (tile, most, most_fixed) in [(64, 3.2, [15e3, 22e3]), (TOKENS, 0.65, [5.5e3, 13e3])] {
        for (unit, most_fixed) in [Unit::Plain, Unit::Silu].into_iter().zip(most_fixed) {
            let tokens = 2 * TOKENS;
            let [short, long] = [512, 1024].map(|k| report(tile, tokens, k, unit).total.instructions as f64);
            let marginal = (long - short) / f64::from(2 * tokens * 512 / (16 * 8) * 512 / 16);
            let fixed = (2.0 * short - long) / f64::from(2 * tokens / TOKENS * 512 / COLUMNS);
            println!("tiles of {tile}, {unit:?}: {marginal:.3} a step, and {fixed:.0} fixed");
            assert!(marginal <= most && fixed <= most_fixed, "{tile}, {unit:?}: {marginal} a step, {fixed} fixed");
        }
    }
}

/// Each tile of rows reads the weight once, and each tile of weight rows reads the rows that exist. The list of tiles and
/// the order of slots are small.
#[test]
fn tiles_read_only_what_exists() {
    let (n, k) = (512, 512);
    for (tile, columns) in [(64, 128), (TOKENS, COLUMNS)] {
        for tokens in [40, TOKENS, 2 * TOKENS] {
            let total = report(tile, tokens, k, Unit::Plain).total;
            let (tiles, rows) = (2 * tokens.div_ceil(tile), 2 * tokens);
            let moved = u64::from(2 * (n * k * tiles + k * rows * (n / columns) + n * rows));
            let sectors = total.sectors;
            println!("tiles of {tile}, {tokens} tokens: {sectors} sectors, {} instructions", total.instructions);
            assert!((moved..moved + moved / 50).contains(&(32 * sectors)), "{sectors} sectors for {moved} bytes");
            assert!(total.sector_ratio() <= 1.01 && total.bank_conflicts() == 0, "{total:?}");
        }
    }
}
