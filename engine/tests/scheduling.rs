//! Properties of the engine over random schedules, checked against an oracle.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod follower;
mod oracle;
mod schedules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use engine::tools::adapter::AdapterHandle;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::group::{OwnerId, RequestId};
use engine::tools::kv::{CacheChanges, Place, Prefix, PrefixId, Space};
use follower::Follower;
use oracle::{Kept, Memory, Oracle, config, contiguous, mark, marked};
use proptest::prelude::*;
use schedules::{Answer, OWNERS, Request, Setup, alone, answer, arrive, constrained_request, cut_short, setup};

/// An engine over the oracle, with the oracle's memory and the cache changes recorded since the first pinned prefix.
fn engine(
    requests: &[Request],
    s: &Setup,
    boundary: Option<usize>,
) -> (Engine, Arc<Mutex<Memory>>, Arc<Mutex<CacheChanges>>) {
    let config = EngineConfig { boundary, ..s.config(requests) };
    let oracle = Oracle::new(&config);
    let memory = oracle.memory();
    let mut engine = Engine::new(config, oracle);
    let changes = Arc::new(Mutex::new(CacheChanges::default()));
    engine.set_log(changes.clone());
    for prefix in &s.pinned {
        engine.pin_prefix(prefix.tokens()).unwrap();
    }
    (engine, memory, changes)
}

/// Checks that each sequence's block table leads to the values that the sequence would have in contiguous memory of its
/// own.
fn check_memory(engine: &Engine, memory: &Mutex<Memory>) -> Result<(), TestCaseError> {
    let memory = memory.lock().unwrap();
    let scheduler = engine.scheduler();
    let waiting = scheduler.waiting().map(|g| (g, true));
    for (group, swapped) in scheduler.running().iter().map(|g| (g, false)).chain(waiting) {
        for seq in &group.running {
            let adapter = group.params.adapter.as_ref().map(AdapterHandle::digest);
            let tokens = marked(&seq.tokens[..seq.table.len()], mark(seq.table.is_long(), adapter));
            let kept = contiguous(&tokens, &engine.config().groups);
            for (lane, kept) in kept.into_iter().enumerate().filter(|_| !seq.table.is_empty()) {
                if engine.config().groups[lane].is_state() {
                    for (tokens, state) in memory.states(&seq.table, lane, swapped) {
                        prop_assert_eq!(state, Some(kept[tokens - 1]), "request {}", group.id);
                    }
                    continue;
                }
                let own: Vec<_> = kept.into_iter().map(Some).collect();
                let stored = memory.read(&seq.table, lane, swapped);
                prop_assert_eq!(&stored[..], &own[own.len() - stored.len()..], "request {}", group.id);
            }
            prop_assert!(seq.table.has_window_of(seq.table.len()));
        }
    }
    Ok(())
}

/// A place and the blocks that are registered there.
type Registered = (Place, Vec<(u32, Arc<Prefix>)>);

/// The expected contents of all prefixes that were ever registered.
#[derive(Default)]
struct RegisteredTexts {
    tokens: BTreeMap<PrefixId, Vec<u32>>,
    /// The contents of the last block, for each group.
    kept: BTreeMap<PrefixId, Vec<Vec<Option<Kept>>>>,
    salts: BTreeMap<PrefixId, Option<Arc<str>>>,
}

impl RegisteredTexts {
    /// Checks that every registered block, in use or cached, in the cache or in the swap space, has the contents that
    /// its tokens would have in contiguous memory.
    fn check(&mut self, engine: &Engine, memory: &Mutex<Memory>) -> Result<(), TestCaseError> {
        let (memory, config) = (memory.lock().unwrap(), engine.config());
        let groups = 0..config.groups.len();
        let spaces = [Space::Cache, Space::Swap];
        let places = spaces.into_iter().flat_map(|space| groups.clone().map(move |group| Place { space, group }));
        let registered: Vec<_> = places.map(|place| (place, engine.scheduler().registered_blocks(place))).collect();
        // A parent has the lower id, so it comes first.
        let new: BTreeMap<_, _> =
            registered.iter().flat_map(|(_, blocks)| blocks).map(|(_, p)| (p.id(), p.clone())).collect();
        for (id, prefix) in new {
            let salt = prefix.parent().map_or_else(|| prefix.salt().cloned(), |parent| self.salts[&parent].clone());
            self.salts.insert(id, salt);
            let before = prefix.parent().map(|parent| self.tokens.get(&parent).cloned().unwrap());
            let tokens = [before.unwrap_or_default(), prefix.tokens().to_vec()].concat();
            if !self.tokens.contains_key(&id) {
                let last = |(group, kept): (usize, Vec<Kept>)| match config.groups[group].is_state() {
                    true => vec![kept.last().copied(); config.block_size],
                    false => kept[kept.len() - config.block_size..].iter().copied().map(Some).collect(),
                };
                let mark = mark(false, prefix.adapter().map(|adapter| &adapter.digest));
                let kept =
                    contiguous(&marked(&tokens, mark), &config.groups).into_iter().enumerate().map(last).collect();
                self.kept.insert(id, kept);
                self.tokens.insert(id, tokens);
            }
        }
        for (place, block, prefix) in
            registered.iter().flat_map(|(place, blocks)| blocks.iter().map(|(b, p)| (*place, *b, p)))
        {
            let contents = memory.block(place, block);
            prop_assert_eq!(&contents, &self.kept[&prefix.id()][place.group], "block {} of {:?}", block, place);
        }
        self.check_salts(engine, &registered)
    }

