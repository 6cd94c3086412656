//! Models with sliding-window attention: blocks behind the window are freed and not counted.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use engine::Error;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::kv::CacheGroup;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::tools::scheduler::{Preemption, SchedulerOptions};
use oracle::{VOCAB, config, engine, finish, greedy, scheduler_options};

const BLOCK: usize = 4;
const WINDOW: usize = 10;
/// A window may begin anywhere in a block.
const WINDOW_BLOCKS: usize = 4;

fn sliding(num_blocks: usize) -> EngineConfig {
    EngineConfig {
        groups: vec![CacheGroup::only(Some(WINDOW))],
        scheduler: SchedulerOptions { max_batch_tokens: 32, ..scheduler_options() },
        ..config(num_blocks, BLOCK)
    }
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len).map(|i| 1 + ((i * i + i) % (VOCAB as usize - 1)) as u32).collect()
}

#[test]
fn a_pool_that_holds_a_window_holds_a_request_of_any_length() {
    for prefix_caching in [false, true] {
        let mut tight = engine(EngineConfig {
            scheduler: SchedulerOptions { prefix_caching, ..sliding(WINDOW_BLOCKS).scheduler },
            ..sliding(WINDOW_BLOCKS)
        });
        let mut roomy = engine(config(1000, BLOCK));
        for engine in [&mut tight, &mut roomy] {
            engine.add(prompt(333), greedy(400)).unwrap();
        }
        let (tight_done, roomy_done) = (finish(&mut tight), finish(&mut roomy));
        assert_eq!(tight_done[0].outputs, roomy_done[0].outputs);
        assert_eq!((tight.stats().exhausted, tight.stats().preemptions), (0, 0));
        assert!(tight.stats().peak.used_blocks <= WINDOW_BLOCKS);
    }
}

#[test]
fn admission_counts_the_blocks_of_a_window_and_a_chunk() {
    // Three windows, and one prompt chunk.
    let num_blocks = 3 * WINDOW_BLOCKS + 32 / BLOCK;
    let most_at_once = |config: EngineConfig| {
        let mut engine = engine(config);
        for _ in 0..3 {
            engine.add(prompt(70), greedy(20)).unwrap();
        }
        assert_eq!(finish(&mut engine).len(), 3);
        assert_eq!(engine.stats().preemptions, 0);
        engine.stats().peak_seqs
    };
    let apart = |config: EngineConfig| EngineConfig {
        scheduler: SchedulerOptions { prefix_caching: false, ..config.scheduler },
        ..config
    };
    assert_eq!(most_at_once(apart(sliding(num_blocks))), 3);
    assert_eq!(most_at_once(apart(EngineConfig { num_blocks: 23, ..config(23, BLOCK) })), 1, "without a window");
}

#[test]
fn requests_are_refused_by_the_size_of_a_window() {
    let why = |engine: &mut Engine, params| match engine.add(prompt(50), params) {
        Err(Error::Request(refusal)) => Some(refusal.why),
        Ok(_) => None,
        Err(other) => panic!("{other:?}"),
    };
    let context = |engine: &Engine| engine.context_len(&[], &greedy(1));
    let mut enough = engine(sliding(WINDOW_BLOCKS));
    assert_eq!((why(&mut enough, greedy(5)), context(&enough)), (None, 1000));
    let mut short = engine(sliding(WINDOW_BLOCKS - 1));
    assert!(why(&mut short, greedy(5)).is_some_and(|why| why.contains("the KV cache holds 12 in all")));
    assert_eq!(context(&short), 13);
    // Beams keep all their blocks, so they must fit whole.
    let beam = Some(Beam { width: 2, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    assert!(why(&mut enough, SamplingParams { n: 2, best_of: 2, beam, ..greedy(5) }).is_some());
}

#[test]
fn several_outputs_share_the_window_and_diverge() {
    for preemption in [Preemption::Swap, Preemption::Recompute] {
        for prefix_caching in [false, true] {
            let params = |seed| SamplingParams { n: 3, best_of: 3, temperature: 1.0, seed: Some(seed), ..greedy(60) };
            // Two requests of three outputs compete for the blocks.
            let mut tight = engine(EngineConfig {
                scheduler: SchedulerOptions { preemption, prefix_caching, ..sliding(5 * WINDOW_BLOCKS).scheduler },
                ..sliding(5 * WINDOW_BLOCKS)
            });
            let mut roomy = engine(config(1000, BLOCK));
            for engine in [&mut tight, &mut roomy] {
                engine.add(prompt(41), params(1)).unwrap();
                engine.add(prompt(55), params(2)).unwrap();
            }
            let (tight_done, roomy_done) = (finish(&mut tight), finish(&mut roomy));
            for (tight, roomy) in tight_done.iter().zip(&roomy_done) {
                assert_eq!(tight.outputs, roomy.outputs, "{preemption:?}, caching {prefix_caching}");
            }
            assert_eq!(tight.stats().exhausted, 0);
        }
    }
}

#[test]
fn blocks_behind_the_window_can_be_found_again() {
    let mut engine = engine(sliding(50));
    engine.add(prompt(60), greedy(1)).unwrap();
    finish(&mut engine);
    engine.add(prompt(60), greedy(1)).unwrap();
    engine.step().unwrap();
    assert_eq!(engine.stats().hit_tokens, 56, "all but the last block");
    assert!(
        engine
            .scheduler()
            .running()
            .iter()
            .all(|group| group.running[0].table.lane(0).live_blocks().len() <= WINDOW_BLOCKS)
    );
    assert_eq!(engine.scheduler().check_integrity(), Ok(()));
}
