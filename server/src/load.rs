//! The load of an engine, for routers that subscribe to it.

/// The load of an engine after its last step. The counters continue when the engine is reloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// KV blocks that sequences use.
    pub used_blocks: usize,
    /// KV blocks in the pool.
    pub num_blocks: usize,
    /// Tokens looked up in the prefix cache so far.
    pub queried_tokens: u64,
    /// The tokens of these lookups that were found.
    pub hit_tokens: u64,
}