    /// Checks that requests have only registered blocks with their own salt.
    fn check_salts(&self, engine: &Engine, registered: &[Registered]) -> Result<(), TestCaseError> {
        let blocks = registered.iter().filter(|(place, _)| place.space == Space::Cache);
        let salts: BTreeMap<(usize, u32), &Option<Arc<str>>> = blocks
            .flat_map(|(place, blocks)| blocks.iter().map(|(block, p)| ((place.group, *block), &self.salts[&p.id()])))
            .collect();
        for group in engine.scheduler().running() {
            for (at, lane) in group.tables().flat_map(|table| table.lanes().iter().enumerate()) {
                for salt in lane.present().filter_map(|block| salts.get(&(at, block))) {
                    prop_assert_eq!(*salt, &group.params.cache_salt, "request {}", group.id);
                }
            }
        }
        Ok(())
    }
}

/// Serves the requests in one engine and compares the outputs with each request's outputs alone.
fn check_schedule(requests: &[Request], setup: &Setup, boundary: Option<usize>) -> Result<(), TestCaseError> {
    let widest = requests.iter().map(|r| r.params.width()).max().unwrap();
    let (mut engine, memory, changes) = engine(requests, setup, boundary);
    let mut follower = Follower::default();
    let pinned = engine.scheduler().usage().used_blocks;
    let owners: Vec<OwnerId> = (0..OWNERS).map(|_| engine.new_owner()).collect();
    let mut ids: BTreeMap<RequestId, usize> = BTreeMap::new();
    let mut outputs: BTreeMap<usize, Answer> = BTreeMap::new();
    let mut cut = BTreeSet::new();
    let mut texts = RegisteredTexts::default();
    for step in 0.. {
        arrive(&mut engine, step, requests, &owners, &mut ids);
        cut_short(&mut engine, step, requests, &ids, &outputs, &mut cut);
        let seqs = |e: &Engine| e.scheduler().running().iter().map(|g| g.running.len()).sum::<usize>();
        let (decoding, computed) = (seqs(&engine), engine.stats().computed_tokens);
        for done in engine.step().unwrap().finished {
            outputs.insert(ids[&done.id], answer(done));
        }
        // A group that returns from the swap space to an empty engine keeps decoding, however wide it is.
        let most = decoding.max(setup.max_batch_tokens).max(widest);
        prop_assert!(engine.stats().computed_tokens - computed <= most);
        prop_assert!(seqs(&engine) <= setup.max_num_seqs);
        prop_assert_eq!(engine.scheduler().check_integrity(), Ok(()));
        check_memory(&engine, &memory)?;
        if boundary.is_none() {
            // The hash of a long prefix does not depend on its tokens alone.
            texts.check(&engine, &memory)?;
            follower.follow(changes.lock().unwrap().take());
            prop_assert_eq!(follower.check(&engine), Ok(()));
        }
        if step > 60 && !engine.has_work() {
            break;
        }
        prop_assert!(step < 20_000, "no progress");
    }
    prop_assert_eq!(outputs.len(), requests.len(), "a request was lost");
    prop_assert_eq!(engine.scheduler().usage().used_blocks, pinned, "all others are free or cached");
    prop_assert_eq!(engine.scheduler().swap_usage().used_blocks, 0);
    prop_assert_eq!(engine.stats().exhausted, 0);
    for (i, got) in outputs.into_iter().filter(|(i, _)| !cut.contains(i)) {
        let roomy = EngineConfig { groups: setup.groups.clone(), boundary, ..config(200, 16) };
        prop_assert_eq!(got, alone(oracle::engine(roomy), &requests[i]));
    }
    Ok(())
}

proptest! {
    #![proptest_config(schedules::cases(1000))]

    #[test]
    fn every_request_in_a_schedule_has_the_same_outputs_as_alone(
        requests in prop::collection::vec(constrained_request(), 1..12),
        setup in setup(),
    ) {
        check_schedule(&requests, &setup, None)?;
    }
}

proptest! {
    #![proptest_config(schedules::cases(500))]

    #[test]
    fn sequences_that_become_long_are_computed_again(
        requests in prop::collection::vec(constrained_request(), 1..12),
        setup in setup(),
        boundary in 1..50usize,
    ) {
        check_schedule(&requests, &setup, Some(boundary))?;
    }
}
