//! Prompt logprobs are computed in chunks that fit the available rows of logits, and never for tokens that were not
//! computed.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use engine::FinishReason;
use engine::SchedulerOptions;
use engine::tools::engine::{Engine, EngineConfig, Finished};
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use oracle::{VOCAB, config, engine, logits, scheduler_options};

/// Runs all requests to their end. Returns the finished requests and the number of tokens that each step computed.
fn run(engine: &mut Engine) -> (Vec<Finished>, Vec<usize>) {
    let (mut finished, mut computed) = (Vec::new(), Vec::new());
    while engine.has_work() {
        let before = engine.stats().computed_tokens;
        finished.extend(engine.step().unwrap().finished);
        computed.push(engine.stats().computed_tokens - before);
    }
    (finished, computed)
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| 1 + i * i % (VOCAB - 1)).collect()
}

fn scored(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, ignore_eos: true, prompt_logprobs: Some(2), ..Default::default() }
}

/// Checks the entries against the oracle's logits.
fn assert_scored(prompt: &[u32], done: &Finished) {
    let entries = done.prompt_logprobs.as_ref().unwrap();
    assert_eq!((entries.len(), &entries[0]), (prompt.len(), &None));
    for (i, entry) in entries.iter().enumerate().skip(1) {
        let entry = entry.as_ref().unwrap();
        let logits = logits(&prompt[..i]);
        let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        let logprob = |token: u32| f64::from(logits[token as usize]) - sum.ln();
        let greatest = (0..VOCAB).map(logprob).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!((entry.token, entry.top.len()), (prompt[i], 2));
        assert!((f64::from(entry.logprob) - logprob(prompt[i])).abs() < 1e-5);
        assert!((f64::from(entry.top[0].1) - greatest).abs() < 1e-5);
    }
}

#[test]
fn chunks_use_the_spare_rows_of_logits() {
    let mut engine = engine(EngineConfig {
        scheduler: SchedulerOptions { max_num_seqs: 8, ..scheduler_options() },
        ..config(100, 4)
    });
    engine.add(prompt(3), SamplingParams { ignore_eos: true, n: 2, best_of: 2, ..scored(10) }).unwrap();
    assert!(engine.step().unwrap().finished.is_empty());
    let long = prompt(20);
    let id = engine.add(long.clone(), SamplingParams { n: 3, best_of: 3, ..scored(4) }).unwrap();
    // Two of eight rows belong to the first request and three to this one, which uses one of them already. Three are
    // spare, so a chunk has 1 + 3 rows. The last chunk has 20 - 4 * 4 tokens.
    let sizes: Vec<usize> = (0..5)
        .map(|_| {
            let before = engine.stats().computed_tokens;
            engine.step().unwrap();
            engine.stats().computed_tokens - before - 2
        })
        .collect();
    assert_eq!(sizes, [4; 5]);
    let (finished, _) = run(&mut engine);
    let done = finished.iter().find(|done| done.id == id).unwrap();
    assert_scored(&long, done);
    assert_eq!(done.outputs.iter().map(|o| o.tokens.len()).collect::<Vec<_>>(), [4; 3]);
}

#[test]
fn prompts_share_the_rows_in_order_of_arrival() {
    let mut engine = engine(EngineConfig {
        scheduler: SchedulerOptions { max_num_seqs: 4, ..scheduler_options() },
        ..config(100, 4)
    });
    let prompts = [prompt(9), prompt(6)];
    for prompt in &prompts {
        engine.add(prompt.clone(), scored(0)).unwrap();
    }
    let (finished, computed) = run(&mut engine);
    // The second prompt starts in the same step as the first one's last token.
    assert_eq!(computed, [4, 4, 1 + 3, 3]);
    finished.iter().zip(&prompts).for_each(|(done, prompt)| assert_scored(prompt, done));
}

#[test]
fn scored_prompts_are_computed_despite_cached_blocks() {
    let mut engine = engine(EngineConfig { swap_blocks: 0, ..config(100, 4) });
    engine.pin_prefix(prompt(10)).unwrap();
    let plain = SamplingParams { max_tokens: 1, ..Default::default() };
    let hits = |engine: &mut Engine, params: &SamplingParams| {
        let before = engine.stats().hit_tokens;
        engine.add(prompt(20), params.clone()).unwrap();
        let (finished, _) = run(engine);
        (engine.stats().hit_tokens - before, finished)
    };
    assert_eq!(hits(&mut engine, &plain).0, 10, "from the pinned prefix");
    assert_eq!(hits(&mut engine, &plain).0, 16, "from the cache");
    let (found, finished) = hits(&mut engine, &scored(1));
    assert_eq!(found, 0);
    assert_scored(&prompt(20), &finished[0]);
}

#[test]
fn a_preempted_prompt_is_not_scored_twice() {
    let config = EngineConfig {
        swap_blocks: 0,
        scheduler: SchedulerOptions { max_num_seqs: 2, prefix_caching: false, ..scheduler_options() },
        ..config(6, 4)
    };
    let mut engine = engine(config);
    engine.add(prompt(4), SamplingParams { max_tokens: 20, ignore_eos: true, ..Default::default() }).unwrap();
    let scored = engine.add(prompt(12), scored(1)).unwrap();
    let (finished, computed) = run(&mut engine);
    assert_eq!(engine.stats().preemptions, 1);
    // Each step computes one token until the first request needs a fourth block after nine steps. The nine recomputed
    // tokens need no logits, so there are rows for two more tokens.
    assert_eq!(computed[..9], [5, 2, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!(computed[9..computed.len() - 2], [1; 11]);
    assert_eq!(computed[computed.len() - 2..], [9 + 2, 1]);
    assert_scored(&prompt(12), finished.iter().find(|done| done.id == scored).unwrap());
}

#[test]
fn a_scored_request_may_generate_no_token() {
    let mut engine = engine(EngineConfig { max_len: 20, ..config(100, 4) });
    let beam = Some(Beam { width: 4, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    for params in
        [SamplingParams { n: 3, best_of: 5, ..scored(0) }, SamplingParams { n: 3, best_of: 3, beam, ..scored(0) }]
    {
        // A prompt may take all positions if no token is to follow it.
        engine.add(prompt(20), params).unwrap();
        let (finished, _) = run(&mut engine);
        assert_eq!(finished[0].outputs.len(), 3);
        assert!(finished[0].outputs.iter().all(|o| o.tokens.is_empty() && o.finish_reason == FinishReason::Length));
        assert_scored(&prompt(20), &finished[0]);
    }
    assert_eq!(engine.stats().sampled_tokens, 0);
    assert_eq!(engine.scheduler().usage().used_blocks, 0);
    assert!(engine.add(prompt(20), scored(1)).unwrap_err().to_string().contains("positions"));
    assert!(engine.add(prompt(21), scored(0)).unwrap_err().to_string().contains("positions"));
}
