//! Priorities: urgent requests come first, nobody waits for ever, and outputs stay the same.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;
mod schedules;

use std::collections::{BTreeMap, VecDeque};

use engine::Error;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::group::{OwnerId, RequestId};
use engine::tools::sampling::SamplingParams;
use engine::tools::scheduler::{Preemption, SchedulerOptions, SchedulingPolicy};
use engine::tools::sequence::Output;
use oracle::{VOCAB, config, engine, greedy, scheduler_options};
use proptest::prelude::*;
use schedules::{OWNERS, Request, Setup, arrive, cut_short, request, setup};

/// An engine with priorities.
fn urgent_engine(num_blocks: usize, max_num_seqs: usize, priority_ageing: usize) -> Engine {
    let policy = SchedulingPolicy::Priority;
    let scheduler = SchedulerOptions { max_num_seqs, policy, priority_ageing, ..scheduler_options() };
    engine(EngineConfig { scheduler, ..config(num_blocks, 4) })
}

fn prompt(seed: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| 1 + ((seed * 7 + i * i + i) % (VOCAB as usize - 1)) as u32).collect()
}

/// Queues a request of `len` tokens, which generates `max_tokens` more.
fn add(engine: &mut Engine, priority: i64, len: usize, max_tokens: usize) -> RequestId {
    engine.add(prompt(len, len), SamplingParams { priority, ..greedy(max_tokens) }).unwrap()
}

/// Runs a step. Returns the outputs of the requests that end in it.
fn step(engine: &mut Engine) -> BTreeMap<RequestId, Vec<Output>> {
    let done = engine.step().unwrap().finished;
    assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    done.into_iter().map(|done| (done.id, done.outputs)).collect()
}

fn running(engine: &Engine) -> Vec<RequestId> {
    engine.scheduler().running().iter().map(|group| group.id).collect()
}

fn outputs_alone(len: usize, max_tokens: usize) -> Vec<Output> {
    let mut engine = engine(config(1000, 4));
    engine.add(prompt(len, len), greedy(max_tokens)).unwrap();
    loop {
        if let Some((_, outputs)) = step(&mut engine).pop_first() {
            return outputs;
        }
    }
}

#[test]
fn an_urgent_request_takes_the_row_of_the_least_urgent() {
    let mut engine = urgent_engine(1000, 3, 0);
    let low: Vec<_> = [(5, 6), (9, 7), (5, 8)].map(|(priority, len)| add(&mut engine, priority, len, 20)).into();
    (0..3).for_each(|_| drop(step(&mut engine)));
    assert_eq!(running(&engine), [low[0], low[2], low[1]], "the most urgent is visited first");
    let urgent = add(&mut engine, 0, 9, 4);
    step(&mut engine);
    // A step visits the groups that it admits last.
    assert_eq!((engine.admitted(), running(&engine)), (&[urgent][..], vec![low[0], low[2], urgent]));
    step(&mut engine);
    assert_eq!(running(&engine), [urgent, low[0], low[2]]);
    let mut done = BTreeMap::new();
    while engine.has_work() {
        done.extend(step(&mut engine));
    }
    assert_eq!(engine.stats().preemptions, 1);
    for (id, len, max_tokens) in [(low[0], 6, 20), (low[1], 7, 20), (low[2], 8, 20), (urgent, 9, 4)] {
        assert_eq!(done[&id], outputs_alone(len, max_tokens));
    }
}

#[test]
fn an_urgent_request_takes_the_blocks_of_less_urgent_ones() {
    for preemption in [Preemption::Recompute, Preemption::Swap] {
        let policy = SchedulingPolicy::Priority;
        let scheduler = SchedulerOptions { preemption, policy, ..scheduler_options() };
        let mut engine = engine(EngineConfig { scheduler, ..config(20, 4) });
        let [first, second] = [24, 25].map(|len| add(&mut engine, 1, len, 10));
        step(&mut engine);
        assert_eq!(running(&engine), [first, second]);
        let urgent = add(&mut engine, 0, 32, 4);
        step(&mut engine);
        assert_eq!(running(&engine), [first, urgent], "one of them gives up its blocks");
        while engine.has_work() {
            step(&mut engine);
        }
    }
}

/// A request that would not fit even after less urgent ones have given up everything takes nothing from them.
#[test]
fn nothing_is_preempted_in_vain() {
    let mut engine = urgent_engine(20, 9, 0);
    let high = add(&mut engine, -1, 40, 20);
    let low = add(&mut engine, 1, 8, 9);
    step(&mut engine);
    let urgent = add(&mut engine, 0, 50, 4);
    for _ in 0..4 {
        step(&mut engine);
        assert_eq!(running(&engine), [high, low]);
    }
    while engine.has_work() {
        step(&mut engine);
    }
    assert!(engine.stats().preemptions <= 1, "{urgent} takes the blocks once they suffice");
}

