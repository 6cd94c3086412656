//! The swap space as a second tier of the prefix cache: evicted blocks are copied back instead of being computed again.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod follower;
mod oracle;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use engine::Error;
use engine::SamplingParams;
use engine::Stats;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::kv::{CacheChanges, CacheGroup, Place, Space};
use engine::tools::scheduler::{Preemption, SchedulerOptions};
use engine::tools::sequence::Output;
use follower::Follower;
use oracle::{Fails, VOCAB, config, finish, greedy, scheduler_options};

const BLOCK: usize = 16;

fn tiers(num_blocks: usize, swap_blocks: usize) -> EngineConfig {
    EngineConfig { swap_blocks, ..config(num_blocks, BLOCK) }
}

fn engine(num_blocks: usize, swap_blocks: usize) -> Engine {
    oracle::engine(tiers(num_blocks, swap_blocks))
}

/// Tokens that are different from the first one on for every `start`.
fn tokens(start: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 1 + (start + i * i + i / 7) % (VOCAB - 1)).collect()
}

/// Runs one request alone. Returns its output and the statistics of the run.
fn ask(engine: &mut Engine, prompt: &[u32], max_tokens: usize) -> (Output, Stats) {
    let before = engine.stats();
    engine.add(prompt.to_vec(), greedy(max_tokens)).unwrap();
    let output = finish(engine).remove(0).outputs.remove(0);
    let mut stats = engine.stats();
    stats.computed_tokens -= before.computed_tokens;
    stats.hit_tokens -= before.hit_tokens;
    stats.swap_hit_tokens -= before.swap_hit_tokens;
    stats.offloaded_blocks -= before.offloaded_blocks;
    stats.restored_blocks -= before.restored_blocks;
    (output, stats)
}

/// The output of the same request in an engine with an empty cache.
fn alone(prompt: &[u32], max_tokens: usize) -> Output {
    ask(&mut engine(4000, 0), prompt, max_tokens).0
}

/// The next turn of a conversation: the previous text and something new.
fn turn(prompt: &[u32], said: &Output, new: u32, len: usize) -> Vec<u32> {
    [prompt, &said.tokens, &tokens(new, len)].concat()
}

#[test]
fn a_returning_conversation_computes_only_its_new_tokens() {
    // Room for one conversation, or for the other requests in between.
    let mut engine = engine(12, 40);
    let first = tokens(0, 100);
    let (said, _) = ask(&mut engine, &first, 30);
    let others = |engine: &mut Engine| (1..4).for_each(|other| drop(ask(engine, &tokens(other, 150), 20)));
    others(&mut engine);
    let second = turn(&first, &said, 9, 20);
    let (answer, stats) = ask(&mut engine, &second, 10);
    assert_eq!(answer, alone(&second, 10));
    // 129 tokens have keys and values, in eight full blocks and a partial one. The last token of the answer is not
    // computed.
    assert_eq!((stats.hit_tokens, stats.swap_hit_tokens, stats.restored_blocks), (128, 128, 8));
    assert_eq!(stats.computed_tokens, second.len() - 128 + 9, "only the new tokens");

    // Without a swap space all of it is computed.
    let mut without = self::engine(12, 0);
    ask(&mut without, &first, 30);
    others(&mut without);
    assert_eq!(ask(&mut without, &second, 10).1.computed_tokens, second.len() + 9);
}

#[test]
fn restored_blocks_do_not_move_a_second_time() {
    let mut engine = engine(8, 40);
    let (first, other) = (tokens(0, 7 * BLOCK + 1), tokens(1, 7 * BLOCK + 1));
    let moved = [&first, &other, &first, &other, &first].map(|prompt| {
        let (output, stats) = ask(&mut engine, prompt, 1);
        assert_eq!(output, alone(prompt, 1));
        (stats.offloaded_blocks, stats.restored_blocks, stats.computed_tokens)
    });
    let all = 7 * BLOCK + 1;
    assert_eq!(moved, [(0, 0, all), (7, 0, all), (7, 7, 1), (0, 7, 1), (0, 7, 1)]);
}

#[test]
fn the_beginning_of_a_text_is_kept_longest() {
    let mut engine = engine(9, 4);
    let first = tokens(0, 8 * BLOCK + 1);
    ask(&mut engine, &first, 1);
    ask(&mut engine, &tokens(1, 9 * BLOCK - 1), 1);
    let (output, stats) = ask(&mut engine, &first, 1);
    assert_eq!(output, alone(&first, 1));
    assert_eq!((stats.swap_hit_tokens, stats.restored_blocks), (4 * BLOCK, 4), "as much as the swap space holds");
}

#[test]
fn two_conversations_are_restored_in_one_step() {
    let mut engine = engine(18, 60);
    let prompts = [tokens(0, 8 * BLOCK + 1), tokens(1, 8 * BLOCK + 1)];
    for prompt in &prompts {
        ask(&mut engine, prompt, 1);
    }
    // This evicts the first prompt and part of the second.
    ask(&mut engine, &tokens(2, 12 * BLOCK), 1);
    let before = engine.stats();
    for prompt in &prompts {
        engine.add(prompt.clone(), greedy(1)).unwrap();
    }
    engine.step().unwrap();
    assert_eq!(engine.stats().steps - before.steps, 1);
    assert_eq!(engine.stats().computed_tokens - before.computed_tokens, 2, "the last token of each");
    assert!(engine.stats().restored_blocks > 8 && engine.stats().offloaded_blocks > 8);
    assert_eq!(engine.scheduler().check_integrity(), Ok(()));
}

