//! Stop tokens that a request names, and `min_tokens`, before which no token ends an output.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use engine::Error;
use engine::SchedulerOptions;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::tools::sequence::{FinishReason, Output};
use oracle::{EOS, Oracle, VOCAB, config, finish, scheduler_options};

fn engine(num_blocks: usize) -> Engine {
    let config = EngineConfig {
        max_len: 100,
        scheduler: SchedulerOptions { prefix_caching: false, ..scheduler_options() },
        ..config(num_blocks, 4)
    };
    oracle::engine(config)
}

fn prompt(id: u32) -> Vec<u32> {
    vec![1 + id % (VOCAB - 1), 3, 1 + id / (VOCAB - 1)]
}

fn outputs(id: u32, params: &SamplingParams) -> Vec<Output> {
    let mut engine = engine(100);
    engine.add(prompt(id), params.clone()).unwrap();
    finish(&mut engine).remove(0).outputs
}

/// Parameters for greedy decoding and several kinds of sampling.
fn ways(max_tokens: usize) -> Vec<SamplingParams> {
    let greedy = SamplingParams { max_tokens, ..SamplingParams::default() };
    let sampled = SamplingParams { n: 4, best_of: 4, temperature: 1.5, seed: Some(7), ..greedy.clone() };
    vec![
        SamplingParams { top_k: 3, top_p: 0.9, min_p: 0.05, ..sampled.clone() },
        SamplingParams { repetition_penalty: 1.3, logit_bias: vec![(EOS, 50.0), (5, 1.0)], ..sampled.clone() },
        SamplingParams { logit_bias: vec![(EOS, 100.0)], ..greedy.clone() },
        sampled,
        greedy,
    ]
}

#[test]
fn no_output_ends_before_min_tokens() {
    let mut early = 0;
    for params in ways(30) {
        for id in 0..20 {
            let free = outputs(id, &params);
            let bound = outputs(id, &SamplingParams { min_tokens: 12, ..params.clone() });
            for (free, bound) in free.iter().zip(bound) {
                assert!(bound.tokens.len() >= 12, "{params:?} {bound:?}");
                assert!(!bound.tokens[..12].contains(&EOS), "{params:?} {bound:?}");
                // With greedy decoding, the output is unchanged up to the first suppressed end. With sampling, the
                // draws are among other tokens.
                if params.temperature == 0.0 {
                    let same = free.tokens.iter().take(12).take_while(|&&token| token != EOS).count();
                    assert_eq!(bound.tokens[..same], free.tokens[..same]);
                    assert!(same < 12 || *free == bound);
                }
                early += usize::from(free.tokens.len() <= 12);
            }
        }
    }
    assert!(early > 50, "only {early} outputs would have ended early");
}

#[test]
fn an_output_may_end_right_after_min_tokens() {
    let biased = SamplingParams { max_tokens: 30, logit_bias: vec![(EOS, 1000.0)], ..SamplingParams::default() };
    for (min_tokens, max_tokens) in [(0, 1), (1, 2), (7, 8), (29, 30), (30, 30)] {
        let output = outputs(3, &SamplingParams { min_tokens, ..biased.clone() }).remove(0);
        assert_eq!(output.tokens.len(), max_tokens);
        let reason = if min_tokens == 30 { FinishReason::Length } else { FinishReason::Stop };
        assert_eq!((output.finish_reason, output.tokens.last() == Some(&EOS)), (reason, min_tokens < 30));
    }
}

#[test]
fn tokens_that_a_request_names_end_its_outputs() {
    for params in ways(40) {
        let params = SamplingParams { ignore_eos: true, ..params };
        for id in 0..5 {
            let free = outputs(id, &params);
            for (stop_token_ids, min_tokens) in [(vec![4], 0), (vec![9, 2], 0), (vec![9, 2], 6)] {
                let stopping = SamplingParams { stop_token_ids: stop_token_ids.clone(), min_tokens, ..params.clone() };
                for (free, stopped) in free.iter().zip(outputs(id, &stopping)) {
                    let stops = |token: &&u32| stop_token_ids.contains(token);
                    assert!(!stopped.tokens[..min_tokens].iter().any(|token| stops(&token)));
                    let ends = stopped.tokens.iter().skip(min_tokens).position(|token| stops(&token));
                    let len = stopped.tokens.len();
                    match ends {
                        Some(at) => assert_eq!((at + min_tokens + 1, stopped.finish_reason), (len, FinishReason::Stop)),
                        None => assert_eq!((len, stopped.finish_reason), (40, FinishReason::Length)),
                    }
                    if min_tokens == 0 {
                        assert_eq!(stopped.tokens, free.tokens[..len]);
                    }
                }
            }
        }
    }
}

#[test]
fn an_ignored_end_is_not_chosen_before_min_tokens() {
    let params = SamplingParams {
        max_tokens: 20,
        min_tokens: 9,
        ignore_eos: true,
        logit_bias: vec![(EOS, 1000.0)],
        ..SamplingParams::default()
    };
    let tokens = outputs(1, &params).remove(0).tokens;
    assert_eq!(tokens.iter().position(|&token| token == EOS), Some(9));
    assert_eq!(tokens.len(), 20);
}

/// In pools too small for all requests, with either kind of preemption, each request gets the same outputs as alone.
#[test]
fn preemption_does_not_change_where_outputs_end() {
    for swap in [false, true] {
        let config = EngineConfig {
            max_len: 60,
            swap_blocks: if swap { 40 } else { 0 },
            scheduler: SchedulerOptions { prefix_caching: false, ..scheduler_options() },
            ..config(24, 4)
        };
        let oracle = Oracle::new(&config);
        let mut engine = Engine::new(config, oracle);
        let stopping = |params: SamplingParams| SamplingParams { min_tokens: 15, stop_token_ids: vec![4, 9], ..params };
        let requests: Vec<_> = (0..20).flat_map(|id| ways(30).into_iter().map(move |p| (id, stopping(p)))).collect();
        for (id, params) in &requests {
            engine.add(prompt(*id), params.clone()).unwrap();
        }
        let done = finish(&mut engine);
        let stats = engine.stats();
        assert!(stats.preemptions > 0 && (stats.swapped_in_blocks > 0) == swap, "{stats:?}");
        for (done, (id, params)) in done.iter().zip(&requests) {
            assert_eq!(done.outputs, outputs(*id, params), "{id} {params:?}");
        }
    }
}

#[test]
fn invalid_fields_are_refused_by_name() {
    let beam = Some(Beam { width: 2, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    let d = SamplingParams::default;
    for (field, params) in [
        ("min_tokens", SamplingParams { min_tokens: 9, max_tokens: 8, ..d() }),
        ("min_tokens", SamplingParams { min_tokens: 1, beam, ..d() }),
        ("stop_token_ids", SamplingParams { stop_token_ids: vec![3], beam, ..d() }),
        ("stop_token_ids", SamplingParams { stop_token_ids: vec![3, VOCAB], ..d() }),
        ("temperature", SamplingParams { temperature: f32::MAX, ..d() }),
    ] {
        match engine(100).add(prompt(1), params) {
            Err(Error::Request(refusal)) => assert_eq!(refusal.field, Some(field), "{refusal}"),
            other => panic!("{field}: {other:?} is not a refusal"),
        }
    }
}
