//! Outputs that cannot run together run in parts, with the same tokens as when they run together.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use engine::Error;
use engine::RequestId;
use engine::tools::batch::Batch;
use engine::tools::engine::{Engine, EngineConfig, Finished};
use engine::tools::runner::{Computed, Runner};
use engine::tools::sampling::{Beam, EarlyStopping, SampleRow, Sampled, SamplingParams};
use engine::tools::scheduler::{Preemption, SchedulerOptions};
use engine::tools::sequence::{FinishReason, Output};
use oracle::{Fails, VOCAB, config, engine, scheduler_options};

const WAYS: [Preemption; 3] = [Preemption::Auto, Preemption::Swap, Preemption::Recompute];

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + (i * i + i / 3) % (VOCAB - 1)).collect()
}

fn sampled(n: usize, best_of: usize, max_tokens: usize) -> SamplingParams {
    SamplingParams { n, best_of, max_tokens, temperature: 1.0, seed: Some(11), ignore_eos: true, ..Default::default() }
}

/// The tokens reported for each output of a request.
type Reported = BTreeMap<(RequestId, usize), Vec<u32>>;

/// Runs all requests to their end. Returns them with the tokens reported on the way.
fn run(engine: &mut Engine) -> (BTreeMap<RequestId, Finished>, Reported) {
    let (mut done, mut reported) = (BTreeMap::new(), Reported::new());
    while engine.has_work() {
        let step = engine.step().unwrap();
        assert_eq!(engine.scheduler().check_integrity(), Ok(()));
        for new in step.tokens {
            reported.entry((new.request, new.index)).or_default().push(new.token);
        }
        done.extend(step.finished.into_iter().map(|f| (f.id, f)));
    }
    assert_eq!(engine.scheduler().usage().used_blocks, 0);
    assert_eq!(engine.scheduler().swap_usage().used_blocks, 0);
    (done, reported)
}

fn alone(prompt: Vec<u32>, params: SamplingParams) -> Vec<Output> {
    let mut roomy = engine(config(4000, 4));
    roomy.add(prompt, params).unwrap();
    run(&mut roomy).0.remove(&0).unwrap().outputs
}

/// A model whose tokens depend only on the row's seed and length, so that thousands of tokens take no time.
struct Quick;

