//! The decoders from LLaMA (Touvron et al., 2023) on: attention with rotary positions, and gated feed-forward layers. A
//! model is a combination of mechanisms, which [`DecoderConfig`] lists. This code knows mechanisms and no models.

mod attention;
mod experts;
mod extra;
mod feed_forward;
mod latent;
mod mlp;
mod recurrent;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::attention::LayerAttention;
use self::extra::{LayerGate, LayerInputs};
use self::feed_forward::FeedForward;
use super::Model;
use super::layers::{Embedding, Loader, Residual};
use super::rope;
use crate::adapter::Sites;
use crate::backend::{Backend, Change, Norm};
use crate::config::{DecoderConfig, ModelConfig};
use crate::error::Result;
use crate::load::Weights;

/// A decoder's weights on a backend.
pub struct Decoder<B: Backend> {
    config: DecoderConfig,
    tokens: Embedding<B>,
    layer_inputs: Option<LayerInputs<B>>,
    /// `[positions, rotated elements]`: cosines, then sines.
    ropes: Vec<B::Weight>,
    layers: Vec<Layer<B>>,
    final_norm: Norm<B::Weight>,
    output: B::Weight,
    sites: Arc<Sites>,
}

struct Layer<B: Backend> {
    before_attention: Option<Norm<B::Weight>>,
    attention: LayerAttention<B>,
    before_mlp: Option<Norm<B::Weight>>,
    feed_forward: FeedForward<B>,
    gate: Option<LayerGate<B>>,
    scalar: Option<f32>,
}

impl<B: Backend> Decoder<B> {
    pub fn load(
        backend: &B,
        config: &ModelConfig,
        decoder: &DecoderConfig,
        weights: &mut Weights,
        max_len: usize,
    ) -> Result<Self> {
        let mut l = Loader::new(backend, weights);
        let hidden = config.hidden;
        let tokens = l.embedding("embed_tokens.weight", config.vocab_size, hidden)?;
        let layer_inputs = decoder.layer_embedding.map(|extra| LayerInputs::load(&mut l, hidden, decoder, extra));
        let layers = (0..config.layers).map(|i| Layer::load(&mut l, hidden, decoder, i)).collect::<Result<_>>()?;
        let ropes = decoder.ropes.iter().enumerate().map(|(at, rope)| {
            let is_used = decoder.layers.iter().any(|layer| layer.rope == Some(at));
            backend.weight(rope::table(rope, if is_used { max_len } else { 1 })?)
        });
        Ok(Decoder {
            layer_inputs: layer_inputs.transpose()?,
            ropes: ropes.collect::<Result<_>>()?,
            layers,
            final_norm: l.norm(decoder.norm, "norm", hidden, decoder.eps)?,
            output: l.output(config.tie_word_embeddings, &tokens, config.vocab_size, hidden)?,
            tokens,
            sites: Arc::new(l.sites),
            config: decoder.clone(),
        })
    }
}

impl<B: Backend> Layer<B> {
    fn load(l: &mut Loader<'_, B>, hidden: usize, decoder: &DecoderConfig, i: usize) -> Result<Self> {
        let (name, norms) = (format!("layers.{i}"), decoder.layer_norms);
        let mut norm = |part: Option<&str>| l.layer_part_norm(decoder, &name, part, hidden);
        Ok(Layer {
            before_attention: norm(norms.before_attention)?,
            before_mlp: norm(norms.before_mlp)?,
            attention: LayerAttention::load(l, hidden, decoder, i)?,
            feed_forward: FeedForward::load(l, hidden, decoder, i)?,
            gate: decoder.layer_embedding.map(|extra| LayerGate::load(l, hidden, decoder, extra, i)).transpose()?,
            scalar: if decoder.layer_scalar { Some(l.scalar(&format!("{name}.layer_scalar"))?) } else { None },
        })
    }
}

impl<B: Backend> Model<B> for Decoder<B> {
    fn sites(&self) -> &Arc<Sites> {
        &self.sites
    }

    fn forward(&self, b: &B, cache: &mut B::KvCache, inputs: &B::Inputs) -> B::Tensor {
        let mut x = self.tokens.apply(b, None, inputs);
        x.scale(b, self.config.embedding_multiplier);
        let layer_inputs = self.layer_inputs.as_ref().map(|extra| extra.compute(b, &mut x, inputs));
        for (i, layer) in self.layers.iter().enumerate() {
            let h = layer.before_attention.as_ref().map(|norm| x.norm(b, norm));
            let rope = layer.attention.rope().map(|rope| &self.ropes[rope]);
            let attended = layer.attention.apply(b, cache, (i, rope), read(b, &h, &mut x), inputs);
            layer.attention.out().add_to(b, &mut x, attended, inputs);

            let h = if self.config.layer_norms.parallel { h } else { None };
            let h = h.or_else(|| layer.before_mlp.as_ref().map(|norm| x.norm(b, norm)));
            layer.feed_forward.add_to(b, &mut x, &h, inputs);

            if let (Some(gate), Some(embedded)) = (&layer.gate, &layer_inputs) {
                gate.add_to(b, &mut x, embedded, inputs);
            }
            x.scale(b, layer.scalar.unwrap_or(1.0));
        }
        x.into_sum(b)
    }

    fn final_hidden(&self, b: &B, rows: B::Tensor) -> B::Tensor {
        b.norm(&rows, &self.final_norm)
    }

    fn logits(&self, b: &B, rows: B::Tensor) -> B::Tensor {
        let mut logits = b.logits(&self.final_hidden(b, rows), &self.output);
        if self.config.logits_multiplier != 1.0 {
            b.change(&mut logits, Change::Scale(self.config.logits_multiplier));
        }
        if let Some(cap) = self.config.logits_softcap {
            b.change(&mut logits, Change::Softcap(cap));
        }
        logits
    }
}

/// Returns the input of a part of a layer: `normed`, or the residual stream if the part has no norm.
fn read<'a, B: Backend>(b: &B, normed: &'a Option<B::Tensor>, x: &'a mut Residual<B>) -> &'a B::Tensor {
    match normed {
        Some(normed) => normed,
        None => x.sum(b),
    }
}
