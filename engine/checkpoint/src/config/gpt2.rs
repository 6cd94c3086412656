//! GPT-2's part of the configuration.

use super::fields::{Fields, in_range};
use super::{Activation, MAX_WIDTH, ModelConfig, ModelFamily, activation, head_dim};
use crate::error::{Error, Result};

/// Settings that are specific to GPT-2.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt2Config {
    /// Elements between the two matrices of the feed-forward block.
    pub n_inner: usize,
    /// The epsilon of every layer norm.
    pub layer_norm_epsilon: f32,
    /// The activation function between the two matrices of the feed-forward block.
    pub activation: Activation,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<ModelConfig> {
    for (name, default) in [
        ("scale_attn_weights", true),
        ("scale_attn_by_inverse_layer_idx", false),
        ("reorder_and_upcast_attn", false),
        ("add_cross_attention", false),
    ] {
        if fields.bool_or(name, default)? != default {
            return Err(Error::Unsupported(format!("GPT-2 with {name} set to {} is not implemented", !default)));
        }
    }
    let hidden = fields.either_usize("n_embd", "hidden_size", 768)?;
    let heads = fields.either_usize("n_head", "num_attention_heads", 12)?;
    in_range("n_embd", hidden, MAX_WIDTH)?;
    let gpt2 = Gpt2Config {
        n_inner: fields.usize_or("n_inner", 4 * hidden)?,
        layer_norm_epsilon: fields.positive_or("layer_norm_epsilon", 1e-5)? as f32,
        activation: activation("activation_function", fields.string("activation_function")?.unwrap_or("gelu_new"))?,
    };
    in_range("n_inner", gpt2.n_inner, 4 * MAX_WIDTH)?;
    Ok(ModelConfig {
        architecture: String::new(),
        family: ModelFamily::Gpt2(gpt2),
        layers: fields.either_usize("n_layer", "num_hidden_layers", 12)?,
        heads,
        kv_heads: heads,
        head_dim: head_dim(hidden, heads)?,
        hidden,
        vocab_size: fields.usize_or("vocab_size", 50257)?,
        max_positions: fields.either_usize("n_positions", "max_position_embeddings", 1024)?,
        torch_dtype: None,
        eos_token_ids: fields.eos(&[50256])?,
        bos_token_id: fields.bos(Some(50256))?,
        tie_word_embeddings: fields.bool_or("tie_word_embeddings", true)?,
        quantization: None,
        text_only: false,
        draft_layers: 0,
    })
}
