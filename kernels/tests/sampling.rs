//! Sampling on the device under test: the same tokens and logprobs, to the last bit, as plain code that sorts the row.
//!
//! `tests/tests/sampling_kernel.rs` holds it against the engine's own sampler in the same way.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod frame;

use cuda_std::launch::Entry;
use emulator::{Fault, Report};
use frame::gpu::{Gpu, TARGETS};
use frame::mutate::without_each;
use frame::number::Random;
use kernels::arithmetic::{logprob, part, weight};
use kernels::sampling::noise::Noise;
use kernels::sampling::{Adjustment, NO_TOKEN, Penalties, Request, THREADS, floor_bytes, sample};

/// A row of logits and what is asked of it.
#[derive(Clone)]
struct Row {
    logits: Vec<f32>,
    request: Request,
    adjustments: Vec<Adjustment>,
}

/// What a row comes to; nothing if a logit is no number.
#[derive(Clone, Debug, PartialEq)]
struct Choice {
    token: u32,
    logprob: u32,
    top: Vec<(u32, u32)>,
}

/// The index of the greatest, the first among equals.
fn argmax(x: &[f32]) -> usize {
    (0..x.len()).rev().max_by(|&a, &b| x[a].partial_cmp(&x[b]).unwrap()).unwrap()
}

/// All tokens, likeliest first, the lower id first among equals.
fn sorted(x: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
    order
}

impl Row {
    fn greedy(logits: Vec<f32>) -> Row {
        Row { logits, request: Request::GREEDY, adjustments: Vec::new() }
    }

    /// The choice by sorting: top-k, then top-p, then min-p, then the greatest sum of score and noise.
    fn reference(&self) -> Option<Choice> {
        let (x, r) = (&self.logits, &self.request);
        if x.iter().any(|v| v.is_nan() || *v == f32::INFINITY) || x.iter().all(|v| *v == f32::NEG_INFINITY) {
            return None;
        }
        let greatest = x[argmax(x)];
        let sum = x.iter().map(|v| weight(v - greatest)).sum();
        let report = |token: usize| logprob(x[token], greatest, sum);
        let exact: f64 = x.iter().map(|v| f64::from(v - greatest).exp()).sum();
        assert!((f64::from(report(argmax(x))) + exact.ln()).abs() < 1e-6 * (1.0 + exact.ln()));

        let mut adjusted = x.clone();
        for a in &self.adjustments {
            let logit = &mut adjusted[a.token as usize];
            *logit = r.penalties.adjust(*logit, a.count, a.bias);
        }
        let best = argmax(&adjusted);
        let token = if r.inverse_temperature == 0.0 { best } else { self.draw(&adjusted, best) };
        let top = sorted(x).into_iter().take(r.top as usize).map(|t| (t as u32, report(t).to_bits())).collect();
        Some(Choice { token: token as u32, logprob: report(token).to_bits(), top })
    }

    fn draw(&self, adjusted: &[f32], best: usize) -> usize {
        let r = &self.request;
        let scores: Vec<f32> = adjusted.iter().map(|v| (v - adjusted[best]) * r.inverse_temperature).collect();
        let mut kept = sorted(&scores);
        if r.top_k > 0 {
            kept.truncate(r.top_k as usize);
        }
        if r.top_p > 0 {
            let target = part(kept.iter().map(|&t| weight(scores[t])).sum(), r.top_p);
            let mut before = 0;
            kept.retain(|&t| {
                let stays = before < target;
                before += weight(scores[t]);
                stays
            });
        }
        kept.retain(|&t| scores[t] >= r.floor);
        kept.sort_unstable();
        let noise = Noise::new(r.seed, r.position);
        let values: Vec<f32> = kept.iter().map(|&t| scores[t] + noise.gumbel(t as u32)).collect();
        kept[argmax(&values)]
    }
}

