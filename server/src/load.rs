//! How loaded an engine is, for routers that are told so.

/// How loaded an engine is, as of its last step. The counters go on when the engine is loaded anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// KV blocks that a sequence holds.
    pub used_blocks: usize,
    /// KV blocks in the pool.
    pub num_blocks: usize,
    /// Tokens looked up in the prefix cache so far.
    pub queried_tokens: u64,
    /// Those of them that were found.
    pub hit_tokens: u64,
}
