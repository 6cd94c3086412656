//! Layer embeddings: besides its embedding in the residual stream, a token has a small embedding for each layer.

use crate::backend::{Activation, Backend, Change, Norm};
use crate::config::{DecoderConfig, LayerEmbedding};
use crate::error::Result;
use crate::model::layers::{Embedding, Linear, Loader, Residual};

/// The embeddings for all layers: a table, and a projection of the embeddings in the stream.
pub struct LayerInputs<B: Backend> {
    table: Embedding<B>,
    projection: Linear<B>,
    /// Normalises each layer's part of the projection.
    norm: Norm<B::Weight>,
    hidden: usize,
    width: usize,
}

impl<B: Backend> LayerInputs<B> {
    pub fn load(
        l: &mut Loader<'_, B>,
        hidden: usize,
        decoder: &DecoderConfig,
        LayerEmbedding { width, vocab_size }: LayerEmbedding,
    ) -> Result<Self> {
        let all = width * decoder.layers.len();
        Ok(LayerInputs {
            table: l.embedding("embed_tokens_per_layer.weight", vocab_size, all)?,
            projection: l.linear("per_layer_model_projection", all, hidden, false)?,
            norm: l.norm(decoder.norm, "per_layer_projection_norm", width, decoder.eps)?,
            hidden,
            width,
        })
    }

    /// Returns the inputs of all layers, `[T, layers * width]`. `x` is the stream before the first layer.
    pub fn compute(&self, b: &B, x: &mut Residual<B>, inputs: &B::Inputs) -> B::Tensor {
        let mut projected = self.projection.apply(b, x.sum(b), inputs);
        b.change(&mut projected, Change::Scale((self.hidden as f32).powf(-0.5)));
        let mut sum = b.norm(&projected, &self.norm);
        let mut embedded = self.table.apply(b, None, inputs).into_sum(b);
        b.change(&mut embedded, Change::Scale((self.width as f32).sqrt()));
        b.change(&mut sum, Change::Add(&embedded));
        b.change(&mut sum, Change::Scale(std::f32::consts::FRAC_1_SQRT_2));
        sum
    }
}

/// How one layer adds its embeddings to the stream.
pub struct LayerGate<B: Backend> {
    gate: Linear<B>,
    projection: Linear<B>,
    norm: Norm<B::Weight>,
    activation: Activation,
    /// The first column of the layer's part.
    first: usize,
}

impl<B: Backend> LayerGate<B> {
    pub fn load(
        l: &mut Loader<'_, B>,
        hidden: usize,
        decoder: &DecoderConfig,
        LayerEmbedding { width, .. }: LayerEmbedding,
        i: usize,
    ) -> Result<Self> {
        let name = |part: &str| format!("layers.{i}.{part}");
        Ok(LayerGate {
            gate: l.linear(&name("per_layer_input_gate"), width, hidden, false)?,
            projection: l.linear(&name("per_layer_projection"), hidden, width, false)?,
            norm: l.norm(decoder.norm, &name("post_per_layer_input_norm"), hidden, decoder.eps)?,
            activation: decoder.activation,
            first: i * width,
        })
    }

    /// Adds the layer's embeddings to the stream, through a gate that the stream controls.
    pub fn add_to(&self, b: &B, x: &mut Residual<B>, embedded: &B::Tensor, inputs: &B::Inputs) {
        let mut gated = self.gate.apply_act(b, x.sum(b), self.activation, inputs);
        b.change(&mut gated, Change::Multiply { by: embedded, first: self.first, sigmoid: false });
        let projected = self.projection.apply(b, &gated, inputs);
        x.add(b, b.norm(&projected, &self.norm));
    }
}