/// Samples all rows in one launch.
fn run(gpu: &mut Gpu, rows: &[Row]) -> Result<(Vec<Option<Choice>>, Report), Box<Fault>> {
    let vocab = rows[0].logits.len();
    let stride = vocab.next_multiple_of(4) + 4;
    let mut logits = Vec::new();
    let (mut requests, mut adjustments, mut tops) = (Vec::new(), Vec::new(), 0);
    for row in rows {
        logits.extend(row.logits.iter().copied().chain(std::iter::repeat(f32::NAN)).take(stride));
        let (first_adjustment, count) = (adjustments.len() as u32, row.adjustments.len() as u32);
        let request = Request { first_adjustment, adjustments: count, first_top: tops, ..row.request };
        request.check(vocab as u32).unwrap();
        adjustments.extend(row.adjustments.iter().map(Adjustment::words));
        tops += request.top;
        requests.push(request.words());
    }
    let logits = gpu.upload("logits", &logits);
    let requests = gpu.upload("requests", &requests);
    let adjustments = gpu.upload("adjustments", &adjustments);
    let (tokens, logprobs) =
        (gpu.upload("tokens", &vec![0u32; rows.len()]), gpu.upload("logprobs", &vec![0u32; rows.len()]));
    let (top_tokens, top_logprobs) =
        (gpu.upload("top tokens", &vec![0u32; tops as usize]), gpu.upload("top logprobs", &vec![0u32; tops as usize]));
    let args = (
        logits.mut_ptr(),
        stride as u32,
        vocab as u32,
        requests.ptr(),
        adjustments.mut_ptr(),
        tokens.mut_ptr(),
        logprobs.mut_ptr(),
        top_tokens.mut_ptr(),
        top_logprobs.mut_ptr(),
    );
    let report = gpu.try_launch(Entry::of::<sample>(), (rows.len() as u32, 1, 1), THREADS, 0, args)?;
    let (tokens, logprobs) = (gpu.download(tokens), gpu.download(logprobs));
    let mut tops = gpu.download(top_tokens).into_iter().zip(gpu.download(top_logprobs));
    let choice = |(row, (token, logprob)): (&Row, (u32, u32))| {
        let top = tops.by_ref().take(row.request.top as usize).collect();
        (token != NO_TOKEN).then_some(Choice { token, logprob, top })
    };
    Ok((rows.iter().zip(tokens.into_iter().zip(logprobs)).map(choice).collect(), report))
}

fn check(rows: &[Row], seeds: &[u64]) {
    let want: Vec<_> = rows.iter().map(Row::reference).collect();
    for (target, _) in TARGETS {
        for &seed in seeds {
            let mut gpu = Gpu::new(target);
            gpu.seed(seed);
            let (got, _) = run(&mut gpu, rows).unwrap_or_else(|fault| panic!("{fault}"));
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_eq!(got, want, "row {i}: {:?}", rows[i].request);
            }
        }
    }
}

/// Logits as a model's are: bell-shaped, rounded to 16 bits so that many are equal.
fn logits(random: &mut Random, vocab: usize) -> Vec<f32> {
    let bell = |random: &mut Random| (0..6).map(|_| random.unit()).sum::<f64>() * 3.0;
    (0..vocab).map(|_| half::bf16::from_f64(bell(random)).to_f32()).collect()
}

/// Every kind of request, each on logits of its own.
fn mixed(vocab: usize, seed: u64) -> Vec<Row> {
    let mut random = Random(seed);
    let n = vocab as u32;
    let greedy = Request::GREEDY;
    let warm = |t| Request { seed: seed << 33 | 5, position: 3, ..greedy.with_temperature(t) };
    let hard = Penalties { repetition: 1.3, presence: 0.7, frequency: 0.4 };
    let requests = [
        (greedy, 0),
        (Request { top: 5.min(n), ..greedy }, 0),
        (Request { penalties: hard, top: 1, ..greedy }, 9),
        (warm(0.8), 0),
        (Request { top_k: 20, ..warm(1.5) }, 0),
        (warm(1.0).with_top_p(0.9), 0),
        (Request { top_k: 50, penalties: hard, ..warm(1.2).with_top_p(0.95) }, 40),
        (warm(2.0).with_min_p(0.02), 0),
        (Request { top_k: 1, ..warm(1.0) }, 0),
        (Request { top_k: n + 3, ..warm(3.0).with_top_p(0.999) }, 0),
        (Request { top: (n / 2).min(4096), ..warm(1e-40) }, 0),
        (warm(30.0).with_top_p(1e-30), 1),
        (Request { top_k: 7, top: 16.min(n), ..warm(0.5).with_top_p(0.5).with_min_p(0.3) }, 3),
    ];
    let row = |(request, adjusted): (Request, usize)| {
        let logits = logits(&mut random, vocab);
        // The likeliest tokens, so that it matters.
        let adjusted = sorted(&logits).into_iter().take(adjusted).enumerate();
        let bias = |i: usize| if i % 4 == 3 { 1.5 } else { 0.0 };
        let adjustment = |(i, t): (usize, usize)| (t as u32, i as i32 % 5 - 1, bias(i));
        let adjustments =
            adjusted.map(adjustment).map(|(token, count, bias)| Adjustment { token, count, bias, raw: 0.0 });
        Row { adjustments: adjustments.collect(), logits, request }
    };
    requests.into_iter().map(row).collect()
}

