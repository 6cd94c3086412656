//! Prefix caching: prefixes are computed once, found again, evicted when memory is needed, and never wrong.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use engine::Error;
use engine::SamplingParams;
use engine::SchedulerOptions;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::sequence::Output;
use oracle::{VOCAB, config, finish, greedy, scheduler_options};

const BLOCK: usize = 16;

fn engine(num_blocks: usize, prefix_caching: bool) -> Engine {
    let config = EngineConfig {
        scheduler: SchedulerOptions { prefix_caching, max_batch_tokens: 2048, ..scheduler_options() },
        ..config(num_blocks, BLOCK)
    };
    oracle::engine(config)
}

/// Tokens that are different from the first one on for every `start`.
fn tokens(start: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + (start + i * i + i / 7) % (VOCAB - 1)).collect()
}

/// `n` prompts of 341 common tokens and 9 of their own.
fn prompts(n: u32) -> Vec<Vec<u32>> {
    (0..n).map(|i| [tokens(0, 341), vec![1 + i % 11, 1 + i / 11], tokens(i, 7)].concat()).collect()
}

/// The outputs of the prompts without prefix caching.
fn plain_for(prompts: Vec<Vec<u32>>, max_tokens: usize) -> Vec<Vec<Output>> {
    let mut engine = engine(4000, false);
    for prompt in prompts {
        engine.add(prompt, greedy(max_tokens)).unwrap();
    }
    finish(&mut engine).into_iter().map(|f| f.outputs).collect()
}

fn plain(prompts: Vec<Vec<u32>>) -> Vec<Vec<Output>> {
    plain_for(prompts, 5)
}

#[test]
fn a_prefix_common_to_64_requests_is_computed_once() {
    let run = |prefix_caching| {
        let mut engine = engine(4000, prefix_caching);
        for prompt in prompts(64) {
            engine.add(prompt, greedy(5)).unwrap();
        }
        let outputs: Vec<_> = finish(&mut engine).into_iter().map(|f| f.outputs).collect();
        (outputs, engine.stats())
    };
    let ((with, cached), (without, plain)) = (run(true), run(false));
    assert_eq!(with, without);
    let whole_blocks = 341 / BLOCK * BLOCK;
    assert_eq!(plain.computed_tokens, 64 * (350 + 4));
    assert_eq!(
        cached.computed_tokens,
        64 * (350 + 4) - 63 * whole_blocks,
        "only the first request computes the prefix, even in one step"
    );
    assert_eq!((cached.hit_tokens, cached.looked_up_tokens), (63 * whole_blocks, 64 * 350));
    assert_eq!(plain.hit_tokens, 0);
}

#[test]
fn a_pinned_prefix_is_computed_once_and_shared_to_its_last_token() {
    for prefix_caching in [true, false] {
        let mut engine = engine(4000, prefix_caching);
        engine.pin_prefix(tokens(0, 341)).unwrap();
        assert_eq!(engine.stats().computed_tokens, 341);
        for prompt in prompts(64) {
            engine.add(prompt, greedy(5)).unwrap();
        }
        engine.step().unwrap();
        assert_eq!(
            engine.scheduler().usage().shared_blocks,
            341_usize.div_ceil(BLOCK) - 1,
            "all but the last, which is copied"
        );
        let outputs: Vec<_> = finish(&mut engine).into_iter().map(|f| f.outputs).collect();
        assert_eq!(engine.stats().computed_tokens, 341 + 64 * (9 + 4));
        assert_eq!((engine.stats().hit_tokens, engine.stats().copied_blocks), (64 * 341, 64));
        assert_eq!(outputs, plain(prompts(64)));
        assert_eq!(engine.scheduler().usage().used_blocks, 341_usize.div_ceil(BLOCK), "it stays");
    }
}

#[test]
fn a_prompt_that_is_a_pinned_prefix_or_part_of_one_computes_its_last_token() {
    let mut engine = engine(100, false);
    engine.pin_prefix(tokens(0, 40)).unwrap();
    let prompts = [tokens(0, 40), tokens(0, 37), [tokens(0, 21), vec![11, 11, 11]].concat()];
    let mut outputs = Vec::new();
    for (prompt, computed) in prompts.iter().zip([1, 1, 24 - 21]) {
        let before = engine.stats().computed_tokens;
        engine.add(prompt.clone(), greedy(1)).unwrap();
        outputs.push(finish(&mut engine).remove(0).outputs);
        assert_eq!(engine.stats().computed_tokens - before, computed);
    }
    assert_eq!(outputs, plain_for(prompts.to_vec(), 1));
}

#[test]
fn pinned_prefixes_share_blocks_and_must_fit_the_pool() {
    let mut engine = engine(10, true);
    engine.pin_prefix(tokens(0, 50)).unwrap();
    engine.pin_prefix([tokens(0, 40), tokens(9, 20)].concat()).unwrap();
    assert_eq!(engine.scheduler().usage().used_blocks, 4 + 2, "two full blocks are common");
    assert!(matches!(engine.pin_prefix(tokens(7, 80)), Err(Error::Request(_))));
    assert!(matches!(engine.add(tokens(7, 64), greedy(1)), Err(Error::Request(_))), "one block too few");
    engine.add([tokens(0, 50), tokens(3, 45)].concat(), greedy(1)).unwrap();
    engine.add(tokens(7, 63), greedy(1)).unwrap();
    assert!(finish(&mut engine).iter().all(|f| f.outputs[0].tokens.len() == 1));
    assert_eq!(engine.stats().exhausted, 0);
}

