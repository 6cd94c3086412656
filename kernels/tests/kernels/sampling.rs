//! Choosing tokens: the same tokens and logprobs, to the last bit, as plain code that sorts the row.
//!
//! Tried by hand on the source: if `collect` also takes ranks above its interval, the first three tests fail, with
//! races.
//!
//! `tests/tests/sampling_kernel.rs` compares the kernel with the engine's own sampler in the same way.

use kernels::sampling::{Request, THREADS};
use workbench::cases::sampling::{Row, bell, case, every_kind};
use workbench::number::ProblemRng;

use crate::frame::gpu::{Gpu, TARGETS};
use crate::frame::mutate::without_each;

fn row(logits: Vec<f32>, request: Request) -> Row {
    Row::new(logits, request)
}

fn check(name: &str, rows: &[Row], seed: u64) {
    for (target, _) in TARGETS {
        let mut gpu = Gpu::new(target);
        gpu.seed(seed);
        gpu.run(&case(name, rows.to_vec()));
    }
}

#[test]
fn every_kind_of_request_in_one_launch() {
    for (vocab, seed) in [(1, 0), (3, 0), (513, 0), (513, 1), (2048, 2), (9001, 3)] {
        check("every kind", &every_kind(vocab, vocab as u64 + seed), seed);
    }
}

#[test]
fn equal_logits_are_told_apart_by_their_ids() {
    let warm = Request::GREEDY.with_temperature(1.0);
    let requests = [
        Request { top_k: 5000, ..warm },
        warm.with_top_p(0.75),
        Request { top_k: 4500, seed: 9, ..warm.with_top_p(0.96) },
        Request { top: 9, ..Request::GREEDY },
    ];
    let zeros = (0..6001).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
    let logits: [Vec<f32>; 2] = [vec![-2.5; 6001], zeros];
    let rows = logits.into_iter().flat_map(|logits| requests.map(|request| row(logits.clone(), request)));
    check("equal logits", &rows.collect::<Vec<_>>(), 1);
}

#[test]
fn extreme_logits() {
    let with = |at: usize, value: f32| {
        let mut logits: Vec<f32> = (0..700).map(|i| i as f32 * 0.01).collect();
        logits[at] = value;
        logits
    };
    let mut rows: Vec<Row> = [f32::NAN, -f32::NAN, f32::INFINITY].map(|v| row(with(699, v), Request::GREEDY)).into();
    rows.push(row(vec![f32::NEG_INFINITY; 700], Request::GREEDY));
    let request = Request { top: 2, seed: 3, ..Request::GREEDY.with_temperature(1.0).with_top_p(0.9) };
    for (at, value) in [(3, f32::NEG_INFINITY), (5, f32::MAX), (7, f32::MIN), (699, 1e-40)] {
        // Rows that cannot be sampled write no likeliest tokens, but these rows do.
        rows.push(row(with(at, value), request));
    }
    let mut few = vec![f32::NEG_INFINITY; 700];
    (few[3], few[698]) = (1.0, 0.5);
    rows.push(row(few, Request { top_k: 5, ..request.with_top_p(1.0) }));
    check("extreme logits", &rows, 0);
}

#[test]
fn a_row_is_read_no_more_often_than_documented() {
    let vocab = 8192;
    let sampled = Request { seed: 1, ..Request::GREEDY.with_temperature(1.0) };
    let filtered = Request { top_k: 40, ..sampled.with_top_p(0.9) };
    for (request, passes) in [(Request::GREEDY, 2), (sampled, 3), (filtered, 7)] {
        let case = case("one row", vec![row(bell(&mut ProblemRng(4), vocab), request)]);
        let mut gpu = Gpu::new("sm_90a");
        let report = gpu.run(&case);
        if !gpu.is_emulator() {
            continue;
        }
        assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
        assert!(report.distinct_sectors * 32 <= case.floor.bytes + 5 * 32);
        // Each warp also reads the request field by field, and the chosen token's logit.
        let most = passes * case.floor.bytes + 384 * u64::from(THREADS / 32);
        assert!(report.total.sectors * 32 <= most, "{request:?}: {} of {most}", report.total.sectors * 32);
        if request.top_k == 0 {
            assert_eq!(report.total.bank_conflicts(), 0, "only the sort has any");
        }
    }
}

#[test]
fn a_missing_barrier_is_noticed() {
    // Logprobs. Penalties, top-k and top-p. All of these together. Masks alone, with penalties, and before the
    // likeliest tokens.
    let rows: Vec<Row> = every_kind(600, 8)
        .into_iter()
        .enumerate()
        .filter(|(i, _)| [1, 6, 12, 13, 14, 17, 22].contains(i))
        .map(|r| r.1)
        .collect();
    let case = case("mutants", rows);
    let mutants = without_each(TARGETS[1].1, "sample", &["bar.sync", "barrier.sync"]);
    assert!(mutants.len() >= 20, "{}", mutants.len());
    let missed = mutants.into_iter().filter(|mutant| !Gpu::notices(&mutant.ptx, &case));
    let missed: Vec<String> = missed.map(|mutant| mutant.removed).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}
