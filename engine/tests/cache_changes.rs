//! The cache changes that routers receive when steps fail. `scheduling.rs` tests them for steps that succeed.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod follower;
mod oracle;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use engine::Error;
use engine::SchedulerOptions;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::kv::{CacheChange, CacheChanges};
use follower::Follower;
use oracle::{Fails, VOCAB, config, greedy, scheduler_options};

fn prompt(start: u32) -> Vec<u32> {
    (0..20).map(|i| 1 + (start + i * i + i / 7) % (VOCAB - 1)).collect()
}

#[test]
fn a_failed_step_reports_only_removals() {
    let config =
        EngineConfig { scheduler: SchedulerOptions { prefix_caching: true, ..scheduler_options() }, ..config(60, 4) };
    let now = Arc::new(AtomicBool::new(false));
    let mut engine = Engine::new(config.clone(), Fails::when(now.clone(), &config));
    let changes = Arc::new(Mutex::new(CacheChanges::default()));
    engine.set_log(changes.clone());
    let take = || changes.lock().unwrap().take();
    let mut follower = Follower::default();
    engine.add(prompt(0), greedy(30)).unwrap();
    for _ in 0..3 {
        engine.step().unwrap();
        follower.follow(take());
        assert_eq!(follower.check(&engine), Ok(()));
    }
    assert!(follower.len() >= 5);

    // The failing step would compute another prompt, whose blocks are registered while it runs.
    engine.add(prompt(3), greedy(30)).unwrap();
    now.store(true, Relaxed);
    assert!(matches!(engine.step(), Err(Error::Memory(_))));
    let failed = take();
    assert_eq!(failed.len(), follower.len());
    assert!(failed.iter().all(|change| matches!(change, CacheChange::Removed(..))), "{failed:?}");
    follower.follow(failed);
    assert_eq!((follower.len(), follower.check(&engine)), (0, Ok(())));

    engine.add(prompt(3), greedy(30)).unwrap();
    while engine.has_work() {
        engine.step().unwrap();
        follower.follow(take());
        assert_eq!(follower.check(&engine), Ok(()));
    }
    assert!(follower.len() >= 5);
}