/// Starts two requests that stay and two that are less urgent, then an urgent one with a prompt of `len` tokens. Whatever
/// its step preempts is for the urgent one to start at once.
fn preempt_only_to_start(num_blocks: usize, ours: usize, theirs: usize, len: usize) -> usize {
    let mut engine = urgent_engine(num_blocks, 9, 0);
    let shared = prompt(1, ours);
    for _ in 0..2 {
        engine.add(shared.clone(), SamplingParams { priority: -1, ..greedy(30) }).unwrap();
        step(&mut engine);
    }
    for len in [theirs, theirs + 1] {
        add(&mut engine, 1, len, 30);
    }
    step(&mut engine);
    let before = engine.stats().preemptions;
    let urgent = add(&mut engine, 0, len, 4);
    step(&mut engine);
    let preempted = engine.stats().preemptions - before;
    assert!(preempted == 0 || running(&engine).contains(&urgent), "{num_blocks} {ours} {theirs} {len}");
    while engine.has_work() {
        step(&mut engine);
    }
    preempted
}

#[test]
fn running_requests_are_preempted_only_if_that_makes_room() {
    let mut preempted = BTreeMap::new();
    for len in 1..70 {
        // In 20 blocks no page is spare, and in 220 two are.
        for (num_blocks, ours, theirs) in [(20, 20, 10), (20, 3, 20), (220, 400, 210)] {
            let len = if num_blocks == 20 { len } else { 5 * len };
            *preempted.entry(num_blocks).or_insert(0) += preempt_only_to_start(num_blocks, ours, theirs, len);
        }
    }
    assert!(preempted.values().all(|count| *count > 9), "{preempted:?}");
}

#[test]
fn blocks_that_running_requests_share_count_once() {
    let mut engine = urgent_engine(20, 9, 0);
    let shared = prompt(1, 32);
    for _ in 0..2 {
        engine.add(shared.clone(), SamplingParams { priority: -1, ..greedy(9) }).unwrap();
        step(&mut engine);
    }
    let low = add(&mut engine, 1, 24, 9);
    step(&mut engine);
    assert!(running(&engine).contains(&low));
    let urgent = add(&mut engine, 0, 20, 4);
    step(&mut engine);
    assert_eq!((running(&engine).contains(&low), running(&engine).contains(&urgent)), (false, true));
}

#[test]
fn requests_of_one_priority_do_not_preempt_each_other_because_they_wait() {
    for (first, second) in [(0, 0), (3, 3), (-1, 2)] {
        let mut engine = urgent_engine(1000, 1, 1);
        let first = add(&mut engine, first, 6, 50);
        add(&mut engine, second, 7, 5);
        for _ in 0..50 {
            step(&mut engine);
            assert!([vec![first], Vec::new()].contains(&running(&engine)));
        }
        assert!(step(&mut engine).is_empty() && engine.stats().preemptions == 0);
    }
}

/// Floods an engine of one row with urgent requests, one in each step, each of which takes two steps. Returns when a
/// less urgent request ends, if it ends at all.
fn end_in_flood(ageing: usize) -> Option<usize> {
    let mut engine = urgent_engine(1000, 1, ageing);
    let low = add(&mut engine, 3, 6, 5);
    let end = (0..300).find(|_| {
        add(&mut engine, 0, 5, 2);
        step(&mut engine).contains_key(&low)
    });
    assert_eq!(engine.stats().preemptions, 0, "once admitted, it keeps its level");
    end
}

#[test]
fn a_less_urgent_request_ends_in_a_flood_of_urgent_ones() {
    assert_eq!(end_in_flood(0), None, "without ageing it waits as long as others come");
    for ageing in [1, 4, 20] {
        // It waits at most for the requests that come before it has gained three levels, each of which takes two steps.
        let end = end_in_flood(ageing).unwrap();
        assert!((3 * ageing..=6 * ageing + 20).contains(&end), "{ageing}: {end}");
    }
}

/// A backlog of less urgent requests has its turns, but does not overtake urgent ones as a whole.
#[test]
fn a_backlog_ages_as_one() {
    let mut engine = urgent_engine(1000, 1, 10);
    let low: Vec<_> = (0..50).map(|i| add(&mut engine, 1, 6 + i, 2)).collect();
    let (mut urgent, mut done) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        urgent.push(add(&mut engine, 0, 5, 1));
        done.extend(step(&mut engine).into_keys());
    }
    let ended: Vec<_> = low.iter().filter(|id| done.contains(id)).collect();
    // Each turn takes ten steps of waiting and two of running.
    assert!((14..=20).contains(&ended.len()), "{}", ended.len());
    assert!(
        ended.into_iter().eq(&low[..done.iter().filter(|id| low.contains(id)).count()]),
        "first come, first served"
    );
    assert!(done.iter().filter(|id| urgent.contains(id)).count() >= 160);
}

