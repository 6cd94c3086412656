//! Metrics of the swap space, which holds blocks of preempted requests and cached blocks evicted from the KV cache.

use engine::Stats;
use engine::tools::kv::PoolUsage;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::register::metrics;

metrics! {
    /// Metrics of the swap space's contents and of the blocks that move in and out.
    pub struct SwapMetrics {
        used: Gauge = "quire:swap_blocks_used", "Blocks of the swap space in use by requests";
        cached: Gauge = "quire:swap_blocks_cached", "Blocks of the swap space kept only for the prefix cache";
        swapped_out: Counter = "quire:kv_blocks_swapped_out", "KV blocks swapped out";
        swapped_in: Counter = "quire:kv_blocks_swapped_in", "KV blocks swapped in";
        offloaded: Counter = "quire:kv_blocks_offloaded",
            "Cached KV blocks moved to the swap space when they were evicted";
        restored: Counter = "quire:kv_blocks_restored", "KV blocks moved back from the swap space for a prefix";
        hits: Counter = "quire:prefix_cache_swap_hits",
            "Tokens found in the prefix cache that came back from the swap space";
    }
}

impl SwapMetrics {
    /// Updates the metrics with the state after a step. `before` holds the counters at the previous call.
    pub fn observe(&self, usage: PoolUsage, stats: &Stats, before: &Stats) {
        self.used.set(usage.used_blocks as i64);
        self.cached.set(usage.cached_blocks as i64);
        self.swapped_out.inc_by((stats.swapped_out_blocks - before.swapped_out_blocks) as u64);
        self.swapped_in.inc_by((stats.swapped_in_blocks - before.swapped_in_blocks) as u64);
        self.offloaded.inc_by((stats.offloaded_blocks - before.offloaded_blocks) as u64);
        self.restored.inc_by((stats.restored_blocks - before.restored_blocks) as u64);
        self.hits.inc_by((stats.swap_hit_tokens - before.swap_hit_tokens) as u64);
    }
}
