//! Fairness between owners: how much one owner may use while others wait, and how long the others wait at most.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use engine::tools::engine::{Engine, EngineConfig, Finished};
use engine::tools::group::{OwnerId, RequestId};
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::tools::scheduler::{Preemption, SchedulerOptions};
use engine::tools::sequence::Output;
use oracle::{VOCAB, config, engine, scheduler_options};
use proptest::prelude::*;

/// Rows per step.
const ROWS: usize = 16;
/// Tokens per output of a giant, an owner with very many outputs.
const LONG: usize = 40;
/// Owners in random schedules.
const OWNERS: usize = 5;
/// Tokens per output of a small request.
const SHORT: usize = 3;
/// Tokens of a prompt in random schedules, at most.
const PROMPT: usize = 24;

fn roomy() -> EngineConfig {
    EngineConfig {
        scheduler: SchedulerOptions { max_num_seqs: ROWS, max_request_share: 0.5, ..scheduler_options() },
        ..config(1000, 4)
    }
}

fn prompt(seed: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| 1 + ((seed * 7 + i * i + i) % (VOCAB as usize - 1)) as u32).collect()
}

fn sampled(n: usize, max_tokens: usize) -> SamplingParams {
    SamplingParams {
        n,
        best_of: n,
        max_tokens,
        temperature: 1.0,
        seed: Some(3),
        ignore_eos: true,
        ..Default::default()
    }
}

fn beams(width: usize, max_tokens: usize) -> SamplingParams {
    let beam = Some(Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::No });
    SamplingParams { n: width, best_of: width, max_tokens, ignore_eos: true, beam, ..Default::default() }
}

/// Queues `prompts` prompts with `n` outputs each for one owner.
fn add_giant(engine: &mut Engine, prompts: usize, n: usize) -> OwnerId {
    let owner = engine.new_owner();
    for i in 0..prompts {
        engine.add_for(owner, prompt(i, 9), sampled(n, LONG)).unwrap();
    }
    owner
}

fn add_small(engine: &mut Engine) -> RequestId {
    engine.add(prompt(5, 6), sampled(1, SHORT)).unwrap()
}

fn step(engine: &mut Engine) -> Vec<Finished> {
    let done = engine.step().unwrap().finished;
    assert_eq!(engine.scheduler().check_integrity(), Ok(()));
    done
}

/// The rows that an owner uses.
fn rows(engine: &Engine, owner: OwnerId) -> usize {
    engine.scheduler().running().iter().filter(|g| g.owner == owner).map(|g| g.running.len()).sum()
}

fn is_in_progress(engine: &Engine, owner: OwnerId) -> bool {
    engine.scheduler().running().iter().chain(engine.scheduler().waiting()).any(|g| g.owner == owner)
}

fn outputs_alone(prompt: Vec<u32>, params: SamplingParams) -> Vec<Output> {
    let mut engine = engine(config(1000, 4));
    engine.add(prompt, params).unwrap();
    loop {
        if let Some(done) = step(&mut engine).pop() {
            return done.outputs;
        }
    }
}

#[test]
fn a_small_request_behind_a_giant_runs_in_the_next_step() {
    for (n, preemption, prefix_caching) in [
        (1, Preemption::Auto, true),
        (8, Preemption::Auto, true),
        (16, Preemption::Swap, false),
        (16, Preemption::Recompute, false),
        (5, Preemption::Swap, true),
    ] {
        let mut engine = engine(EngineConfig {
            scheduler: SchedulerOptions { preemption, prefix_caching, ..roomy().scheduler },
            ..roomy()
        });
        let giant = add_giant(&mut engine, 40, n);
        let mut answered = BTreeMap::new();
        for at in 0.. {
            // Small requests arrive before the fourth step, and then again and again until the giant is done.
            let small = (at % 7 == 3 && is_in_progress(&engine, giant)).then(|| add_small(&mut engine));
            let done = step(&mut engine);
            if let Some(small) = small {
                assert!(engine.admitted().contains(&small), "{n} outputs a prompt, step {at}");
                let mut rest = done;
                for _ in 1..SHORT {
                    assert!(rest.iter().all(|done| done.id != small));
                    rest.extend(step(&mut engine));
                }
                assert!(rest.iter().any(|done| done.id == small), "three tokens take three steps");
                answered.extend(rest.into_iter().map(|done| (done.id, done.outputs)));
            } else {
                answered.extend(done.into_iter().map(|done| (done.id, done.outputs)));
            }
            if !engine.has_work() {
                break;
            }
        }
        for i in 0..40 {
            assert_eq!(answered[&(i as RequestId)], outputs_alone(prompt(i, 9), sampled(n, LONG)));
        }
    }
}

