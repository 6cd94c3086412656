//! Random schedules on workers that each have some of the heads. The outputs are the same as with one worker, and a
//! failing worker never leaves the others waiting.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod heads;
mod oracle;
mod schedules;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use engine::tools::engine::Engine;
use engine::tools::group::{OwnerId, RequestId};
use engine::tools::kv::CacheGroup;
use heads::{Failure, Point, engine};
use oracle::config;
use proptest::prelude::*;
use schedules::{
    Answer, OWNERS, Request, Setup, alone, answer, arrive, constrained_request, cut_short, setup, without_adapters,
};

/// The time after which a case counts as a deadlock. Cases take milliseconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `case` in a thread of its own and returns its result. Panics if it does not end in time.
fn watched<T: Send + 'static>(case: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = channel();
    let thread = thread::spawn(move || sender.send(case()));
    match result.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("the workers are deadlocked"),
        Err(RecvTimeoutError::Disconnected) => resume_unwind(thread.join().unwrap_err()),
    }
}

/// Loads an engine, and returns it with its pinned prefixes and owners. `None` if a worker failed while the prefixes were
/// pinned.
fn load(
    requests: &[Request],
    setup: &Setup,
    of: usize,
    failure: Option<Failure>,
    alive: &Arc<()>,
) -> Option<(Engine, Vec<OwnerId>)> {
    let mut engine = engine(setup.config(requests), of, failure, alive);
    let pin = || setup.pinned.iter().try_for_each(|prefix| engine.pin_prefix(prefix.tokens()));
    // A worker may fail while a prefix is pinned. Then there is no engine.
    let is_pinned = catch_unwind(AssertUnwindSafe(pin)).is_ok_and(|pinned| pinned.is_ok());
    is_pinned.then(|| {
        let owners = (0..OWNERS).map(|_| engine.new_owner()).collect();
        (engine, owners)
    })
}

/// Waits until all workers have ended.
fn wait_for_workers_to_end(alive: &Arc<()>) {
    while Arc::strong_count(alive) > 1 {
        thread::yield_now();
    }
}

/// Answers all requests on `of` workers. A worker fails in each of the first engines, and the next engine gets the
/// requests that are unanswered. Requests that are cut have no answer.
fn serve(
    requests: &[Request],
    setup: &Setup,
    of: usize,
    failures: Vec<Failure>,
) -> Result<BTreeMap<usize, Answer>, TestCaseError> {
    let alive = Arc::new(());
    let mut failures = failures.into_iter();
    let mut next = || loop {
        if let Some(loaded) = load(requests, setup, of, failures.next(), &alive) {
            return loaded;
        }
        wait_for_workers_to_end(&alive);
    };
    let (mut engine, mut owners) = next();
    let mut pinned = engine.scheduler().usage().used_blocks;
    let mut ids: BTreeMap<RequestId, usize> = BTreeMap::new();
    let (mut outputs, mut cut) = (BTreeMap::new(), BTreeSet::new());
    for step in 0.. {
        arrive(&mut engine, step, requests, &owners, &mut ids);
        cut_short(&mut engine, step, requests, &ids, &outputs, &mut cut);
        let result = catch_unwind(AssertUnwindSafe(|| engine.step()));
        if let Ok(Ok(output)) = result {
            outputs.extend(output.finished.into_iter().filter_map(|done| Some((ids.remove(&done.id)?, answer(done)))));
            prop_assert_eq!(engine.scheduler().check_integrity(), Ok(()));
        } else {
            if result.is_ok() {
                // The engine reported an error without a panic, so the running requests' blocks are free again.
                prop_assert_eq!(engine.scheduler().check_integrity(), Ok(()));
                prop_assert_eq!(engine.scheduler().usage().used_blocks, pinned);
            }
            // Another step may fail again, but must end.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(engine.step())));
            drop(engine);
            wait_for_workers_to_end(&alive);
            (engine, owners) = next();
            pinned = engine.scheduler().usage().used_blocks;
            let again = |i: usize| {
                let r = &requests[i];
                (engine.add_for(owners[r.owner], r.prompt.clone(), r.params.clone()).unwrap(), i)
            };
            ids = ids.into_values().filter(|i| !cut.contains(i)).map(again).collect();
        }
        if step > 60 && !engine.has_work() {
            break;
        }
        prop_assert!(step < 20_000, "no progress");
    }
    prop_assert!(ids.values().all(|i| cut.contains(i)), "a request was lost");
    prop_assert_eq!(engine.scheduler().usage().used_blocks, pinned, "all others are free or cached");
    prop_assert_eq!(engine.scheduler().swap_usage().used_blocks, 0);
    drop(engine);
    wait_for_workers_to_end(&alive);
    outputs.retain(|i, _| !cut.contains(i));
    prop_assert_eq!(outputs.len() + cut.len(), requests.len());
    Ok(outputs)
}

/// Checks that each request has the same answer as alone on one worker with all heads.
fn check(requests: &[Request], groups: &[CacheGroup], outputs: BTreeMap<usize, Answer>) -> Result<(), TestCaseError> {
    for (i, got) in outputs {
        let config = engine::tools::engine::EngineConfig { groups: groups.to_vec(), ..config(100, 16) };
        prop_assert_eq!(got, alone(engine(config, 1, None, &Arc::new(())), &requests[i]));
    }
    Ok(())
}

fn failure() -> impl Strategy<Value = Failure> {
    let point = prop_oneof![Just(Point::Moves), Just(Point::Layer), Just(Point::Sample)];
    (0..4usize, 0..40usize, point).prop_map(|(worker, steps, point)| Failure { worker, steps, point })
}

proptest! {
    #![proptest_config(schedules::cases(150))]

    #[test]
    fn outputs_of_workers_match_those_of_one_worker_alone(
        requests in prop::collection::vec(constrained_request(), 1..12),
        setup in setup(),
        of in prop_oneof![Just(1usize), Just(2), Just(4)],
    ) {
        // The workers' model has no adapters.
        let requests = without_adapters(requests);
        watched(move || {
            let outputs = serve(&requests, &setup, of, Vec::new())?;
            check(&requests, &setup.groups, outputs)
        })?;
    }

    #[test]
    fn a_failing_worker_costs_only_its_step(
        requests in prop::collection::vec(constrained_request(), 1..12),
        setup in setup(),
        of in prop_oneof![Just(1usize), Just(2), Just(4)],
        failures in prop::collection::vec(failure(), 1..4),
    ) {
        // The workers' model has no adapters.
        let requests = without_adapters(requests);
        watched(move || {
            let outputs = serve(&requests, &setup, of, failures)?;
            check(&requests, &setup.groups, outputs)
        })?;
    }
}
