//! Embeddings: hidden states of prompts, computed in chunks, next to requests that generate, and with prefix hits where
//! possible.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use engine::Pooling;
use engine::SamplingParams;
use engine::SchedulerOptions;
use engine::tools::engine::EngineConfig;
use engine::tools::kv::CacheGroup;
use oracle::{VOCAB, config, contiguous, engine, finish, greedy, hidden, scheduler_options};

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| 1 + i * i % (VOCAB - 1)).collect()
}

fn embedded(pooling: Pooling) -> SamplingParams {
    SamplingParams { max_tokens: 0, pooling: Some(pooling), ..SamplingParams::default() }
}

/// The embedding computed from the oracle's hidden states.
fn expected(prompt: &[u32], pooling: Pooling) -> Vec<f64> {
    let kept = contiguous(prompt, &[CacheGroup::only(None)]).remove(0);
    let pooled = match pooling {
        Pooling::Last => &kept[kept.len() - 1..],
        Pooling::Mean => &kept,
    };
    let states: Vec<Vec<f32>> = pooled.iter().map(|kept| hidden(*kept)).collect();
    let mean = |at: usize| states.iter().map(|s| f64::from(s[at])).sum::<f64>() / states.len() as f64;
    let mean: Vec<f64> = (0..states[0].len()).map(mean).collect();
    let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
    mean.into_iter().map(|x| x / length).collect()
}

fn assert_near(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    assert!(got.iter().zip(want).all(|(got, want)| (f64::from(*got) - want).abs() < 1e-6), "{got:?} {want:?}");
}

#[test]
fn embeddings_are_computed_next_to_generating_requests() {
    for max_batch_tokens in [512, 7] {
        let scheduler = SchedulerOptions { max_num_seqs: 8, max_batch_tokens, ..scheduler_options() };
        let mut engine = engine(EngineConfig { scheduler, ..config(200, 4) });
        let mut want = Vec::new();
        for (len, pooling) in [(1, Pooling::Last), (30, Pooling::Mean), (17, Pooling::Last), (1, Pooling::Mean)] {
            engine.add(prompt(3 + len), greedy(12)).unwrap();
            engine.add(prompt(len), embedded(pooling)).unwrap();
            want.extend([None, Some(expected(&prompt(len), pooling))]);
        }
        for (done, want) in finish(&mut engine).into_iter().zip(want) {
            match want {
                Some(want) => {
                    assert_near(&done.embedding.unwrap(), &want);
                    assert!(done.outputs.len() == 1 && done.outputs[0].tokens.is_empty());
                }
                None => assert!(done.embedding.is_none() && done.outputs[0].tokens.len() == 12),
            }
        }
        assert_eq!(engine.stats().sampled_tokens, 4 * 12, "embeddings sample no tokens");
    }
}

#[test]
fn the_last_token_has_prefix_hits_and_a_mean_has_none() {
    let scheduler = SchedulerOptions { prefix_caching: true, ..scheduler_options() };
    let mut engine = engine(EngineConfig { scheduler, ..config(100, 4) });
    let texts = [prompt(21), [prompt(20), vec![7, 9]].concat()];
    for (text, pooling, hits) in [
        (&texts[0], Pooling::Mean, 0),
        (&texts[0], Pooling::Last, 20),
        (&texts[1], Pooling::Last, 20),
        (&texts[1], Pooling::Mean, 0),
    ] {
        engine.add(text.clone(), embedded(pooling)).unwrap();
        let done = finish(&mut engine).remove(0);
        assert_eq!(done.cached_tokens, hits);
        assert_near(&done.embedding.unwrap(), &expected(text, pooling));
    }
}

#[test]
fn a_request_that_is_cancelled_has_no_embedding() {
    let scheduler = SchedulerOptions { max_batch_tokens: 5, ..scheduler_options() };
    let mut engine = engine(EngineConfig { scheduler, ..config(100, 4) });
    let id = engine.add(prompt(20), embedded(Pooling::Mean)).unwrap();
    engine.step().unwrap();
    engine.abort(id);
    assert_eq!(finish(&mut engine)[0].embedding, None);
}

#[test]
fn a_prompt_may_have_all_positions() {
    let mut engine = engine(EngineConfig { max_len: 20, ..config(100, 4) });
    engine.add(prompt(20), embedded(Pooling::Last)).unwrap();
    assert!(finish(&mut engine)[0].embedding.is_some());
    assert!(engine.add(prompt(21), embedded(Pooling::Last)).unwrap_err().to_string().contains("20 positions"));
}
