//! Prefix caching: what is computed once, found again, forgotten when memory is needed, and never wrong.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use engine::engine::{Engine, EngineConfig, Finished};
use engine::sampling::SamplingParams;
use oracle::{Oracle, VOCAB, config};

const BLOCK: usize = 16;

fn engine(num_blocks: usize, prefix_caching: bool) -> Engine {
    let config = EngineConfig { prefix_caching, max_batch_tokens: 2048, ..config(num_blocks, BLOCK) };
    let oracle = Oracle::new(&config);
    Engine::new(config, oracle)
}

/// Tokens that begin differently for every `start`.
fn tokens(start: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + (start + i * i + i / 7) % (VOCAB - 1)).collect()
}

fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, ignore_eos: true, ..Default::default() }
}

fn finish(engine: &mut Engine) -> Vec<Finished> {
    let mut done = Vec::new();
    while engine.has_work() {
        done.extend(engine.step().unwrap().finished);
        assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    }
    done.sort_by_key(|f| f.id);
    done
}

/// `n` prompts of 341 common tokens and 9 of their own.
fn prompts(n: u32) -> Vec<Vec<u32>> {
    (0..n).map(|i| [tokens(0, 341), vec![1 + i % 11, 1 + i / 11], tokens(i, 7)].concat()).collect()
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
    assert_eq!(cached.computed_tokens, 64 * (350 + 4) - 63 * whole_blocks, "all at once, and still only the first one");
    assert_eq!((cached.hit_tokens, cached.looked_up_tokens), (63 * whole_blocks, 64 * 350));
    assert_eq!(plain.hit_tokens, 0);
}

#[test]
fn blocks_are_found_after_their_last_user_is_gone() {
    let mut engine = engine(100, true);
    let first = engine.add(tokens(0, 100), greedy(30)).unwrap();
    let said = finish(&mut engine).remove(0).outputs.remove(0).tokens;
    assert_eq!(engine.scheduler().usage().used_blocks, 0);
    assert_eq!(engine.scheduler().usage().cached_blocks, 129 / BLOCK, "the prompt, and what was generated after it");
    // The next turn of a chat: all that was said before, and something new.
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
    assert_eq!(engine.stats().hit_tokens, BLOCK, "the second block is full, and may not be written again");
}

#[test]
fn the_least_recently_used_are_forgotten_first_and_from_the_end() {
    // Room for three prompts of three blocks.
    let mut engine = engine(9, true);
    let mut hits = |start: u32| {
        let before = engine.stats().hit_tokens;
        engine.add(tokens(start, 3 * BLOCK - 1), greedy(1)).unwrap();
        finish(&mut engine);
        (engine.stats().hit_tokens - before) / BLOCK
    };
    assert_eq!([0, 1, 2].map(&mut hits), [0, 0, 0]);
    assert_eq!(hits(0), 2, "now the first is the most recent");
    // Each prompt leaves two full blocks and a part. The parts and then the oldest are taken.
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
