//! The models, written once over [`Backend`]. Each architecture has a file that follows its paper's equations.

mod block;
mod decoder;
mod gpt2;
mod layers;
mod opt;
mod rope;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::adapter::Sites;
use crate::backend::Backend;
use crate::config::{ModelConfig, ModelFamily};
use crate::error::Result;
use crate::load::Weights;

/// A causal language model on a backend.
pub trait Model<B: Backend>: Send {
    /// The matrices that adapters can change.
    fn sites(&self) -> &Arc<Sites>;
    /// Runs the layers over the step's new tokens. Writes their keys and values to the cache, and returns the hidden
    /// states `[T, hidden]` before the output matrix.
    fn forward(&self, backend: &B, cache: &mut B::KvCache, inputs: &B::Inputs) -> B::Tensor;
    /// Converts rows of the result of [`Model::forward`] to final hidden states, the input of the output matrix.
    fn final_hidden(&self, backend: &B, rows: B::Tensor) -> B::Tensor;
    /// Computes the logits of `R` rows of the result of [`Model::forward`]: `[R, vocab]`.
    fn logits(&self, backend: &B, rows: B::Tensor) -> B::Tensor;
}

/// Loads a model's weights to the backend. `max_len` is the maximum sequence length.
pub fn load<B: Backend>(
    backend: &B,
    config: &ModelConfig,
    weights: &mut Weights,
    max_len: usize,
) -> Result<Box<dyn Model<B>>> {
    Ok(match &config.family {
        ModelFamily::Opt(c) => Box::new(opt::Opt::load(backend, config, c, weights)?),
        ModelFamily::Gpt2(c) => Box::new(gpt2::Gpt2::load(backend, config, c, weights)?),
        ModelFamily::Decoder(c) => Box::new(decoder::Decoder::load(backend, config, c, weights, max_len)?),
    })
}
