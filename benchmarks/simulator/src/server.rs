//! A simulated server: what it runs on, and how it makes its steps.

use engine::scheduler::{Preemption, SchedulerOptions};

use crate::cost::StepCost;

/// How an iteration is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepping {
    /// As in the paper: prompts are computed by themselves and whole, in steps of at most so many tokens unless a single one is
    /// longer, and then a step for all sequences that decode.
    Separate(usize),
    /// As in this engine: decodes and chunks of prompts in one step, of at most so many tokens.
    Mixed(usize),
}

/// The most tokens of the paper's prompt steps: vLLM's limit at the time (`max_num_batched_tokens`).
pub const PAPER: Stepping = Stepping::Separate(2560);
/// This engine's default.
pub const OURS: Stepping = Stepping::Mixed(2048);

/// How blocks are moved to the host's memory and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swapping {
    /// A copy for each block, of keys and of values, in each layer: the paper's.
    PerBlock,
    /// Gathered on the GPU and moved in one copy: this engine's.
    Gathered,
}

/// What a simulated server runs on and how.
#[derive(Clone, Copy)]
pub struct SimulatedServer<'a> {
    /// How long its steps take.
    pub cost: &'a dyn StepCost,
    /// Tokens whose keys and values fit its memory.
    pub slots: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Tokens that fit the swap space.
    pub swap_slots: usize,
    /// How it makes its steps.
    pub stepping: Stepping,
    /// What happens to what is preempted.
    pub preemption: Preemption,
    /// How blocks are swapped.
    pub swapping: Swapping,
    /// Whether the prefix that all requests have in common is kept.
    pub keeps_prefix: bool,
    /// Most sequences that run at a time.
    pub max_num_seqs: usize,
    /// Give up when the mean normalized latency is certain to be above this.
    pub limit: f64,
}

/// Most sequences at a time: vLLM's default then and this engine's now.
pub const MAX_NUM_SEQS: usize = 256;
/// Tokens in a block: the paper's default and this engine's.
pub const BLOCK_SIZE: usize = 16;
/// More tokens than any step has.
const UNLIMITED: usize = 1 << 40;

impl<'a> SimulatedServer<'a> {
    /// A server as the paper describes it, with blocks of 16 tokens.
    pub fn as_in_the_paper(cost: &'a dyn StepCost, slots: usize) -> Self {
        SimulatedServer {
            cost,
            slots,
            block_size: BLOCK_SIZE,
            swap_slots: slots,
            stepping: PAPER,
            preemption: Preemption::Auto,
            swapping: Swapping::PerBlock,
            keeps_prefix: false,
            max_num_seqs: MAX_NUM_SEQS,
            limit: f64::INFINITY,
        }
    }

    /// What the engine's scheduler is asked to do.
    pub fn scheduler_options(&self) -> SchedulerOptions {
        SchedulerOptions {
            max_num_seqs: self.max_num_seqs,
            max_batch_tokens: match self.stepping {
                // Prompts are not cut. How many are computed in one step only matters for its price.
                Stepping::Separate(_) => UNLIMITED,
                Stepping::Mixed(tokens) => tokens,
            },
            // In order of arrival, as in the paper.
            max_request_share: 1.0,
            delay_factor: 0.0,
            preemption: self.preemption,
            prefix_caching: false,
            draft_tokens: 0,
        }
    }
}