#[test]
fn several_small_requests_behind_a_giant_run_in_the_next_step() {
    // Eight rows are the giant's share. Newcomers get the others at once.
    for (n, small) in [(1, 8), (16, 8), (5, 3), (16, 12)] {
        let mut engine = engine(roomy());
        let giant = add_giant(&mut engine, 40, n);
        step(&mut engine);
        step(&mut engine);
        let added: Vec<RequestId> = (0..small).map(|_| add_small(&mut engine)).collect();
        step(&mut engine);
        let begun = added.iter().filter(|id| engine.admitted().contains(id)).count();
        assert_eq!(begun, small.min(ROWS / 2), "{n} outputs a prompt");
        assert!(rows(&engine, giant) >= ROWS / 2);
    }
}

#[test]
fn without_a_share_requests_are_served_in_order() {
    let mut engine =
        engine(EngineConfig { scheduler: SchedulerOptions { max_request_share: 1.0, ..roomy().scheduler }, ..roomy() });
    let owner = engine.new_owner();
    let giant: Vec<RequestId> =
        (0..40).map(|i| engine.add_for(owner, prompt(i, 9), sampled(8, LONG)).unwrap()).collect();
    let small = add_small(&mut engine);
    let mut order: Vec<RequestId> = Vec::new();
    while engine.has_work() {
        step(&mut engine);
        order.extend(engine.admitted());
    }
    assert_eq!(order, [giant, vec![small]].concat());
}

#[test]
fn small_requests_run_behind_several_giants() {
    let mut engine = engine(roomy());
    // Lists of prompts with one output or many each, and one request for many outputs.
    let giants = [(60, 1), (20, 12), (60, 1), (1, 16), (30, 5)].map(|(prompts, n)| add_giant(&mut engine, prompts, n));
    let (mut waiting, mut at_once) = (BTreeMap::new(), 0);
    for at in 0.. {
        let wants_more = |giant: &OwnerId| engine.scheduler().waiting().any(|group| group.owner == *giant);
        // Giants that want more rows share theirs, which leaves room. But a giant that has all it wants may keep more
        // rows.
        let is_room = giants.iter().all(|giant| wants_more(giant) || rows(&engine, *giant) == 0);
        if at % 5 == 4 && giants.iter().any(|giant| is_in_progress(&engine, *giant)) {
            waiting.insert(add_small(&mut engine), (at, is_room));
        }
        step(&mut engine);
        for id in engine.admitted() {
            at_once += usize::from(waiting.remove(id).is_some_and(|(came, is_room)| came == at && is_room));
        }
        assert!(waiting.values().all(|&(came, is_room)| !is_room && at - came < LONG), "{waiting:?} at {at}");
        if !engine.has_work() {
            break;
        }
    }
    assert!(at_once > 50, "{at_once}");
}

#[test]
fn a_giant_gives_up_only_the_rows_that_are_needed() {
    for (n, taken) in [(1, 1), (3, 3), (12, 8)] {
        let mut engine = engine(roomy());
        let giant = add_giant(&mut engine, 2, 16);
        step(&mut engine);
        step(&mut engine);
        assert_eq!(rows(&engine, giant), ROWS, "no other owner waits");
        let other = engine.new_owner();
        engine.add_for(other, prompt(1, 9), sampled(n, SHORT)).unwrap();
        step(&mut engine);
        // In the last case both owners want more rows, so each has half.
        assert_eq!((rows(&engine, giant), rows(&engine, other)), (ROWS - taken, taken));
        while is_in_progress(&engine, other) {
            step(&mut engine);
        }
        step(&mut engine);
        assert_eq!(rows(&engine, giant), ROWS, "the giant gets its rows back");
    }
}

#[test]
fn owners_who_want_more_than_they_have_divide_the_share() {
    let mut engine = engine(roomy());
    let giants = [(); 3].map(|()| add_giant(&mut engine, 100, 1));
    // The first giant has all rows until the others arrive.
    for _ in 0..2 * LONG + LONG / 2 {
        step(&mut engine);
    }
    let mut used = giants.map(|giant| rows(&engine, giant));
    used.sort_unstable();
    assert_eq!(used, [5, 5, 6]);
}

#[test]
fn beams_are_admitted_whole_and_in_order() {
    let mut engine = engine(roomy());
    let giant = add_giant(&mut engine, 20, 6);
    for _ in 0..3 {
        step(&mut engine);
    }
    let wide = engine.add(prompt(2, 9), beams(12, LONG)).unwrap();
    let small = add_small(&mut engine);
    let mut steps = 0;
    while !engine.admitted().contains(&wide) {
        assert!(!engine.admitted().contains(&small));
        step(&mut engine);
        steps += 1;
    }
    // The giant keeps its half until its running outputs end.
    assert!(steps > 1 && steps <= LONG && rows(&engine, giant) <= 4, "{steps}");
    let begun = engine.scheduler().running().iter().find(|g| g.id == wide).unwrap();
    assert_eq!(begun.width(), 12);
    while engine.has_work() {
        step(&mut engine);
    }
}

