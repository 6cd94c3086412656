//! What a user can set of scheduling.

use super::preemption::Preemption;

/// What a user can set of scheduling: what a step may hold, and how sequences share the memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulerOptions {
    /// Most sequences running at a time.
    pub max_num_seqs: usize,
    /// Most tokens in a step. Decoding sequences always get their token; the limit binds prompts, which are computed
    /// in chunks.
    pub max_batch_tokens: usize,
    /// The largest part of the sequences that run, and of the KV blocks, that one owner's requests have while others
    /// wait. With 1 owners make no difference: requests are admitted in order of arrival.
    pub max_request_share: f64,
    /// New prompts wait for this many times the duration of the last step with prompts, to be computed together.
    pub delay_factor: f64,
    /// What happens to the blocks of a request that is preempted.
    pub preemption: Preemption,
    /// Whether full blocks are kept, to be shared by requests that begin with the same tokens.
    pub prefix_caching: bool,
    /// Most tokens that are drafted for a sequence that decodes, where its own text suggests them, and verified in one
    /// step: speculative decoding by prompt lookup. With 0 nothing is drafted.
    pub draft_tokens: usize,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        SchedulerOptions {
            max_num_seqs: 256,
            max_batch_tokens: 2048,
            max_request_share: 0.5,
            delay_factor: 0.0,
            preemption: Preemption::Auto,
            prefix_caching: true,
            draft_tokens: 0,
        }
    }
}
