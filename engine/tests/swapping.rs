//! Preemption by swapping: which blocks move out, which come back, and what happens when the swap space is full.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use engine::Error;
use engine::RequestId;
use engine::SamplingParams;
use engine::Stats;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::scheduler::{Preemption, SchedulerOptions};
use engine::tools::sequence::Output;
use oracle::{Fails, Oracle, config, scheduler_options};

const PROMPT: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

fn engine(num_blocks: usize, swap_blocks: usize, preemption: Preemption) -> Engine {
    let config = EngineConfig {
        swap_blocks,
        scheduler: SchedulerOptions { preemption, prefix_caching: false, ..scheduler_options() },
        ..config(num_blocks, 4)
    };
    let oracle = Oracle::new(&config);
    Engine::new(config, oracle)
}

fn sampled(n: usize) -> SamplingParams {
    SamplingParams {
        n,
        best_of: n,
        max_tokens: 20,
        ignore_eos: true,
        temperature: 1.0,
        seed: Some(7),
        ..Default::default()
    }
}

/// Runs two requests of `n` outputs each. Returns their outputs and the statistics.
fn two_requests(mut engine: Engine, n: usize) -> (Vec<Vec<Output>>, Stats) {
    engine.add(PROMPT.to_vec(), sampled(n)).unwrap();
    engine.add(PROMPT.to_vec(), sampled(n)).unwrap();
    let mut done = Vec::new();
    while engine.has_work() {
        done.extend(engine.step().unwrap().finished);
        assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    }
    done.sort_by_key(|f| f.id);
    (done.into_iter().map(|f| f.outputs).collect(), engine.stats())
}

#[test]
fn a_swapped_group_computes_no_token_twice() {
    // Three sequences of 28 tokens share two blocks: each request takes 2 + 3 * 5 blocks.
    let (roomy, _) = two_requests(engine(100, 0, Preemption::Auto), 3);
    let (outputs, stats) = two_requests(engine(24, 24, Preemption::Auto), 3);
    assert_eq!(outputs, roomy);
    assert!(stats.swapped_out > 0 && stats.swapped_out == stats.preemptions);
    assert_eq!(stats.swapped_out_blocks, stats.swapped_in_blocks);
    assert_eq!(stats.computed_tokens, 2 * (PROMPT.len() + 3 * 19), "each token once");
}

#[test]
fn single_sequences_are_recomputed_unless_told_otherwise() {
    let stats = |preemption| two_requests(engine(10, 10, preemption), 1).1;
    let (auto, swap) = (stats(Preemption::Auto), stats(Preemption::Swap));
    assert!(auto.preemptions > 0 && auto.swapped_out == 0);
    assert!(swap.preemptions > 0 && swap.swapped_out == swap.preemptions);
    assert!(auto.computed_tokens > swap.computed_tokens);
}

#[test]
fn a_full_swap_space_falls_back_to_recomputation() {
    let (roomy, _) = two_requests(engine(100, 0, Preemption::Swap), 3);
    let (outputs, stats) = two_requests(engine(24, 3, Preemption::Swap), 3);
    assert_eq!(outputs, roomy);
    assert!(stats.preemptions > 0 && stats.swapped_out == 0);
}

#[test]
fn no_new_group_is_admitted_while_one_is_swapped_out() {
    let mut engine = engine(24, 24, Preemption::Swap);
    let ids = |groups: &mut dyn Iterator<Item = RequestId>| groups.collect::<BTreeSet<_>>();
    for _ in 0..6 {
        engine.add(PROMPT.to_vec(), sampled(2)).unwrap();
    }
    let mut swapped_steps = 0;
    while engine.has_work() {
        let before = ids(&mut engine.scheduler().running().iter().map(|g| g.id));
        let waiting = engine.scheduler().swapped().collect::<BTreeSet<_>>();
        engine.step().unwrap();
        let after = ids(&mut engine.scheduler().running().iter().map(|g| g.id));
        if !engine.scheduler().swapped().any(|id| waiting.contains(&id)) {
            continue;
        }
        swapped_steps += 1;
        assert!(after.difference(&before).all(|id| waiting.contains(id)), "{before:?}, then {after:?}");
    }
    assert!(swapped_steps > 0);
}

#[test]
fn a_failed_step_drops_running_requests_and_recomputes_the_others() {
    for prefix_caching in [false, true] {
        let config = EngineConfig {
            scheduler: SchedulerOptions { preemption: Preemption::Swap, prefix_caching, ..scheduler_options() },
            ..config(24, 4)
        };
        let now = Arc::new(AtomicBool::new(false));
        let mut engine = Engine::new(config.clone(), Fails::when(now.clone(), &config));
        for _ in 0..4 {
            engine.add(PROMPT.to_vec(), sampled(3)).unwrap();
        }
        while engine.scheduler().swapped().next().is_none() {
            engine.step().unwrap();
        }
        let lost: BTreeSet<_> = engine.scheduler().running().iter().map(|g| g.id).collect();
        let swapped: Vec<_> = engine.scheduler().swapped().collect();
        now.store(true, Relaxed);
        assert!(matches!(engine.step(), Err(Error::Memory(_))));
        assert_eq!(engine.scheduler().check_integrity(), Ok(()));
        assert!(engine.scheduler().running().is_empty() && engine.scheduler().swapped().next().is_none());
        assert_eq!((engine.scheduler().usage().used_blocks, engine.scheduler().usage().cached_blocks), (0, 0));
        assert_eq!(engine.scheduler().swap_usage().used_blocks, 0);

        let mut done = Vec::new();
        while engine.has_work() {
            done.extend(engine.step().unwrap().finished);
            assert_eq!(engine.scheduler().check_integrity(), Ok(()));
        }
        let ids: BTreeSet<_> = done.iter().map(|f| f.id).collect();
        assert!(
            ids.is_disjoint(&lost) && swapped.iter().all(|id| ids.contains(id)),
            "{lost:?} should be lost, but {ids:?} finished"
        );
        assert_eq!(ids.len() + lost.len(), 4);
        let (alone, _) = two_requests(self::engine(100, 0, Preemption::Auto), 3);
        assert!(done.iter().all(|f| f.outputs == alone[0]), "swapped out requests have the same outputs as alone");
    }
}

#[test]
fn an_abort_frees_the_swap_space() {
    let mut engine = engine(24, 24, Preemption::Swap);
    let first = engine.add(PROMPT.to_vec(), sampled(3)).unwrap();
    let second = engine.add(PROMPT.to_vec(), sampled(3)).unwrap();
    while engine.scheduler().swapped().next().is_none() {
        assert_eq!(engine.scheduler().num_swapped(), 0);
        engine.step().unwrap();
    }
    assert_eq!(engine.scheduler().num_swapped(), 1);
    assert!(engine.scheduler().swapped().eq([second]) && engine.scheduler().swap_usage().used_blocks > 0);
    engine.abort(second);
    let done = engine.step().unwrap().finished;
    assert!(done.len() == 1 && done[0].id == second && done[0].outputs.len() == 3);
    assert_eq!((engine.scheduler().swap_usage().used_blocks, engine.scheduler().num_swapped()), (0, 0));
    engine.abort(first);
    engine.step().unwrap();
    assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    assert!(!engine.has_work());
}
