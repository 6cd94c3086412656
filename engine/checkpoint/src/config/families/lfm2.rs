//! LFM2: most layers are short convolutions with gates.

use super::{Defaults, Family, mixed_layers, rope_sizes, set_recurrent};
use crate::config::decoder::{HeadNorm, LayerNorms};
use crate::config::fields::Fields;
use crate::config::recurrent::{Recurrent, RecurrentKind};
use crate::config::rope::{self, RopeDefaults};
use crate::error::Result;

const POSITIONS: usize = 128_000;
const INNER: usize = 12288;

pub const LFM2: Family = Family {
    class: "Lfm2ForCausalLM",
    names: &["Lfm2Model", "lfm2"],
    multimodal: &[],
    defaults: Defaults {
        vocab: 65536,
        hidden: 2560,
        inner: INNER,
        kv_heads: Some(8),
        positions: POSITIONS,
        eps: ("norm_eps", 1e-5),
        tied: true,
        ..Defaults::LLAMA
    },
    select: |fields, decoder| {
        (decoder.qkv_bias, decoder.o_bias, decoder.mlp_bias) = (false, false, false);
        decoder.head_norm = HeadNorm::Head;
        decoder.layer_norms =
            LayerNorms { before_attention: Some("operator_norm"), before_mlp: Some("ffn_norm"), ..LayerNorms::BEFORE };
        let defaults = RopeDefaults { theta: fields.positive_or("theta", 1e6)?, ..RopeDefaults::PLAIN };
        decoder.ropes = vec![rope::read(fields, rope_sizes(fields, decoder, POSITIONS)?, defaults)?];
        let inner = inner(fields)?;
        decoder.layers.iter_mut().for_each(|layer| layer.inner = inner);
        let bias = fields.bool_or("conv_bias", false)?;
        let layer = Recurrent {
            kind: RecurrentKind::Convolution,
            kernel: fields.usize_or("conv_L_cache", 3)?,
            kernel_bias: bias,
            bias,
            key_heads: 0,
            heads: fields.usize_or("hidden_size", 2560)?,
            key_dim: 0,
            value_dim: 1,
            tiled: false,
        };
        let attention = fields.usizes("full_attn_idxs")?;
        let is_convolution = |i: usize| attention.as_ref().is_some_and(|layers| !layers.contains(&i));
        let recurrent = mixed_layers(fields, decoder.layers.len(), is_convolution)?;
        set_recurrent(decoder, layer, &recurrent);
        Ok(())
    },
};

/// Reads the size of feed-forward layers, which is a rounded part of the member's value unless a flag is off.
fn inner(fields: &Fields<'_>) -> Result<usize> {
    let inner = fields.either_usize("block_ff_dim", "intermediate_size", INNER)?;
    if !fields.bool_or("block_auto_adjust_ff_dim", true)? {
        return Ok(inner);
    }
    let inner = inner.saturating_mul(2) / 3;
    let absent = if fields.has("block_ffn_dim_multiplier") { None } else { Some(1.0) };
    let Some(multiplier) = fields.float("block_ffn_dim_multiplier")?.or(absent) else { return Ok(inner) };
    let multiple = fields.usize_or("block_multiple_of", 256)?.max(1);
    let scaled = (multiplier * inner as f64) as usize;
    Ok(scaled.checked_next_multiple_of(multiple).unwrap_or(usize::MAX))
}
