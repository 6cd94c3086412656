//! Salts: requests share cached blocks only with requests of the same salt.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod oracle;

use std::sync::{Arc, Mutex};

use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::kv::{CacheChange, CacheChanges};
use engine::tools::sampling::SamplingParams;
use engine::tools::scheduler::SchedulerOptions;
use oracle::{VOCAB, config, engine, finish, greedy, scheduler_options};

const BLOCK: usize = 4;

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| 1 + (i * i + i / 7) % (VOCAB - 1)).collect()
}

/// Serves a request of 23 tokens. Returns the number of its cached tokens.
fn cached(engine: &mut Engine, salt: Option<&str>) -> usize {
    let params = SamplingParams { cache_salt: salt.map(Arc::from), ..greedy(3) };
    engine.add(prompt(23), params).unwrap();
    finish(engine).remove(0).cached_tokens
}

#[test]
fn a_request_finds_only_blocks_with_its_salt() {
    let mut engine = engine(config(100, BLOCK));
    for salt in [None, Some("a"), Some("b"), Some("aa")] {
        assert_eq!(cached(&mut engine, salt), 0, "{salt:?}");
        assert_eq!(cached(&mut engine, salt), 20, "{salt:?}");
    }
    assert_eq!(cached(&mut engine, None), 20);
}

/// The first token of such a prompt is also its last.
#[test]
fn the_answer_to_a_prompt_of_one_token_has_its_salt() {
    let mut engine = engine(config(100, BLOCK));
    let long = SamplingParams { ignore_eos: true, ..greedy(14) };
    engine.add(vec![3], SamplingParams { cache_salt: Some("a".into()), ..long }).unwrap();
    let answer = finish(&mut engine).remove(0).outputs.remove(0).tokens;
    let text = [vec![3], answer].concat();
    let cached = [None, Some("b"), Some("a")].map(|salt| {
        let params = SamplingParams { cache_salt: salt.map(Arc::from), ..greedy(1) };
        engine.add(text.clone(), params).unwrap();
        finish(&mut engine).remove(0).cached_tokens
    });
    assert_eq!(cached, [0, 0, 12]);
}

#[test]
fn evicted_blocks_come_back_with_their_salt() {
    let scheduler = SchedulerOptions { prefix_caching: true, ..scheduler_options() };
    let mut engine = engine(EngineConfig { scheduler, swap_blocks: 50, ..config(8, BLOCK) });
    for salt in [Some("a"), Some("b"), None] {
        assert_eq!(cached(&mut engine, salt), 0, "{salt:?}");
    }
    for salt in [Some("a"), Some("b"), None] {
        assert_eq!(cached(&mut engine, salt), 20, "{salt:?}");
    }
    assert!(engine.stats().restored_blocks > 0);
}

#[test]
fn a_pinned_prefix_is_for_requests_without_a_salt() {
    let mut engine = engine(config(12, BLOCK));
    engine.pin_prefix(prompt(18)).unwrap();
    assert_eq!(cached(&mut engine, None), 18);
    assert_eq!([cached(&mut engine, Some("a")), cached(&mut engine, Some("a"))], [0, 20]);
    // A salted request must fit next to the pinned blocks.
    let salted = SamplingParams { cache_salt: Some("a".into()), ..greedy(1) };
    assert!(engine.add(prompt(30), greedy(1)).is_ok());
    assert!(engine.add(prompt(30), salted).is_err());
    finish(&mut engine);
}

/// The changes that requests without a salt make do not depend on salted ones.
#[test]
fn hashes_without_a_salt_stay_the_same() {
    let stored = |salts: &[Option<&str>]| {
        let mut engine = engine(config(100, BLOCK));
        let changes = Arc::new(Mutex::new(CacheChanges::default()));
        engine.set_log(changes.clone());
        for salt in salts {
            cached(&mut engine, *salt);
        }
        let stored = changes.lock().unwrap().take();
        let hash = |change: CacheChange| match change {
            CacheChange::Stored(_, prefix) => (prefix.id().hash(), prefix.salt().map(ToString::to_string)),
            CacheChange::Removed(..) => panic!("nothing is evicted"),
        };
        stored.into_iter().map(hash).collect::<Vec<_>>()
    };
    let plain = stored(&[None]);
    let both = stored(&[Some("a"), None]);
    let (salted, rest) = both.split_at(plain.len());
    assert_eq!(rest, plain);
    assert!(salted.iter().zip(&plain).all(|(salted, plain)| salted.0 != plain.0));
    let salts: Vec<_> = salted.iter().map(|(_, salt)| salt.as_deref()).collect();
    assert_eq!(salts, [vec![Some("a")], vec![None; plain.len() - 1]].concat(), "only the first block tells its salt");
}