#[test]
fn preempted_groups_displace_cached_blocks_in_the_swap_space() {
    let sampled = |seed| SamplingParams { n: 3, best_of: 3, temperature: 1.0, seed: Some(seed), ..greedy(40) };
    let options =
        |prefix_caching| SchedulerOptions { preemption: Preemption::Swap, prefix_caching, ..scheduler_options() };
    let run = |engine: &mut Engine| {
        for seed in 0..2 {
            engine.add(tokens(seed, 41), sampled(seed.into())).unwrap();
        }
        finish(engine).into_iter().map(|done| done.outputs).collect::<Vec<_>>()
    };
    let mut tight = oracle::engine(EngineConfig { scheduler: options(true), ..tiers(20, 20) });
    for other in 3..8 {
        ask(&mut tight, &tokens(other, 19 * BLOCK), 1);
    }
    assert_eq!(tight.scheduler().swap_usage().cached_blocks, 20, "the swap space is full");
    let outputs = run(&mut tight);
    assert_eq!(outputs, run(&mut oracle::engine(EngineConfig { scheduler: options(false), ..tiers(400, 0) })));
    let stats = tight.stats();
    assert!(stats.preemptions > 0 && stats.swapped_out == stats.preemptions, "no group was recomputed: {stats:?}");
    assert!(stats.swapped_out_blocks > 0);
    assert_eq!(tight.scheduler().swap_usage().used_blocks, 0);
}

#[test]
fn no_block_moves_without_prefix_caching() {
    let scheduler = SchedulerOptions { prefix_caching: false, ..scheduler_options() };
    let mut engine = oracle::engine(EngineConfig { scheduler, ..tiers(9, 40) });
    engine.pin_prefix(tokens(5, BLOCK)).unwrap();
    for start in [0, 1, 0] {
        let (_, stats) = ask(&mut engine, &tokens(start, 7 * BLOCK), 1);
        assert_eq!((stats.computed_tokens, stats.offloaded_blocks, stats.restored_blocks), (7 * BLOCK, 0, 0));
    }
}

#[test]
fn blocks_evicted_by_a_pinned_prefix_can_be_found() {
    let mut engine = engine(12, 40);
    let first = tokens(0, 8 * BLOCK + 1);
    ask(&mut engine, &first, 1);
    // The prefix is too long: nothing is computed, and the blocks evicted for it can still be found.
    let more = [tokens(7, 4 * BLOCK), first.clone()].concat();
    assert!(matches!(engine.pin_prefix([more.clone(), more].concat()), Err(Error::Request(_) | Error::Memory(_))));
    engine.pin_prefix(tokens(1, 3 * BLOCK)).unwrap();
    let (output, stats) = ask(&mut engine, &first, 1);
    assert_eq!(output, alone(&first, 1));
    assert_eq!(stats.computed_tokens, 1);
    engine.pin_prefix(tokens(2, 2 * BLOCK)).unwrap();
    ask(&mut engine, &tokens(3, 6 * BLOCK), 1);
    assert!(engine.stats().offloaded_blocks > 0);
    assert_eq!(engine.scheduler().check_integrity(), Ok(()));
}

#[test]
fn a_failed_step_empties_both_prefix_indices() {
    let config = tiers(12, 40);
    let now = Arc::new(AtomicBool::new(false));
    let mut engine = Engine::new(config.clone(), Fails::when(now.clone(), &config));
    let changes = Arc::new(Mutex::new(CacheChanges::default()));
    engine.set_log(changes.clone());
    let mut follower = Follower::default();
    let first = tokens(0, 100);
    let (said, _) = ask(&mut engine, &first, 30);
    ask(&mut engine, &tokens(1, 150), 20);
    follower.follow(changes.lock().unwrap().take());
    assert_eq!(follower.check(&engine), Ok(()));
    assert!(!engine.scheduler().registered_blocks(Place { space: Space::Swap, group: 0 }).is_empty());

    // The failing step would move blocks in both directions.
    let second = turn(&first, &said, 9, 20);
    engine.add(second.clone(), greedy(10)).unwrap();
    now.store(true, Relaxed);
    assert!(matches!(engine.step(), Err(Error::Memory(_))));
    follower.follow(changes.lock().unwrap().take());
    assert_eq!((follower.len(), follower.check(&engine)), (0, Ok(())));
    assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    let (answer, stats) = ask(&mut engine, &second, 10);
    assert_eq!(answer, alone(&second, 10));
    assert_eq!((stats.hit_tokens, stats.computed_tokens), (0, second.len() + 9));
}

#[test]
fn only_blocks_in_the_window_are_restored() {
    let mut engine = oracle::engine(EngineConfig { groups: vec![CacheGroup::only(Some(3 * BLOCK))], ..tiers(20, 40) });
    let roomy = || oracle::engine(EngineConfig { groups: vec![CacheGroup::only(Some(3 * BLOCK))], ..tiers(4000, 0) });
    let first = tokens(0, 10 * BLOCK + 1);
    ask(&mut engine, &first, 1);
    ask(&mut engine, &tokens(1, 20 * BLOCK - 1), 1);
    let (output, stats) = ask(&mut engine, &first, 1);
    assert_eq!(output, ask(&mut roomy(), &first, 1).0);
    assert_eq!((stats.swap_hit_tokens, stats.restored_blocks, stats.computed_tokens), (10 * BLOCK, 3, 1));
}
