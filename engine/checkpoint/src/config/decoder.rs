//! The mechanisms of a decoder. The models from LLaMA on differ in which of these they use, so one description and one
//! implementation serve all of them.

use super::experts::Experts;
use super::fields::in_range;
use super::recurrent::Recurrent;
use super::{Activation, MAX_HEAD_DIM, MAX_HEADS, MAX_POSITIONS, MAX_WIDTH, Rope};
use crate::error::{Error, Result};

/// A decoder with gated feed-forward layers, described by its mechanisms.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// The layers, in order.
    pub layers: Vec<DecoderLayer>,
    /// The rotations that layers refer to.
    pub ropes: Vec<Rope>,
    /// The norm of activations, and of query and key heads if [`Self::head_norm`] is set.
    pub norm: NormKind,
    /// The epsilon of every norm.
    pub eps: f32,
    /// Where a layer normalises.
    pub layer_norms: LayerNorms,
    /// The activation function of the gate.
    pub activation: Activation,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the projection out of attention has a bias.
    pub o_bias: bool,
    /// Whether the feed-forward projections have biases.
    pub mlp_bias: bool,
    /// The norms of queries and keys before the rotation.
    pub head_norm: HeadNorm,
    /// Whether each value head is divided by its root mean square, without a weight.
    pub value_norm: bool,
    /// With `Some(c)` a score `s` of attention becomes `c * tanh(s / c)`.
    pub softcap: Option<f32>,
    /// Whether each query head has a gate: the logistic function of a projection of the input multiplies its result.
    pub attention_gate: bool,
    /// Whether each query head has a sink: a weight that takes part in the softmax like a score without a value.
    pub sinks: bool,
    /// The factor on embeddings.
    pub embedding_multiplier: f32,
    /// The factor on what attention and feed-forward layers add to the residual stream.
    pub residual_multiplier: f32,
    /// The factor on logits.
    pub logits_multiplier: f32,
    /// With `Some(c)` a logit `x` becomes `c * tanh(x / c)`.
    pub logits_softcap: Option<f32>,
    /// A second embedding with a part for each layer.
    pub layer_embedding: Option<LayerEmbedding>,
    /// Whether each layer has a factor on its output.
    pub layer_scalar: bool,
    /// With `Some`, layers cache a latent vector for each token instead of keys and values.
    pub latent: Option<Latent>,
}

/// The settings that can differ between layers.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderLayer {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads. Divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor on the dot products of queries and keys.
    pub scale: f32,
    /// The number of positions that the layer sees, including its own. `None` for all.
    pub window: Option<usize>,
    /// Index of the rotation in [`DecoderConfig::ropes`]. `None` if positions are not encoded.
    pub rope: Option<usize>,
    /// Whether the key projection also gives the values.
    pub value_is_key: bool,
    /// The layer whose cache this layer reads. It is the layer itself, or an earlier one whose cache it shares. In that
    /// case it computes no keys and values.
    pub source: usize,
    /// With `Some`, the layer keeps a state instead of keys and values, and the settings of attention are not used.
    pub recurrent: Option<Recurrent>,
    /// Elements of the gate and up projections of the dense feed-forward layer. 0 if experts replace it.
    pub inner: usize,
    /// The experts, if the layer has any.
    pub experts: Option<Experts>,
}

/// How a row is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Division by the root mean square, then a factor.
    Rms,
    /// Like `Rms`, but the factor is 1 plus the stored weight.
    RmsPlusOne,
    /// Mean 0 and variance 1, then a factor.
    Layer,
}

/// The norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorm {
    /// No norms.
    None,
    /// Each head is normalised, and all have the same weights.
    Head,
    /// All heads of a token are normalised as one row.
    Row,
}

/// Where a layer normalises. Each norm is given by the name of its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNorms {
    /// The input of attention.
    pub before_attention: Option<&'static str>,
    /// The result of attention, before it is added to the residual stream.
    pub after_attention: Option<&'static str>,
    /// The input of the feed-forward layer.
    pub before_mlp: Option<&'static str>,
    /// The result of the feed-forward layer, before it is added to the residual stream.
    pub after_mlp: Option<&'static str>,
    /// Whether the feed-forward layer has the same input as attention.
    pub parallel: bool,
}

impl LayerNorms {
    /// Norms before attention and before the feed-forward layer.
    pub const BEFORE: LayerNorms = LayerNorms {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_mlp: Some("post_attention_layernorm"),
        after_mlp: None,
        parallel: false,
    };
}

/// A second embedding with a part for each layer. Layers add it to the residual stream through a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerEmbedding {
    /// Elements of a layer's part.
    pub width: usize,
    /// Rows of the table.
    pub vocab_size: usize,
}

