//! The configuration of a simulated server.

use engine::tools::scheduler::{Preemption, SchedulerOptions};

use crate::cost::StepCost;

/// How an iteration computes prompts and decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepping {
    /// As in the paper. Whole prompts are computed first, in steps of at most this many tokens. A longer prompt gets a step
    /// of its own. Then one step decodes all sequences.
    Separate(usize),
    /// As in this engine. Decodes and chunks of prompts share a step of at most this many tokens.
    Mixed(usize),
}

/// The paper's stepping, with vLLM's limit at the time (`max_num_batched_tokens`).
pub const PAPER: Stepping = Stepping::Separate(2560);
/// This engine's default stepping.
pub const OURS: Stepping = Stepping::Mixed(2048);

/// How blocks are moved to the host's memory and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swapping {
    /// The paper's way: in each layer, one copy per block for keys and one for values.
    PerBlock,
    /// This engine's way: blocks are gathered on the GPU and moved in one copy.
    Gathered,
}

/// The hardware and configuration of a simulated server.
#[derive(Clone, Copy)]
pub struct SimulatedServer<'a> {
    /// How long its steps take.
    pub cost: &'a dyn StepCost,
    /// Tokens whose keys and values fit its memory. With several groups of layers, the pages times the tokens of a block.
    pub slots: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Tokens that fit the swap space.
    pub swap_slots: usize,
    /// How it makes its steps.
    pub stepping: Stepping,
    /// How preempted requests are recovered.
    pub preemption: Preemption,
    /// How blocks are swapped.
    pub swapping: Swapping,
    /// Whether the prefix that all requests share stays in memory.
    pub keeps_prefix: bool,
    /// Maximum number of running sequences.
    pub max_num_seqs: usize,
    /// The run stops when its mean normalized latency is certain to exceed this limit.
    pub limit: f64,
}

/// Maximum number of running sequences: vLLM's default at the time, and this engine's.
pub const MAX_NUM_SEQS: usize = 256;
/// Tokens per block: the paper's default, and this engine's.
pub const BLOCK_SIZE: usize = 16;
/// More tokens than any step has.
const UNLIMITED: usize = 1 << 40;

impl<'a> SimulatedServer<'a> {
    /// Describes a server as in the paper, with blocks of 16 tokens.
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

    /// Returns the options for the engine's scheduler.
    pub fn scheduler_options(&self) -> SchedulerOptions {
        SchedulerOptions {
            max_num_seqs: self.max_num_seqs,
            max_batch_tokens: match self.stepping {
                // Prompts are not cut. The number of prompts per step only affects the price of the step.
                Stepping::Separate(_) => UNLIMITED,
                Stepping::Mixed(tokens) => tokens,
            },
            // In order of arrival, as in the paper.
            max_request_share: 1.0,
            delay_factor: 0.0,
            preemption: self.preemption,
            prefix_caching: false,
            draft_tokens: 0,
            ..SchedulerOptions::default()
        }
    }
}
