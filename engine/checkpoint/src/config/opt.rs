//! OPT's part of the configuration.

use super::fields::{Fields, in_range};
use super::{Activation, MAX_WIDTH, ModelConfig, ModelFamily, activation, head_dim};
use crate::error::Result;

/// Settings that are specific to OPT. Learned positions start at row 2 of their table.
#[derive(Clone, Debug, PartialEq)]
pub struct OptConfig {
    /// Elements between the two matrices of the feed-forward block.
    pub ffn_dim: usize,
    /// Elements of an embedding. If it differs from the hidden size, two matrices project in and out.
    pub word_embed_proj_dim: usize,
    /// Whether layer norms precede attention and feed-forward (all but OPT-350m) or follow their residual sums.
    pub do_layer_norm_before: bool,
    /// Whether a layer norm follows the last layer.
    pub final_norm: bool,
    /// Whether projections have biases.
    pub enable_bias: bool,
    /// Whether layer norms have weights and biases.
    pub layer_norm_elementwise_affine: bool,
    /// The activation function between the two matrices of the feed-forward block.
    pub activation: Activation,
}

impl OptConfig {
    /// The row of the position table for position 0.
    pub const POSITION_OFFSET: usize = 2;
    /// The epsilon of every layer norm.
    pub const LAYER_NORM_EPS: f32 = 1e-5;
}

pub(super) fn read(fields: &Fields<'_>) -> Result<ModelConfig> {
    let hidden = fields.usize_or("hidden_size", 768)?;
    let heads = fields.usize_or("num_attention_heads", 12)?;
    let do_layer_norm_before = fields.bool_or("do_layer_norm_before", true)?;
    let opt = OptConfig {
        ffn_dim: fields.usize_or("ffn_dim", 3072)?,
        word_embed_proj_dim: fields.usize_or("word_embed_proj_dim", hidden)?,
        do_layer_norm_before,
        final_norm: do_layer_norm_before && !fields.bool_or("_remove_final_layer_norm", false)?,
        enable_bias: fields.bool_or("enable_bias", true)?,
        layer_norm_elementwise_affine: fields.bool_or("layer_norm_elementwise_affine", true)?,
        activation: activation("activation_function", fields.string("activation_function")?.unwrap_or("relu"))?,
    };
    in_range("ffn_dim", opt.ffn_dim, MAX_WIDTH)?;
    in_range("word_embed_proj_dim", opt.word_embed_proj_dim, MAX_WIDTH)?;
    Ok(ModelConfig {
        architecture: String::new(),
        family: ModelFamily::Opt(opt),
        layers: fields.usize_or("num_hidden_layers", 12)?,
        heads,
        kv_heads: heads,
        head_dim: head_dim(hidden, heads)?,
        hidden,
        vocab_size: fields.usize_or("vocab_size", 50272)?,
        max_positions: fields.usize_or("max_position_embeddings", 2048)?,
        torch_dtype: None,
        eos_token_ids: fields.eos(&[2])?,
        bos_token_id: fields.bos(Some(2))?,
        tie_word_embeddings: fields.bool_or("tie_word_embeddings", true)?,
        quantization: None,
        text_only: false,
        draft_layers: 0,
    })
}
