//! The engine's memory: sharing, waste, exhaustion and refusals.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use engine::Error;
use engine::FinishReason;
use engine::SchedulerOptions;
use engine::tools::engine::{Engine, EngineConfig, Finished};
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use oracle::{Oracle, VOCAB, config, scheduler_options};

const BLOCK: usize = 16;

fn engine(num_blocks: usize) -> Engine {
    // The requests of these tests share prefixes but are not meant to share blocks because of that.
    let config = EngineConfig {
        scheduler: SchedulerOptions { prefix_caching: false, ..scheduler_options() },
        ..config(num_blocks, BLOCK)
    };
    let oracle = Oracle::new(&config);
    Engine::new(config, oracle)
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + i % (VOCAB - 1)).collect()
}

fn sampled(n: usize, max_tokens: usize) -> SamplingParams {
    SamplingParams {
        n,
        best_of: n,
        max_tokens,
        temperature: 1.0,
        seed: Some(1),
        ignore_eos: true,
        ..Default::default()
    }
}

fn beams(width: usize, max_tokens: usize) -> SamplingParams {
    let beam = Some(Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    SamplingParams { n: width, best_of: width, max_tokens, ignore_eos: true, beam, ..Default::default() }
}

fn finish(engine: &mut Engine) -> Vec<Finished> {
    let mut done = Vec::new();
    while engine.has_work() {
        done.extend(engine.step().unwrap().finished);
    }
    done
}

fn refused(engine: &mut Engine, prompt: Vec<u32>, params: SamplingParams) -> String {
    match engine.add(prompt, params) {
        Err(Error::Request(refusal)) => refusal.why,
        other => panic!("{other:?} is not a refusal"),
    }
}

#[test]
fn eight_outputs_use_the_prompts_blocks_once() {
    let mut engine = engine(100);
    engine.add(prompt(165), sampled(8, 5)).unwrap();
    engine.step().unwrap();
    let used = |e: &Engine| {
        e.scheduler()
            .running()
            .iter()
            .flat_map(|g| &g.running)
            .flat_map(|s| s.table.lane(0).blocks())
            .collect::<std::collections::BTreeSet<_>>()
            .len()
    };
    assert_eq!(used(&engine), 11, "after the prompt: ten full blocks and one with five tokens");
    engine.step().unwrap();
    assert_eq!(
        used(&engine),
        10 + 8,
        "full blocks are shared, and the partial one is copied for all but the last writer"
    );
    assert_eq!(engine.stats().copied_blocks, 7);
    assert_eq!(finish(&mut engine)[0].outputs.len(), 8);
    assert_eq!(engine.stats().copied_blocks, 7, "each copies at most once");
}

#[test]
fn beam_search_saves_blocks() {
    let mut engine = engine(200);
    for _ in 0..4 {
        engine.add(prompt(40), beams(4, 60)).unwrap();
    }
    finish(&mut engine);
    let saved = engine.stats().sharing_saved();
    println!("beam search saved {:.1} % of the blocks", 100.0 * saved);
    assert!(saved > 0.4, "{saved}");
}

#[test]
fn a_full_batch_wastes_little() {
    // Lengths as in ShareGPT: prompts of tens to hundreds of tokens and outputs of hundreds.
    let mut engine = engine(2500);
    for i in 0..100 {
        engine.add(prompt(20 + i * 37 % 280), sampled(1, 100 + i * 53 % 500)).unwrap();
    }
    finish(&mut engine);
    let stats = engine.stats();
    assert_eq!(stats.peak_seqs, 100);
    assert!(stats.peak_utilisation() >= 0.95, "{}", stats.peak_utilisation());
    assert!(stats.utilisation() >= 0.95, "{}", stats.utilisation());
}

#[test]
fn a_request_that_outgrows_the_pool_ends_early() {
    let mut engine = engine(4);
    engine.add(prompt(20), sampled(1, 900)).unwrap();
    engine.add(prompt(20), sampled(2, 900)).unwrap();
    let done = finish(&mut engine);
    // 64 slots hold the prompt and 44 tokens. One more token is generated but not stored in the cache.
    assert_eq!(done[0].outputs[0].tokens.len(), 45);
    assert!(done.iter().flat_map(|d| &d.outputs).all(|o| o.finish_reason == FinishReason::Length));
    assert_eq!(done[1].outputs.iter().map(|o| o.tokens.len()).collect::<Vec<_>>(), [45, 45], "one after the other");
    assert_eq!(engine.stats().exhausted, 3);
    assert_eq!(engine.scheduler().check_integrity(), Ok(()));
}

#[test]
fn outputs_end_at_the_models_last_position() {
    let mut engine = engine(100);
    engine.add(prompt(990), sampled(1, 900)).unwrap();
    assert_eq!(finish(&mut engine)[0].outputs[0].tokens.len(), 10);
}

#[test]
fn requests_that_can_never_run_are_refused() {
    let mut engine = engine(10);
    engine.add(prompt(100), sampled(1, 20)).unwrap();
    assert!(refused(&mut engine, vec![], sampled(1, 5)).contains("no tokens"));
    assert!(refused(&mut engine, prompt(160), sampled(1, 5)).contains("KV cache holds 160"));
    assert!(refused(&mut engine, prompt(1000), sampled(1, 5)).contains("1000 positions"));
    assert!(refused(&mut engine, vec![3, VOCAB], sampled(1, 5)).contains("outside the vocabulary"));
    assert!(refused(&mut engine, prompt(5), sampled(300, 5)).contains("at most 256"));
    assert!(
        refused(&mut engine, prompt(5), SamplingParams { max_tokens: 0, ..Default::default() }).contains("max_tokens")
    );
    assert_eq!(finish(&mut engine)[0].outputs[0].tokens.len(), 20);
}

#[test]
fn the_latest_request_is_preempted_and_no_token_is_lost() {
    let mut engine = engine(20);
    for _ in 0..3 {
        engine.add(prompt(80), sampled(1, 60)).unwrap();
    }
    let done = finish(&mut engine);
    assert!(engine.stats().preemptions > 0);
    assert_eq!(done.iter().map(|d| d.id).collect::<Vec<_>>(), [0, 1, 2], "first come, first served");
    assert_eq!(done[0].outputs[0].tokens, done[2].outputs[0].tokens, "same prompt and seed");
}

#[test]
fn a_cancelled_request_gives_its_blocks_back() {
    let mut engine = engine(20);
    let id = engine.add(prompt(80), sampled(4, 60)).unwrap();
    engine.step().unwrap();
    engine.step().unwrap();
    engine.abort(id);
    assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    assert!(engine.scheduler().running().is_empty());
    let done = finish(&mut engine);
    assert!(done[0].outputs.iter().all(|o| o.finish_reason == FinishReason::Abort && o.tokens.len() == 2));
}

#[test]
fn a_request_cancelled_before_its_first_token_has_all_outputs() {
    let beams = SamplingParams { n: 3, best_of: 3, ..beams(4, 60) };
    let best = SamplingParams { best_of: 5, ..sampled(2, 60) };
    for (params, outputs) in [(sampled(4, 60), 4), (beams, 3), (best, 2)] {
        let mut engine = engine(30);
        let id = engine.add(prompt(80), params).unwrap();
        engine.abort(id);
        engine.abort(id);
        let done = finish(&mut engine);
        assert_eq!(done[0].outputs.len(), outputs);
        assert!(done[0].outputs.iter().all(|o| o.finish_reason == FinishReason::Abort && o.tokens.is_empty()));
        assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    }
}

#[test]
fn a_watermark_stays_free_when_a_request_is_admitted() {
    // The watermark takes one block out of a hundred. The first request uses 60.
    for (blocks, admitted) in [(39, 2), (40, 1)] {
        let mut engine = engine(100);
        engine.add(prompt(950), sampled(1, 8)).unwrap();
        engine.add(prompt(blocks * BLOCK), sampled(1, 8)).unwrap();
        engine.step().unwrap();
        engine.step().unwrap();
        assert_eq!(engine.scheduler().running().len(), admitted, "{blocks} blocks");
        assert_eq!(finish(&mut engine).len(), 2);
    }
}

#[test]
fn a_preempted_request_returns_once_its_unshared_blocks_fit() {
    let mut engine = engine(32);
    engine.add(prompt(160), sampled(1, 30)).unwrap();
    engine.add(prompt(16), sampled(1, 120)).unwrap();
    // Without sharing, its four outputs would take more than all blocks.
    engine.add(prompt(160), sampled(4, 40)).unwrap();
    let order: Vec<u64> = finish(&mut engine).iter().map(|done| done.id).collect();
    assert!(engine.stats().preemptions > 0);
    assert_eq!(order, [0, 2, 1]);
}