impl Runner for Quick {
    fn run(&mut self, _: Batch, rows: &[SampleRow<'_>]) -> engine::Result<Computed> {
        let token = |row: &SampleRow<'_>| {
            let mixed = (row.seed ^ row.output.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            Sampled { token: (mixed >> 54) as u32, logprob: -1.0 / (1 + mixed % 100) as f32, top: Vec::new() }
        };
        Ok(rows.iter().map(token).collect())
    }
}

#[test]
fn outputs_that_do_not_fit_together_reach_their_full_length() {
    let quick = |num_blocks| EngineConfig { num_blocks, vocab_size: 1024, ..config(0, 16) };
    let params = || sampled(256, 256, 200);
    let mut roomy = Engine::new(quick(10_000), Box::new(Quick));
    roomy.add(prompt(20), params()).unwrap();
    let want = run(&mut roomy).0.remove(&0).unwrap().outputs;
    assert_eq!(roomy.stats().preemptions, 0);
    for preemption in WAYS {
        for prefix_caching in [false, true] {
            // Each output needs 14 blocks at its end. All 256 together exhaust the blocks after 13 tokens.
            let config = EngineConfig {
                swap_blocks: 100,
                scheduler: SchedulerOptions { preemption, prefix_caching, ..quick(300).scheduler },
                ..quick(300)
            };
            let mut tight = Engine::new(config, Box::new(Quick));
            tight.add(prompt(20), params()).unwrap();
            let (mut done, reported) = run(&mut tight);
            let outputs = done.remove(&0).unwrap().outputs;
            assert!(outputs.iter().all(|o| o.tokens.len() == 200 && o.finish_reason == FinishReason::Length));
            assert_eq!(outputs, want);
            assert!(outputs.iter().all(|o| reported[&(0, o.index)] == o.tokens));
            assert_eq!((tight.stats().exhausted, reported.len()), (0, 256));
            assert!(tight.stats().preemptions > 2);
        }
    }
}

#[test]
fn outputs_in_parts_are_the_same_and_the_best_are_returned() {
    for params in [sampled(24, 24, 30), sampled(3, 24, 30), SamplingParams { ignore_eos: false, ..sampled(5, 24, 30) }]
    {
        let want = alone(prompt(10), params.clone());
        assert_eq!(want.len(), params.n);
        for preemption in WAYS {
            for (prefix_caching, swap_blocks) in [(false, 100), (true, 100), (true, 7)] {
                let config = EngineConfig {
                    swap_blocks,
                    scheduler: SchedulerOptions { preemption, prefix_caching, ..scheduler_options() },
                    ..config(31, 4)
                };
                let mut tight = engine(config);
                tight.add(prompt(10), params.clone()).unwrap();
                assert_eq!(run(&mut tight).0[&0].outputs, want, "{preemption:?}, caching {prefix_caching}");
                assert!(tight.stats().preemptions > 0);
            }
        }
    }
}

#[test]
fn only_a_single_sequence_that_outgrows_the_pool_ends_early() {
    let mut tight = engine(config(8, 4));
    tight.add(prompt(10), sampled(3, 3, 90)).unwrap();
    let outputs = run(&mut tight).0.remove(&0).unwrap().outputs;
    // The prompt takes ten of 32 slots, and the last token needs no slot.
    assert!(outputs.iter().all(|o| o.tokens.len() == 23 && o.finish_reason == FinishReason::Length));
    assert_eq!(tight.stats().exhausted, 3);
    assert_eq!(tight.context_len(&prompt(10), &sampled(1, 1, 1)), 10 + 23);
    for (got, full) in outputs.iter().zip(alone(prompt(10), sampled(3, 3, 90))) {
        assert_eq!(got.tokens, full.tokens[..23]);
    }
}

#[test]
fn outputs_in_any_part_can_be_stopped_and_cancelled() {
    let want = alone(prompt(10), sampled(24, 24, 30));
    for preemption in WAYS {
        let mut tight =
            engine(EngineConfig { scheduler: SchedulerOptions { preemption, ..scheduler_options() }, ..config(31, 4) });
        let id = tight.add(prompt(10), sampled(24, 24, 30)).unwrap();
        let other = tight.add(prompt(12), sampled(2, 2, 30)).unwrap();
        // Run until the request is divided and at least two parts wait.
        while tight.scheduler().waiting().filter(|group| group.id == id).count() < 2 {
            tight.step().unwrap();
        }
        let indices = |groups: &mut dyn Iterator<Item = &engine::tools::group::SequenceGroup>| {
            groups.filter(|g| g.id == id).flat_map(|g| &g.running).map(|s| s.index).collect::<Vec<_>>()
        };
        let (running, waiting) =
            (indices(&mut tight.scheduler().running().iter()), indices(&mut tight.scheduler().waiting()));
        assert_eq!((tight.scheduler().num_running(), tight.scheduler().num_waiting()), (1, 1));
        for index in [running[0], waiting[0]] {
            tight.stop_output(id, index);
            assert_eq!(tight.scheduler().check_integrity(), Ok(()));
        }
        let (done, _) = run(&mut tight);
        for (got, full) in done[&id].outputs.iter().zip(&want) {
            let stopped = [running[0], waiting[0]].contains(&got.index);
            assert_eq!(stopped, got.finish_reason == FinishReason::Stop);
            assert!(if stopped { full.tokens.starts_with(&got.tokens) } else { got == full });
        }
        assert!(done[&other].outputs == alone(prompt(12), sampled(2, 2, 30)));
    }
    let mut tight = engine(config(31, 4));
    let id = tight.add(prompt(10), sampled(24, 24, 30)).unwrap();
    while tight.scheduler().waiting().count() < 2 {
        tight.step().unwrap();
    }
    tight.abort(id);
    assert_eq!(tight.scheduler().check_integrity(), Ok(()));
    let done = tight.step().unwrap().finished;
    assert!(done.len() == 1 && done[0].outputs.len() == 24, "one answer for all parts");
    assert!(done[0].outputs.iter().all(|o| o.finish_reason == FinishReason::Abort && !o.tokens.is_empty()));
    assert!(!tight.has_work());
    assert_eq!(tight.scheduler().usage().used_blocks, 0);
}

#[test]
fn a_prompt_in_parts_is_scored_once_and_before_its_outputs() {
    let params = SamplingParams { prompt_logprobs: Some(2), logprobs: Some(1), ..sampled(12, 12, 20) };
    let mut roomy = engine(config(1000, 4));
    roomy.add(prompt(30), params.clone()).unwrap();
    let want = run(&mut roomy).0.remove(&0).unwrap();
    for preemption in WAYS {
        let mut tight = engine(EngineConfig {
            scheduler: SchedulerOptions { max_num_seqs: 12, max_request_share: 0.3, preemption, ..scheduler_options() },
            ..config(30, 4)
        });
        let id = tight.add(prompt(30), params.clone()).unwrap();
        for _ in 0..3 {
            tight.add(prompt(8), sampled(1, 1, 20)).unwrap();
        }
        let (mut scored, mut reported, mut done) = (0, 0, None);
        while tight.has_work() {
            let step = tight.step().unwrap();
            assert_eq!(tight.scheduler().check_integrity(), Ok(()));
            scored += step.prompts.len();
            reported += step.tokens.iter().filter(|new| new.request == id).count();
            assert!(reported == 0 || scored == 1);
            done = step.finished.into_iter().find(|f| f.id == id).or(done);
        }
        let done = done.unwrap();
        assert_eq!((done.outputs, done.prompt_logprobs), (want.outputs.clone(), want.prompt_logprobs.clone()));
    }
}

#[test]
fn beams_that_might_not_fit_are_refused_with_numbers() {
    let beams = |width, max_tokens| {
        let beam = Some(Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::Never });
        SamplingParams { n: 1, best_of: 1, max_tokens, ignore_eos: true, beam, ..Default::default() }
    };
    // The prompt's two full blocks are shared. Each beam's other tokens, except the last, take five blocks.
    let mut tight = engine(config(2 + 4 * 5, 4));
    for (width, max_tokens, needed) in [(5, 19, 27), (4, 20, 26)] {
        let Err(Error::Request(refusal)) = tight.add(prompt(10), beams(width, max_tokens)) else {
            panic!("not refused")
        };
        let why = refusal.why;
        let numbers = [width, max_tokens, 10, needed, 22];
        assert!(numbers.iter().all(|n| why.split([' ', ',']).any(|word| word == n.to_string())), "{why}");
    }
    tight.add(prompt(10), beams(4, 19)).unwrap();
    let outputs = run(&mut tight).0.remove(&0).unwrap().outputs;
    assert_eq!((outputs[0].tokens.len(), tight.stats().exhausted), (19, 0));
    // Blocks of a pinned prefix do not count.
    tight.pin_prefix(prompt(8)).unwrap();
    tight.add(prompt(10), beams(4, 19)).unwrap();
    assert!(tight.add([vec![5], prompt(9)].concat(), beams(4, 19)).is_err());
}

