//! Outputs of requests: their number, length, order and scores.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use std::collections::BTreeSet;

use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::tools::sequence::{FinishReason, Output};
use oracle::{EOS, Oracle, VOCAB, config, logits};

const PROMPT: [u32; 3] = [3, 1, 4];

fn outputs(params: SamplingParams, num_blocks: usize) -> Vec<Output> {
    let config = config(num_blocks, 4);
    let oracle = Oracle::new(&config);
    let mut engine = Engine::new(EngineConfig { max_len: 100, ..config }, oracle);
    engine.add(PROMPT.to_vec(), params).unwrap();
    loop {
        if let Some(done) = engine.step().unwrap().finished.pop() {
            return done.outputs;
        }
    }
}

fn beams(width: usize, length_penalty: f32, max_tokens: usize) -> SamplingParams {
    let beam = Some(Beam { width, length_penalty, early_stopping: EarlyStopping::No });
    SamplingParams { n: width, best_of: width, max_tokens, beam, logprobs: Some(1), ..Default::default() }
}

fn logprob(output: &[u32], token: u32) -> f64 {
    let logits = logits(&[&PROMPT[..], output].concat());
    let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    f64::from(logits[token as usize]) - sum.ln()
}

#[test]
fn the_best_of_several_samples_are_returned() {
    let all =
        SamplingParams { n: 8, best_of: 8, max_tokens: 20, temperature: 1.0, seed: Some(5), ..Default::default() };
    let best = SamplingParams { n: 3, ..all.clone() };
    let mut all = outputs(all, 100);
    assert!(all.iter().all(|o| all.iter().filter(|other| other.tokens == o.tokens).count() == 1), "all differ");
    let mean = |o: &Output| o.cumulative_logprob / o.tokens.len() as f64;
    all.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    assert_eq!(outputs(best, 100), all[..3]);
}

#[test]
fn a_beam_for_every_token_finds_the_best_pairs() {
    let mut pairs: Vec<(f64, [u32; 2])> = (0..VOCAB * VOCAB)
        .map(|i| [i / VOCAB, i % VOCAB])
        .map(|[a, b]| (logprob(&[], a) + logprob(&[a], b), [a, b]))
        .collect();
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let found = outputs(SamplingParams { ignore_eos: true, ..beams(VOCAB as usize, 2.0, 2) }, 100);
    assert_eq!(found.len(), VOCAB as usize);
    for (output, (sum, pair)) in found.iter().zip(pairs) {
        assert_eq!(output.tokens, pair);
        assert!((output.cumulative_logprob - sum).abs() < 1e-5);
        assert!((output.score.unwrap() - sum / 4.0).abs() < 1e-5);
    }
}

#[test]
fn beams_are_scored_by_their_length_and_sorted() {
    let mut lengths = BTreeSet::new();
    for length_penalty in [-1.0, 0.0, 1.0, 2.0] {
        let found = outputs(beams(4, length_penalty, 8), 100);
        lengths.extend(found.iter().map(|o| o.tokens.len()));
        for o in &found {
            let sum: f64 = (0..o.tokens.len()).map(|i| logprob(&o.tokens[..i], o.tokens[i])).sum();
            assert!((o.cumulative_logprob - sum).abs() < 1e-5);
            let score = sum / (o.tokens.len() as f64).powf(f64::from(length_penalty));
            assert!((o.score.unwrap() - score).abs() < 1e-5);
            let last =
                if o.finish_reason == FinishReason::Stop { o.tokens.last() == Some(&EOS) } else { o.tokens.len() == 8 };
            assert!(last && o.tokens.len() <= 8, "{o:?}");
        }
        assert!(found.is_sorted_by(|a, b| a.score >= b.score));
    }
    assert!(lengths.len() > 1, "{lengths:?}");
}

#[test]
fn beams_that_fit_the_pool_are_returned_best_first() {
    let found = outputs(SamplingParams { ignore_eos: true, ..beams(4, 1.0, 10) }, 12);
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|o| o.finish_reason == FinishReason::Length && o.tokens.len() == 10));
    assert!(found.iter().all(|o| o.score == Some(o.cumulative_logprob / o.tokens.len() as f64)));
    assert!(found.is_sorted_by(|a, b| a.score >= b.score));
}
