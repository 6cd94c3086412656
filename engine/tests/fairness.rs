//! Fairness between owners: what an owner has while others wait, and how long these wait at most.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use engine::engine::{Engine, EngineConfig, Finished};
use engine::group::{OwnerId, RequestId};
use engine::sampling::{Beam, EarlyStopping, SamplingParams};
use engine::scheduler::{Preemption, SchedulerOptions};
use engine::sequence::Output;
use oracle::{VOCAB, config, engine, scheduler_options};
use proptest::prelude::*;

/// Rows of a step.
const ROWS: usize = 16;
/// Tokens of an output of a giant.
const LONG: usize = 40;
/// Owners in random schedules.
const OWNERS: usize = 5;
/// Tokens of an output of a small request.
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

/// The rows that an owner has.
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
fn behind_a_giant_a_small_request_runs_in_the_next_step() {
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
            // The small ones come before the fourth step, and then again and again until the giant is done.
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
fn behind_a_giant_several_small_requests_run_in_the_next_step() {
    // Eight rows are the share of the giant; the others are for newcomers, at once.
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
fn without_a_share_it_is_first_come_first_served() {
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
fn behind_several_giants_too() {
    let mut engine = engine(roomy());
    // Lists of prompts with one output each, and with many; and a request for many outputs.
    let giants = [(60, 1), (20, 12), (60, 1), (1, 16), (30, 5)].map(|(prompts, n)| add_giant(&mut engine, prompts, n));
    let (mut waiting, mut at_once) = (BTreeMap::new(), 0);
    for at in 0.. {
        let wants_more = |giant: &OwnerId| engine.scheduler().waiting().any(|group| group.owner == *giant);
        // What giants who want more than they have hold together leaves room. Beside one who has all that it wants they
        // may have all rows.
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
fn no_more_is_taken_from_a_giant_than_is_needed() {
    for (n, taken) in [(1, 1), (3, 3), (12, 8)] {
        let mut engine = engine(roomy());
        let giant = add_giant(&mut engine, 2, 16);
        step(&mut engine);
        step(&mut engine);
        assert_eq!(rows(&engine, giant), ROWS, "nobody else waits");
        let other = engine.new_owner();
        engine.add_for(other, prompt(1, 9), sampled(n, SHORT)).unwrap();
        step(&mut engine);
        // Both wait for more in the last case, and have half of the rows each.
        assert_eq!((rows(&engine, giant), rows(&engine, other)), (ROWS - taken, taken));
        while is_in_progress(&engine, other) {
            step(&mut engine);
        }
        step(&mut engine);
        assert_eq!(rows(&engine, giant), ROWS, "what it gave up comes back");
    }
}

#[test]
fn owners_who_want_more_than_they_have_divide_the_share() {
    let mut engine = engine(roomy());
    let giants = [(); 3].map(|()| add_giant(&mut engine, 100, 1));
    // The first gets all rows until others come.
    for _ in 0..2 * LONG + LONG / 2 {
        step(&mut engine);
    }
    let mut held = giants.map(|giant| rows(&engine, giant));
    held.sort_unstable();
    assert_eq!(held, [5, 5, 6]);
}

#[test]
fn beams_are_admitted_whole_and_nobody_after_them_before() {
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
    // The giant keeps its half until what runs of it ends.
    assert!(steps > 1 && steps <= LONG && rows(&engine, giant) <= 4, "{steps}");
    let begun = engine.scheduler().running().iter().find(|g| g.id == wide).unwrap();
    assert_eq!(begun.width(), 12);
    while engine.has_work() {
        step(&mut engine);
    }
}

#[test]
fn a_giant_gets_on_however_many_small_requests_come() {
    // Two small requests come before every step, for as long as it takes: with three tokens each they can fill six rows of
    // eight, and with ten tokens all of them and more.
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
fn what_blocks_an_owner_has_beyond_its_share_is_given_up_first() {
    for (preemption, prefix_caching) in [(Preemption::Swap, false), (Preemption::Recompute, true)] {
        // The giant's outputs need 3 + 16 * 10 blocks at the end, three times what there is.
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
            assert_eq!(rows(&engine, other), 1, "it is never given up, though it came last");
        }
        assert_eq!(steps, LONG, "nor does it wait");
        assert!(engine.stats().preemptions > 0 && is_in_progress(&engine, giant));
        while engine.has_work() {
            step(&mut engine);
        }
    }
}

/// A request of some owner, which comes before some step.
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

    /// In whatever memory, with prompts of whatever length: an owner who comes waits for the groups that were admitted, for
    /// the owners who came before it, and for a turn of somebody else after each of these. Owners are admitted in the order
    /// in which they came. Every group takes at most as many steps as it takes alone, since the first of all always
    /// progresses.
    #[test]
    fn nobody_starves(
        requests in arrivals(),
        (spare, preemption, share) in (0..40usize, 0..3usize, 0.05..1.0),
    ) {
        let preemption = [Preemption::Auto, Preemption::Swap, Preemption::Recompute][preemption];
        // All beams of the widest search fit, and not much more.
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