#[test]
fn a_failed_step_drops_all_parts_of_running_requests_only() {
    for preemption in WAYS {
        let config = EngineConfig {
            scheduler: SchedulerOptions { max_request_share: 0.5, preemption, ..scheduler_options() },
            ..config(31, 4)
        };
        let now = Arc::new(AtomicBool::new(false));
        let mut engine = Engine::new(config.clone(), Fails::when(now.clone(), &config));
        let divided = engine.add(prompt(10), sampled(24, 24, 30)).unwrap();
        let others: Vec<_> = (0..4).map(|_| engine.add(prompt(12), sampled(3, 3, 30)).unwrap()).collect();
        let is_divided = |engine: &Engine| {
            let is_part = |group: &&engine::tools::group::SequenceGroup| group.id == divided;
            engine.scheduler().running().iter().filter(is_part).count() > 0
                && engine.scheduler().waiting().filter(is_part).count() > 1
        };
        let mut early = BTreeSet::new();
        while !is_divided(&engine) {
            early.extend(engine.step().unwrap().finished.into_iter().map(|f| f.id));
        }
        let running: BTreeSet<_> = engine.scheduler().running().iter().map(|g| g.id).collect();
        let untouched: BTreeSet<_> = engine.scheduler().untouched().iter().map(|g| g.id).collect();
        assert!(running.contains(&divided) && untouched.is_disjoint(&running));
        now.store(true, Relaxed);
        assert!(engine.step().is_err());
        assert_eq!(engine.scheduler().check_integrity(), Ok(()));
        assert!(running.iter().all(|id| !engine.scheduler().contains(*id)));
        let left: Vec<_> = others.into_iter().filter(|id| engine.scheduler().contains(*id)).collect();
        assert!(!left.is_empty() && left.iter().all(|id| !early.contains(id)));
        let (done, _) = run(&mut engine);
        assert_eq!(done.keys().copied().collect::<Vec<_>>(), left);
        assert!(done.values().all(|f| f.outputs == alone(prompt(12), sampled(3, 3, 30))));
    }
}
