//! The public sampler: what its noise and its penalties depend on.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::collections::BTreeSet;

use engine::tools::sampling::{SampleRow, SamplingParams, sample_row};

fn sample(logits: &[f32], params: &SamplingParams, seed: u64, prompt: &[u32], output: &[u32]) -> usize {
    let row = SampleRow { prompt, output, ..SampleRow::new(params, seed) };
    sample_row(logits, &row, &mut Vec::new()).unwrap().token as usize
}

#[test]
fn equally_likely_tokens_come_equally_often() {
    let params = SamplingParams { temperature: 1.0, ..Default::default() };
    let mut count = [0; 12];
    for seed in 0..12_000 {
        count[sample(&[0.5; 12], &params, seed, &[], &[])] += 1;
    }
    // A thousand each, with a standard deviation of thirty.
    assert!(count.iter().all(|c| (850..1150).contains(c)), "{count:?}");
}

#[test]
fn each_position_has_its_own_noise() {
    let params = SamplingParams { temperature: 1.0, ..Default::default() };
    let at = |len| sample(&[0.5; 100], &params, 1, &[], &vec![0; len]);
    assert!((0..20).map(at).collect::<BTreeSet<_>>().len() > 10);
}

#[test]
fn a_repetition_penalty_weakens_whatever_the_sign() {
    let params = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
    for logits in [[1.5, 1.0], [-1.0, -1.5]] {
        assert_eq!(sample(&logits, &params, 0, &[], &[]), 0);
        assert_eq!(sample(&logits, &params, 0, &[0], &[]), 1);
        assert_eq!(sample(&logits, &params, 0, &[], &[0]), 1);
    }
}