#[test]
fn a_giant_progresses_among_many_small_requests() {
    // Two small requests arrive before every step until the giant is done. With three tokens each they can fill six of
    // eight rows, and with ten tokens more than all rows.
    for max_tokens in [SHORT, 10] {
        let mut engine =
            engine(EngineConfig { scheduler: SchedulerOptions { max_num_seqs: 8, ..roomy().scheduler }, ..roomy() });
        let giant = add_giant(&mut engine, 20, 2);
        let mut steps = 0;
        while is_in_progress(&engine, giant) {
            for _ in 0..2 {
                engine.add(prompt(5, 6), sampled(1, max_tokens)).unwrap();
            }
            step(&mut engine);
            steps += 1;
            // The giant has four rows, half of all, for forty outputs.
            assert!(steps <= 10 * LONG + 10, "the giant starves");
        }
    }
}

#[test]
fn blocks_beyond_an_owners_share_are_given_up_first() {
    for (preemption, prefix_caching) in [(Preemption::Swap, false), (Preemption::Recompute, true)] {
        // At their end the giant's outputs need 3 + 16 * 10 blocks, nearly three times as many as there are.
        let mut engine = engine(EngineConfig {
            swap_blocks: 60,
            num_blocks: 60,
            scheduler: SchedulerOptions { preemption, prefix_caching, ..roomy().scheduler },
            ..roomy()
        });
        let giant = add_giant(&mut engine, 2, 15);
        for _ in 0..8 {
            step(&mut engine);
        }
        let other = engine.new_owner();
        let id = engine.add_for(other, prompt(4, 9), sampled(1, LONG)).unwrap();
        let mut steps = 0;
        loop {
            let done = step(&mut engine);
            steps += 1;
            if let Some(done) = done.into_iter().find(|done| done.id == id) {
                assert_eq!(done.outputs, outputs_alone(prompt(4, 9), sampled(1, LONG)));
                break;
            }
            assert_eq!(rows(&engine, other), 1, "it is never preempted, though it came last");
        }
        assert_eq!(steps, LONG, "it never waits");
        assert!(engine.stats().preemptions > 0 && is_in_progress(&engine, giant));
        while engine.has_work() {
            step(&mut engine);
        }
    }
}

/// A random request, which arrives before a step.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    step: usize,
    owner: usize,
    prompt: usize,
    n: usize,
    max_tokens: usize,
    search: bool,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let arrival = (0..80usize, 0..OWNERS, 1..=PROMPT, 1..9usize, 1..LONG, prop::bool::weighted(0.1));
    let arrival = arrival.prop_map(|(step, owner, prompt, n, max_tokens, search)| Arrival {
        step,
        owner,
        prompt,
        n,
        max_tokens,
        search,
    });
    prop::collection::vec(arrival, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Bounds the wait of a newly arrived owner, whatever the memory, the prompts and the other requests. It waits for the
    /// groups that are admitted, for the owners that came before it, and for one turn of another owner after each of these.
    /// Owners are admitted in the order of their arrival. Every group takes at most as many steps as it takes alone,
    /// because the first group always progresses.
    #[test]
    fn no_owner_starves(
        requests in arrivals(),
        (spare, preemption, share) in (0..40usize, 0..3usize, 0.05..1.0),
    ) {
        let preemption = [Preemption::Auto, Preemption::Swap, Preemption::Recompute][preemption];
        // All beams of the widest search fit, with little to spare.
        let num_blocks = 2 + PROMPT / 4 + 8 * 11 + spare;
        let mut engine =
            engine(EngineConfig { num_blocks, swap_blocks: 20, scheduler: SchedulerOptions { preemption, max_request_share: share, ..roomy().scheduler }, ..roomy() });
        let owners: Vec<OwnerId> = (0..OWNERS).map(|_| engine.new_owner()).collect();
        let (mut waiting, mut in_progress, mut answered) = (BTreeMap::new(), BTreeSet::new(), 0);
        // Requests of owners who had nothing in progress, in the order in which they came.
        let mut newcomers = VecDeque::new();
        for at in 0.. {
            for &Arrival { owner, prompt: len, n, max_tokens, search, .. } in requests.iter().filter(|r| r.step == at) {
                let params = if search { beams(n, max_tokens) } else { sampled(n, max_tokens) };
                let is_newcomer = !is_in_progress(&engine, owners[owner]);
                let waits: BTreeSet<OwnerId> = engine.scheduler().waiting().map(|group| group.owner).collect();
                let id = engine.add_for(owners[owner], prompt(n, len), params).unwrap();
                if is_newcomer {
                    newcomers.push_back(id);
                    let groups = in_progress.len() + 2 * (waits.len() + 1);
                    waiting.insert(id, at + groups * (LONG + 1));
                }
            }
            for done in step(&mut engine) {
                in_progress.remove(&done.id);
                answered += 1;
            }
            for id in engine.admitted() {
                prop_assert!(!newcomers.iter().skip(1).any(|other| other == id), "{} before {:?}", id, newcomers);
                newcomers.pop_front_if(|first| first == id);
                waiting.remove(id);
                in_progress.extend(engine.scheduler().contains(*id).then_some(*id));
            }
            prop_assert!(waiting.values().all(|last| at < *last), "{:?} at {}", waiting, at);
            if at > 80 && !engine.has_work() {
                break;
            }
        }
        prop_assert_eq!(answered, requests.len());
    }
}
