//! The GPU's sampling kernel compared with the engine's sampler. The same logits give the same tokens and logprobs, to
//! the last bit, for any request.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::sync::Arc;

use engine::tools::sampling::{Beam, EarlyStopping, SampleRow, SamplingParams, sample_row};
use kernels::sampling::Request;
use launch::{Driver, Ptx};
use workbench::Gpu;
use workbench::cases::sampling::{Row, bell, case};
use workbench::number::ProblemRng;

const PTX: &str = include_str!("../../kernels/prebuilt/sm_90a.ptx");

/// Returns parameters of every kind, and combinations.
fn params() -> Vec<SamplingParams> {
    let base = SamplingParams { temperature: 0.9, ..Default::default() };
    let mut all = vec![
        SamplingParams::default(),
        SamplingParams { logprobs: Some(7), ..Default::default() },
        SamplingParams { repetition_penalty: 1.4, logprobs: Some(1), ..Default::default() },
        SamplingParams { presence_penalty: 1.5, frequency_penalty: -0.5, ..Default::default() },
        base.clone(),
        SamplingParams { temperature: 1e-40, ..base.clone() },
    ];
    for top_k in [0, 1, 30, 5000] {
        for top_p in [1.0, 0.9, 0.3] {
            for min_p in [0.0, 0.05] {
                all.push(SamplingParams { top_k, top_p, min_p, ..base.clone() });
            }
        }
    }
    all.push(SamplingParams { top_k: 40, top_p: 0.95, repetition_penalty: 1.2, frequency_penalty: 0.3, ..base });
    for width in [1, 3, 40] {
        let beam = Some(Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::No });
        all.push(SamplingParams { beam, ..Default::default() });
    }
    all
}

#[test]
fn the_kernel_chooses_like_the_sampler() {
    let mut random = ProblemRng(3);
    let params = params();
    for vocab in [513, 5000] {
        let prompt: Vec<u32> = (0..60).map(|_| random.below(vocab as u64) as u32).collect();
        let output: Vec<u32> = (0..40).map(|_| random.below(vocab as u64 / 4) as u32).collect();
        let row = |(seed, (params, given))| {
            let logits = bell(&mut random, vocab);
            let top = params_top(params);
            // For half of the rows, the likeliest tokens and some others are barred.
            let free = SampleRow { prompt: &prompt, output: &output, top, given, ..SampleRow::new(params, seed) };
            let likeliest = sample_row(&logits, &SampleRow { top: 4, ..free }, &mut Vec::new()).unwrap();
            let barred: Vec<u32> = likeliest.top.iter().map(|top| top.0).chain([likeliest.token, 3]).collect();
            // Every third row has a mask that allows about half of the tokens. Beams have a mask that allows fewer
            // tokens, multiples of 50 times their width.
            let mut mask: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| random.below(1 << 32) as u32).collect();
            let few = params.beam.map_or(1, |beam| 50 * beam.width);
            (0..vocab).filter(|token| token % few != 0).for_each(|token| mask[token / 32] &= !(1 << (token % 32)));
            mask[0] |= 1;
            let mask = ((seed % 3 == 2 || params.beam.is_some()) && given.is_none()).then_some(mask);
            let barred = if seed % 2 == 1 && params.beam.is_none() { &barred[..] } else { &[] };
            let row = SampleRow { barred, mask: mask.as_deref(), ..free };
            let sampled = sample_row(&logits, &row, &mut Vec::new()).unwrap();
            assert!(given.is_some() || !row.barred.contains(&sampled.token));
            assert!(row.allows(sampled.token as usize));
            let rows = Row { request: row.request(), adjustments: row.adjustments(), logits, mask: mask.clone() };
            (rows, (sampled.token, sampled.logprob.to_bits(), bits(&sampled.top)))
        };
        let given = [0, 17, vocab as u32 - 1];
        let chosen = params.iter().map(|params| (params, None));
        let all: Vec<_> = chosen.chain(params.iter().zip(given.map(Some))).collect();
        let (rows, want): (Vec<Row>, Vec<_>) = (0..).zip(all.iter().copied()).map(row).unzip();
        let tokens = want.iter().map(|want| want.0);
        assert!(tokens.skip(params.len()).eq(given), "a given token must be the reported one");
        // The case compares the kernel with its own plain reference, which in turn equals the sampler's choice.
        for ((row, want), (params, given)) in rows.iter().zip(want).zip(&all) {
            assert_eq!(row.reference(), Some(want), "{params:?}, given {given:?}");
        }
        let mut gpu = Gpu::new(Driver::emulator().unwrap(), (9, 0), Arc::new(Ptx::new(PTX).unwrap())).unwrap();
        let case = case("the engine's requests", rows);
        let prepared = (case.prepare)(&mut gpu).unwrap();
        (prepared.launch)(&mut gpu).unwrap();
        assert_eq!((prepared.error)(&gpu).unwrap(), 0.0);
    }
}

fn params_top(params: &SamplingParams) -> usize {
    params.logprobs.unwrap_or(0).max(params.beam.map_or(0, |beam| beam.num_candidates(1)))
}

fn bits(top: &[(u32, f32)]) -> Vec<(u32, u32)> {
    top.iter().map(|&(token, logprob)| (token, logprob.to_bits())).collect()
}

#[test]
fn the_engines_largest_request_is_accepted_and_larger_ones_refused() {
    let params = SamplingParams { logprobs: Some(engine::tools::sampling::MAX_LOGPROBS), ..Default::default() };
    let row = SampleRow { top: params_top(&params), ..SampleRow::new(&params, 0) };
    assert_eq!(row.request().check(50_272), Ok(()));
    assert!(Request { top: 10_000, ..row.request() }.check(50_272).is_err(), "more tokens than can be sorted");
}