#[test]
fn blocks_are_found_after_their_last_reference_is_dropped() {
    let mut engine = engine(100, true);
    let first = engine.add(tokens(0, 100), greedy(30)).unwrap();
    let said = finish(&mut engine).remove(0).outputs.remove(0).tokens;
    assert_eq!(engine.scheduler().usage().used_blocks, 0);
    assert_eq!(engine.scheduler().usage().cached_blocks, 129 / BLOCK, "the prompt, and what was generated after it");
    // The next turn of a chat: the previous conversation and something new.
    let second = engine.add([tokens(0, 100), said, tokens(5, 20)].concat(), greedy(5)).unwrap();
    finish(&mut engine);
    assert_eq!(engine.stats().hit_tokens, 128);
    assert!(first != second);
}

#[test]
fn at_least_one_token_is_computed_for_the_logits() {
    let mut engine = engine(100, true);
    for _ in 0..2 {
        engine.add(tokens(0, 2 * BLOCK), greedy(1)).unwrap();
        finish(&mut engine);
    }
    assert_eq!(engine.stats().hit_tokens, BLOCK, "the second block is full and must not be written again");
}

#[test]
fn blocks_are_evicted_least_recently_used_first_and_from_the_end() {
    // Room for three prompts of three blocks, and no swap space to bring evicted blocks back.
    let mut engine = oracle::engine(EngineConfig { swap_blocks: 0, ..config(9, BLOCK) });
    let mut hits = |start: u32| {
        let before = engine.stats().hit_tokens;
        engine.add(tokens(start, 3 * BLOCK - 1), greedy(1)).unwrap();
        finish(&mut engine);
        (engine.stats().hit_tokens - before) / BLOCK
    };
    assert_eq!([0, 1, 2].map(&mut hits), [0, 0, 0]);
    assert_eq!(hits(0), 2, "now the first is the most recent");
    // Each prompt leaves two full blocks and a partial one. The partial blocks are allocated first, then the oldest
    // full ones.
    assert_eq!([3, 4, 5].map(&mut hits), [0, 0, 0]);
    assert_eq!([0, 1].map(&mut hits), [2, 0]);
}

#[test]
fn a_preempted_request_finds_its_own_blocks() {
    let run = |prefix_caching| {
        let mut engine = engine(12, prefix_caching);
        engine.add(tokens(0, 60), greedy(60)).unwrap();
        engine.add(tokens(1, 60), greedy(60)).unwrap();
        let outputs: Vec<_> = finish(&mut engine).into_iter().map(|f| f.outputs).collect();
        (outputs, engine.stats())
    };
    let ((with, cached), (without, plain)) = (run(true), run(false));
    assert_eq!(with, without);
    assert!(cached.preemptions > 0 && plain.preemptions > 0);
    assert!(cached.hit_tokens > 0 && cached.computed_tokens < plain.computed_tokens);
}

/// Blocks found again after a preemption were computed for the request itself, so they are no hit of its prompt.
#[test]
fn cached_tokens_are_counted_at_the_first_admission() {
    let cached = |engine: &mut Engine| finish(engine).into_iter().map(|f| f.cached_tokens).collect::<Vec<_>>();
    let mut roomy = engine(4000, true);
    for prompt in prompts(3) {
        roomy.add(prompt, greedy(5)).unwrap();
    }
    let common = 341 / BLOCK * BLOCK;
    assert_eq!(cached(&mut roomy), [0, common, common]);
    roomy.add(prompts(1).remove(0), greedy(5)).unwrap();
    assert_eq!(cached(&mut roomy), [349 / BLOCK * BLOCK], "one token is left to be computed");

    let mut off = engine(4000, false);
    off.add(prompts(1).remove(0), greedy(5)).unwrap();
    off.add(prompts(1).remove(0), greedy(5)).unwrap();
    assert_eq!(cached(&mut off), [0, 0]);

    // Two prompts without a common prefix. The pool has room for all tokens of only one request.
    let mut narrow = engine(24, true);
    narrow.add(tokens(0, 150), greedy(100)).unwrap();
    narrow.add(tokens(5, 150), greedy(100)).unwrap();
    assert_eq!(cached(&mut narrow), [0, 0]);
    assert!(narrow.stats().preemptions > 0 && narrow.stats().hit_tokens > 0, "{:?}", narrow.stats());
}

#[test]
fn a_request_in_parts_counts_the_hits_of_its_first_part() {
    let config = EngineConfig {
        scheduler: SchedulerOptions { max_num_seqs: 12, max_request_share: 0.5, ..scheduler_options() },
        ..config(4000, BLOCK)
    };
    let mut engine = oracle::engine(config);
    let params = SamplingParams { n: 12, best_of: 12, temperature: 1.0, seed: Some(3), ..greedy(5) };
    for _ in 0..2 {
        engine.add(tokens(0, 100), params.clone()).unwrap();
    }
    let done = finish(&mut engine);
    assert!(engine.stats().looked_up_tokens > 2 * 100, "more groups than requests began with the prompt");
    assert_eq!(
        done.iter().map(|f| f.cached_tokens).collect::<Vec<_>>(),
        [0, 96],
        "hits between its own parts do not count"
    );
}
