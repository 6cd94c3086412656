//! Metrics of the KV cache and its prefixes.

use engine::Stats;
use engine::tools::kv::PoolUsage;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::register::metrics;

/// The shape of the KV cache.
#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct CacheConfig {
    block_size: usize,
    num_gpu_blocks: usize,
}

metrics! {
    /// Metrics of the KV cache's blocks, and of look-ups of prefixes.
    pub struct CacheMetrics {
        cache_config: Family<CacheConfig, Gauge> = "vllm:cache_config_info",
            "The shape of the KV cache, in the labels (the value is always 1)";
        num_blocks: Gauge = "quire:kv_blocks", "KV blocks in the pool";
        used_blocks: Gauge = "quire:kv_blocks_used", "KV blocks in use by sequences";
        filled_slots: Gauge = "quire:kv_slots_filled", "Slots with a token in used blocks";
        shared_blocks: Gauge = "quire:kv_blocks_shared", "KV blocks with more than one reference";
        cached_blocks: Gauge = "quire:kv_blocks_cached", "KV blocks kept only for the prefix cache";
        prefix_queries: Counter = "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache";
        prefix_hits: Counter = "vllm:prefix_cache_hits", "Tokens found in the prefix cache";
    }
}

impl CacheMetrics {
    /// Sets the metrics that describe the cache's shape.
    pub fn describe(&self, block_size: usize, num_blocks: usize) {
        self.num_blocks.set(num_blocks as i64);
        // A reloaded model may find less memory.
        self.cache_config.clear();
        let shape = CacheConfig { block_size, num_gpu_blocks: num_blocks };
        self.cache_config.get_or_create(&shape).set(1);
    }

    /// Updates the metrics with the state after a step. `before` holds the counters at the previous call.
    pub fn observe(&self, usage: &PoolUsage, stats: &Stats, before: &Stats) {
        self.used_blocks.set(usage.used_blocks as i64);
        self.shared_blocks.set(usage.shared_blocks as i64);
        self.cached_blocks.set(usage.cached_blocks as i64);
        self.filled_slots.set(usage.filled_slots as i64);
        self.prefix_queries.inc_by((stats.looked_up_tokens - before.looked_up_tokens) as u64);
        self.prefix_hits.inc_by((stats.hit_tokens - before.hit_tokens) as u64);
    }

    /// Tokens looked up so far.
    pub fn queried_tokens(&self) -> u64 {
        self.prefix_queries.get()
    }

    /// Tokens found so far.
    pub fn hit_tokens(&self) -> u64 {
        self.prefix_hits.get()
    }
}
