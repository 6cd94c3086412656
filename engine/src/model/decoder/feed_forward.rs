//! The feed-forward part of a layer: a gated unit, experts, or both.

use super::experts::ExpertBlock;
use super::mlp::Mlp;
use super::read;
use crate::backend::Backend;
use crate::config::DecoderConfig;
use crate::error::Result;
use crate::model::layers::{Loader, Residual};

/// The feed-forward part of a layer.
pub enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Experts(ExpertBlock<B>),
}

impl<B: Backend> FeedForward<B> {
    pub fn load(l: &mut Loader<'_, B>, hidden: usize, decoder: &DecoderConfig, i: usize) -> Result<Self> {
        Ok(match &decoder.layers[i].experts {
            None => FeedForward::Dense(Mlp::load(l, hidden, decoder, i, decoder.layer_norms.after_mlp)?),
            Some(experts) => FeedForward::Experts(ExpertBlock::load(l, hidden, decoder, i, experts)?),
        })
    }

    /// Adds the result to the stream. The input is `h`, or the stream itself if it is not normalised.
    pub fn add_to(&self, b: &B, x: &mut Residual<B>, h: &Option<B::Tensor>, inputs: &B::Inputs) {
        match self {
            FeedForward::Dense(mlp) => {
                let inner = mlp.apply(b, read(b, h, x), inputs);
                mlp.down.add_to(b, x, inner, inputs);
            }
            FeedForward::Experts(block) => block.add_to(b, x, h, inputs),
        }
    }
}
