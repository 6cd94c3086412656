//! Scheduling options.

use super::preemption::Preemption;

/// The order in which requests are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// The most urgent request first, and requests of one priority as with [`SchedulingPolicy::Fcfs`].
    Priority,
}

/// Scheduling options: the limits of a step, and how sequences share the memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulerOptions {
    /// Most sequences that run at a time.
    pub max_num_seqs: usize,
    /// Most tokens in a step. Decoding sequences always get their token. The limit applies to prompts, which are
    /// computed in chunks.
    pub max_batch_tokens: usize,
    /// The largest fraction of the running sequences and of the KV blocks that one owner's requests use while others
    /// wait. With 1, owners are ignored and requests are admitted in order of arrival.
    pub max_request_share: f64,
    /// The order in which requests are served.
    pub policy: SchedulingPolicy,
    /// With [`SchedulingPolicy::Priority`], the steps after which a priority gains one level of urgency if its requests wait
    /// for more urgent ones. With 0 it gains none, so they may wait for ever.
    pub priority_ageing: usize,
    /// The lowest, most urgent priority that a request may have. `None` allows all.
    pub min_priority: Option<i64>,
    /// New prompts wait for this many times the duration of the last step with prompts, to be batched together.
    pub delay_factor: f64,
    /// What happens to the blocks of a preempted request.
    pub preemption: Preemption,
    /// Whether full blocks are kept for later requests that begin with the same tokens.
    pub prefix_caching: bool,
    /// Most adapters that the requests of a step use.
    pub max_loras: usize,
    /// Most tokens drafted per step for a decoding sequence: speculative decoding by prompt lookup. The draft comes
    /// from the sequence's own text and is verified in one step. 0 turns drafting off.
    pub draft_tokens: usize,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        SchedulerOptions {
            max_num_seqs: 256,
            max_batch_tokens: 2048,
            max_request_share: 0.5,
            policy: SchedulingPolicy::Fcfs,
            priority_ageing: 256,
            min_priority: None,
            delay_factor: 0.0,
            preemption: Preemption::Auto,
            prefix_caching: true,
            max_loras: 8,
            draft_tokens: 0,
        }
    }
}