#[test]
fn every_kind_of_request_in_one_launch() {
    for (vocab, seeds) in [(1, &[0][..]), (3, &[0]), (513, &[0, 1]), (2048, &[2]), (9001, &[3])] {
        check(&mixed(vocab, vocab as u64), seeds);
    }
}

#[test]
fn equal_logits_are_told_apart_by_their_ids() {
    let flat = Row::greedy(vec![-2.5; 6001]);
    let mut zeros = flat.clone();
    zeros.logits = (0..6001).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
    let warm = Request::GREEDY.with_temperature(1.0);
    let requests = [
        Request { top_k: 5000, ..warm },
        warm.with_top_p(0.75),
        Request { top_k: 4500, seed: 9, ..warm.with_top_p(0.96) },
        Request { top: 9, ..Request::GREEDY },
    ];
    let rows = [flat, zeros].into_iter().flat_map(|row| requests.map(|request| Row { request, ..row.clone() }));
    check(&rows.collect::<Vec<_>>(), &[1]);
}

#[test]
fn extreme_logits() {
    let with = |at: usize, value: f32| {
        let mut logits: Vec<f32> = (0..700).map(|i| i as f32 * 0.01).collect();
        logits[at] = value;
        logits
    };
    let mut rows: Vec<Row> = [f32::NAN, -f32::NAN, f32::INFINITY].map(|v| Row::greedy(with(699, v))).into();
    rows.push(Row::greedy(vec![f32::NEG_INFINITY; 700]));
    let request = Request { top: 2, seed: 3, ..Request::GREEDY.with_temperature(1.0).with_top_p(0.9) };
    for (at, value) in [(3, f32::NEG_INFINITY), (5, f32::MAX), (7, f32::MIN), (699, 1e-40)] {
        rows.push(Row { request, ..Row::greedy(with(at, value)) });
    }
    let mut few = vec![f32::NEG_INFINITY; 700];
    (few[3], few[698]) = (1.0, 0.5);
    let request = Request { top_k: 5, ..request.with_top_p(1.0) };
    rows.push(Row { request, ..Row::greedy(few) });
    check(&rows, &[0]);
}

#[test]
fn what_is_read_and_no_conflicts() {
    let mut random = Random(4);
    let vocab = 8192;
    let rows = |request: Request| Row { request, ..Row::greedy(logits(&mut Random(random.next()), vocab)) };
    let sampled = Request { seed: 1, ..Request::GREEDY.with_temperature(1.0) };
    let filtered = Request { top_k: 40, ..sampled.with_top_p(0.9) };
    let passes = [(Request::GREEDY, 2), (sampled, 3), (filtered, 7)];
    for ((request, passes), row) in passes.into_iter().zip(passes.map(|(request, _)| request).map(rows)) {
        let (_, report) = run(&mut Gpu::new("sm_90a"), &[row]).unwrap();
        assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
        assert!(report.distinct_sectors * 32 <= floor_bytes(1, vocab as u64) + 5 * 32);
        // The request is read by each warp.
        let most = passes * floor_bytes(1, vocab as u64) + 64 * u64::from(THREADS / 32) + 256;
        assert!(report.total.sectors * 32 <= most, "{request:?}: {} of {most}", report.total.sectors * 32);
        if request.top_k == 0 {
            assert_eq!(report.total.bank_conflicts(), 0, "only sorting has any");
        }
    }
}

#[test]
fn a_missing_barrier_is_noticed() {
    let rows: Vec<Row> =
        mixed(600, 8).into_iter().enumerate().filter(|(i, _)| [1, 6, 12].contains(i)).map(|r| r.1).collect();
    let want: Vec<_> = rows.iter().map(Row::reference).collect();
    let mutants = without_each(TARGETS[1].1, "sample", &["bar.sync", "barrier.sync"]);
    println!("{} barriers", mutants.len());
    let mut missed = Vec::new();
    for mutant in mutants {
        let survives = |seed| {
            let mut gpu = Gpu::with_ptx(&mutant.ptx);
            gpu.seed(seed);
            run(&mut gpu, &rows).is_ok_and(|(got, _)| got == want)
        };
        if (0..4).all(survives) {
            missed.push(mutant.removed);
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