#[test]
fn urgent_owners_share_and_less_urgent_ones_give_way() {
    let policy = SchedulingPolicy::Priority;
    let scheduler = SchedulerOptions { max_num_seqs: 8, max_request_share: 0.5, policy, ..scheduler_options() };
    let mut engine = engine(EngineConfig { scheduler, ..config(1000, 4) });
    let add_owner = |engine: &mut Engine, priority: i64| -> Vec<RequestId> {
        let owner = engine.new_owner();
        let params = SamplingParams { priority, ..greedy(40) };
        (0..12).map(|i| engine.add_for(owner, prompt(i, 9), params.clone()).unwrap()).collect()
    };
    let rows = |engine: &Engine, of: &[RequestId]| running(engine).iter().filter(|id| of.contains(id)).count();
    let low = add_owner(&mut engine, 1);
    step(&mut engine);
    assert_eq!(rows(&engine, &low), 8);
    let one = add_owner(&mut engine, 0);
    (0..10).for_each(|_| drop(step(&mut engine)));
    assert_eq!((rows(&engine, &low), rows(&engine, &one)), (0, 8), "the urgent owner has all rows");
    let other = add_owner(&mut engine, 0);
    step(&mut engine);
    assert!(rows(&engine, &other) >= 1, "owners of one priority share");
    (0..10).for_each(|_| drop(step(&mut engine)));
    assert_eq!(rows(&engine, &low), 0);
    while engine.has_work() {
        step(&mut engine);
    }
}

#[test]
fn priorities_that_are_not_allowed_are_refused() {
    let refused = |engine: &mut Engine, priority: i64| {
        let params = SamplingParams { priority, ..greedy(1) };
        let Err(Error::Request(refusal)) = engine.add(vec![1], params) else { panic!("{priority} is not refused") };
        assert_eq!(refusal.field, Some("priority"));
        refusal.why
    };
    let mut plain = engine(config(10, 4));
    assert!(refused(&mut plain, 1).contains("first come"));
    assert!(plain.add(vec![1], greedy(1)).is_ok());
    let policy = SchedulingPolicy::Priority;
    let scheduler = SchedulerOptions { policy, min_priority: Some(-2), ..scheduler_options() };
    let mut capped = engine(EngineConfig { scheduler, ..config(10, 4) });
    assert!(refused(&mut capped, -3).contains("at least -2"));
    for priority in [-2, 0, i64::MAX] {
        add(&mut capped, priority, 3, 1);
    }
    let mut open = urgent_engine(10, 4, 1);
    for priority in [i64::MIN, i64::MAX] {
        add(&mut open, priority, 3, 1);
    }
    for mut engine in [capped, open] {
        (0..9).for_each(|_| drop(step(&mut engine)));
        assert!(!engine.has_work());
    }
}

/// Serves a schedule. Returns what each step admitted and computed.
fn steps(requests: &[Request], setup: &Setup) -> Vec<(Vec<RequestId>, usize, usize)> {
    let mut engine = engine(setup.config(requests));
    let owners: Vec<OwnerId> = (0..OWNERS).map(|_| engine.new_owner()).collect();
    let (mut ids, mut cut) = (BTreeMap::new(), Default::default());
    let mut all = Vec::new();
    while all.len() < 60 || engine.has_work() {
        arrive(&mut engine, all.len(), requests, &owners, &mut ids);
        cut_short(&mut engine, all.len(), requests, &ids, &BTreeMap::new(), &mut cut);
        step(&mut engine);
        all.push((engine.admitted().to_vec(), engine.stats().computed_tokens, engine.stats().preemptions));
    }
    all
}

proptest! {
    #![proptest_config(schedules::cases(200))]

    #[test]
    fn without_different_priorities_requests_are_served_as_first_come_first_served(
        requests in prop::collection::vec(request(), 1..12),
        setup in setup(),
        (priority, ageing) in (-1..2i64, 0..4usize),
    ) {
        let with = |priorities, priority| {
            let requests: Vec<_> = requests.iter().map(|r| Request { priority, ..r.clone() }).collect();
            steps(&requests, &Setup { priorities, ..setup.clone() })
        };
        prop_assert_eq!(with(Some(ageing), priority), with(None, 0));
    }
}

/// More steps than a request runs: it needs six, or more if it is preempted.
const SERVICE: usize = 24;

proptest! {
    #![proptest_config(schedules::cases(100))]

    /// However many requests come later, one that has come waits only for those that came before, and for a turn of its
    /// priority and of each request of its priority that came before.
    #[test]
    fn no_request_waits_for_ever(
        arrivals in prop::collection::vec(prop::collection::vec((0..5i64, 1..20usize, 1..6usize), 0..3), 60),
        (rows, num_blocks, ageing) in (1..5usize, 8..30usize, 1..6usize),
    ) {
        let mut engine = urgent_engine(num_blocks, rows, ageing);
        let mut left: VecDeque<(RequestId, i64, usize)> = VecDeque::new();
        let (mut came, mut before) = (0, [0; 5]);
        for at in 0.. {
            for &(priority, len, max_tokens) in &arrivals[at % arrivals.len()] {
                let id = add(&mut engine, priority, len, max_tokens);
                if at < 15 {
                    came += 1;
                    before[priority as usize] += 1;
                    left.push_back((id, priority, at + before[priority as usize] * 5 * ageing + came * SERVICE));
                }
            }
            let done = step(&mut engine);
            left.retain(|(id, ..)| !done.contains_key(id));
            if left.is_empty() && at >= 15 {
                break;
            }
            let late = left.iter().find(|(.., latest)| at > *latest);
            prop_assert!(late.is_none(), "{:?} is not done in step {}", late, at);
        }
    }
}