/// Attention over latent vectors. Keys and values of all heads are projections of one short vector per token. A head also
/// has a rotated part, whose key all heads share. Layers have one key-value head: the rotated key, then the vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Elements of the vector that queries are a projection of. `None` if they are a projection of the input.
    pub query_rank: Option<usize>,
    /// Elements of the vector that keys and values are projections of.
    pub rank: usize,
    /// Elements of the rotated part of a head.
    pub rotated: usize,
    /// Elements of the other part of a head.
    pub unrotated: usize,
    /// Elements of a head's values.
    pub value: usize,
}

impl Latent {
    /// Checks the sizes.
    pub(super) fn check(&self) -> Result<()> {
        in_range("q_lora_rank", self.query_rank.unwrap_or(1), MAX_WIDTH)?;
        in_range("kv_lora_rank", self.rank, MAX_HEAD_DIM)?;
        in_range("qk_rope_head_dim", self.rotated, MAX_HEAD_DIM)?;
        in_range("qk_nope_head_dim", self.unrotated, MAX_HEAD_DIM)?;
        in_range("v_head_dim", self.value, MAX_HEAD_DIM)
    }
}

impl DecoderConfig {
    /// Sets the factor on the dot products of all layers.
    pub(super) fn set_scale(&mut self, scale: f64) {
        self.layers.iter_mut().for_each(|layer| layer.scale = scale as f32);
    }

    /// Sets each layer's rotation.
    pub(super) fn select_ropes(&mut self, rope: impl Fn(&DecoderLayer) -> Option<usize>) {
        self.layers.iter_mut().for_each(|layer| layer.rope = rope(layer));
    }

    /// The experts of the first layer that has any. Other layers with experts have the same.
    pub fn experts(&self) -> Option<&Experts> {
        self.layers.iter().find_map(|layer| layer.experts.as_ref())
    }

    /// The rotations that some layer uses.
    fn used_ropes(&self) -> impl Iterator<Item = &Rope> {
        let uses = |at: usize| self.layers.iter().any(|layer| layer.rope == Some(at));
        self.ropes.iter().enumerate().filter(move |(at, _)| uses(*at)).map(|(_, rope)| rope)
    }

    /// Checks that the settings agree with each other.
    pub(super) fn check(&self) -> Result<()> {
        for (i, layer) in self.layers.iter().enumerate() {
            layer.check(i, self)?;
        }
        if self.norm == NormKind::Layer && self.head_norm != HeadNorm::None {
            return Err(Error::Unsupported("layer norms of query and key heads are not implemented".into()));
        }
        let mut boundaries = self.used_ropes().map(Rope::regime_boundary);
        let first = boundaries.next();
        if boundaries.any(|boundary| Some(boundary) != first) {
            return Err(Error::Unsupported(
                "rotations of which only some have other frequencies for long sequences are not implemented".into(),
            ));
        }
        if let Some(LayerEmbedding { width, vocab_size }) = self.layer_embedding {
            in_range("hidden_size_per_layer_input", width, MAX_WIDTH)?;
            in_range("vocab_size_per_layer_input", vocab_size, super::MAX_VOCAB)?;
        }
        Ok(())
    }
}

impl DecoderLayer {
    /// Whether the layer has a dense feed-forward layer.
    pub fn is_dense(&self) -> bool {
        self.experts.is_none_or(|experts| experts.beside.is_some())
    }

    fn check(&self, i: usize, all: &DecoderConfig) -> Result<()> {
        let DecoderLayer { heads, kv_heads, head_dim, .. } = *self;
        in_range("the number of attention heads", heads, MAX_HEADS)?;
        in_range("the number of key-value heads", kv_heads, MAX_HEADS)?;
        in_range("the head size", head_dim, MAX_HEAD_DIM)?;
        if let Some(experts) = &self.experts {
            experts.check()?;
        }
        if let Some(recurrent) = &self.recurrent {
            recurrent.check()?;
        }
        if self.is_dense() {
            in_range("intermediate_size", self.inner, 4 * MAX_WIDTH)?;
        }
        if let Some(window) = self.window {
            in_range("sliding_window", window, MAX_POSITIONS)?;
        }
        let invalid = |sentence: String| Err(Error::Config(sentence));
        if !heads.is_multiple_of(kv_heads) {
            return invalid(format!(
                "num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads})"
            ));
        }
        if let Some(rope) = self.rope {
            all.ropes[rope].check(head_dim)?;
        }
        let source = &all.layers[self.source.min(i)];
        if self.source > i || source.source != self.source {
            return invalid(format!("layer {i} reads the cache of layer {}, which has none yet", self.source));
        }
        if (source.kv_heads, source.head_dim, source.window) != (kv_heads, head_dim, self.window) {
            return invalid(format!(
                "layers {} and {i} share a cache and differ in their heads or window",
                self.source
            ));
        }
        Ok(())
    }
}
