//! The work of a step, and the least cost of its attention in layers with equal heads and equal windows.

use anyhow::Result;
use cuda_std::launch::LaunchShape;
use engine::tools::backend::cuda::{LaunchCost, NotedLaunch};
use engine::tools::kv::{KvDtype, KvGroup};
use engine::tools::memory_plan::Rehearsal;
use engine::{DType, Error};
use kernels::attention::{AttentionShape, decode, prefill};
use kernels::floor::Floor;

/// Tokens per block in the rehearsals. The times do not depend on it.
pub(crate) const BLOCK_SIZE: usize = 16;
/// Type of weights and activations.
pub(crate) const DTYPE: DType = DType::F16;

/// The work of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepLoad {
    /// Sequences with one new token.
    pub decodes: usize,
    /// Tokens that these sequences attend to, in total.
    pub decode_context: u64,
    /// Prompts or chunks of prompts: the number of new tokens, and the context of the last new token.
    pub prompts: Vec<(usize, usize)>,
    /// Rows of logits.
    pub logits: usize,
}

/// The attention of layers with equal heads and equal windows, on one GPU.
#[derive(Clone, Debug)]
pub(crate) struct LayerAttention {
    /// `None` if no kernel has these heads.
    pub shape: Option<AttentionShape>,
    /// Elements of all query heads, and bytes of a token's keys and values in one layer.
    pub queries: f64,
    pub token_bytes: f64,
    pub layers: f64,
    pub window: Option<usize>,
}

/// Returns the shape of the attention of a group of layers with `heads` query heads.
pub(crate) fn shape(heads: usize, group: &KvGroup, kv_dtype: KvDtype) -> Result<AttentionShape> {
    let (heads, size, block_size) = (heads as u32, group.head_dim as u32, BLOCK_SIZE as u32);
    let shape = match group.latent {
        Some(value) => AttentionShape::latent(heads, size, value as u32, block_size),
        None => AttentionShape::new(heads, group.heads as u32, size, block_size),
    };
    shape
        .map(|shape| shape.with_format(kv_dtype.format()))
        .map_err(|error| Error::Unsupported(error.to_string()).into())
}

fn sum(one: Floor, other: Floor) -> Floor {
    Floor { bytes: one.bytes + other.bytes, flops: one.flops + other.flops }
}

impl LayerAttention {
    /// Returns the floor of one layer's decodes.
    pub fn decode_floor(&self, step: &StepLoad) -> Floor {
        let sequences = step.decodes as u64;
        let most = self.window.map_or(u64::MAX, |window| window as u64 * sequences);
        let seen = step.decode_context.min(most);
        self.shape.map_or_else(|| self.floor(sequences, seen, seen), |shape| decode::floor(shape, seen, sequences))
    }

    /// Returns the floor of one layer's prompts.
    pub fn prefill_floor(&self, step: &StepLoad) -> Floor {
        let window = self.window.unwrap_or(0) as u32;
        let floor = |&(new, seen): &(usize, usize)| match self.shape {
            Some(shape) => prefill::shape::floor(shape, new as u32, seen as u32, window),
            None => {
                let scores: u64 =
                    (seen - new + 1..=seen).map(|seen| self.window.unwrap_or(seen).min(seen) as u64).sum();
                self.floor(new as u64, seen as u64, scores)
            }
        };
        step.prompts.iter().map(floor).fold(Floor::default(), sum)
    }

    /// Returns the floor of one layer for `new` tokens that read the keys and values of `read` tokens, and have `scores`
    /// scores per head.
    fn floor(&self, new: u64, read: u64, scores: u64) -> Floor {
        let bytes = read as f64 * self.token_bytes + 2.0 * new as f64 * self.queries * DTYPE.size() as f64;
        Floor { bytes: bytes as u64, flops: (4.0 * scores as f64 * self.queries) as u64 }
    }

    /// Returns the attention of one layer in a step, as a launch.
    pub fn launch(&self, step: Rehearsal) -> NotedLaunch {
        let Rehearsal { decodes, context, drafted, prompt, logits } = step;
        let prompts = [drafted, prompt].into_iter().filter(|&new| new > 0).map(|new| (new, new)).collect();
        let load = StepLoad { decodes, decode_context: (decodes * context) as u64, prompts, logits };
        let floor = sum(self.decode_floor(&load), self.prefill_floor(&load));
        let queries = 2.0 * (decodes + drafted + prompt) as f64 * self.queries * DTYPE.size() as f64;
        let kv_cache = floor.bytes.saturating_sub(queries as u64).max(1);
        let cost = LaunchCost { floor, kv_cache, ..LaunchCost::default() };
        NotedLaunch { kernel: "attention", shape: LaunchShape::new([0; 3], 0), cost }
    }
}
