//! The engine's load, for Dynamo's router and gauges.

use std::sync::Arc;

use dynamo_backend_common::{ComponentSnapshot, SnapshotPublisher};
use server::load::EngineLoad;
use tokio::sync::watch;

/// The engine's rank among several equal engines in one process.
pub const RANK: u32 = 0;

/// Publishes the load whenever it changes, until the engine is gone.
pub async fn publish(mut load: watch::Receiver<EngineLoad>, publisher: Arc<SnapshotPublisher>) {
    loop {
        let now = *load.borrow_and_update();
        publisher.publish(RANK, snapshot(now));
        if load.changed().await.is_err() {
            return;
        }
    }
}

fn snapshot(load: EngineLoad) -> ComponentSnapshot {
    let share = |part: f64, whole: f64| (whole > 0.0).then(|| (part / whole) as f32);
    ComponentSnapshot {
        kv_used_blocks: load.used_blocks as u64,
        kv_total_blocks: load.num_blocks as u64,
        gpu_cache_usage: share(load.used_blocks as f64, load.num_blocks as f64).unwrap_or(0.0),
        // Unset until a prefix has been looked up.
        kv_cache_hit_rate: share(load.hit_tokens as f64, load.queried_tokens as f64),
        dp_rank: RANK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_relative_to_the_totals() {
        assert_eq!(snapshot(EngineLoad::default()), ComponentSnapshot::default());
        let load = EngineLoad { used_blocks: 3, num_blocks: 12, queried_tokens: 80, hit_tokens: 32 };
        let want = ComponentSnapshot {
            kv_used_blocks: 3,
            kv_total_blocks: 12,
            gpu_cache_usage: 0.25,
            kv_cache_hit_rate: Some(0.4),
            dp_rank: 0,
        };
        assert_eq!(snapshot(load), want);
    }
}
