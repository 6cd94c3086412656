//! Qwen3-Next, and the text models of Qwen3.5 and 3.6: three of four layers are gated delta nets, and attention has gates.

use super::qwen_moe::{Sizes, experts};
use super::{Defaults, Family, mixed_layers, rope_sizes, set_recurrent};
use crate::config::decoder::{DecoderConfig, HeadNorm, NormKind};
use crate::config::experts::SharedExpert;
use crate::config::fields::Fields;
use crate::config::recurrent::{Recurrent, RecurrentKind};
use crate::config::rope::{self, RopeDefaults};
use crate::error::Result;

const DEFAULTS: Defaults = Defaults {
    vocab: 151936,
    hidden: 2048,
    inner: 5632,
    layers: 48,
    heads: 16,
    kv_heads: Some(2),
    head_dim: Some(256),
    positions: 32768,
    bos: None,
    eos: &[],
    ..Defaults::LLAMA
};

pub const QWEN3_NEXT: Family = Family {
    class: "Qwen3NextForCausalLM",
    names: &["Qwen3NextModel", "qwen3_next"],
    multimodal: &[],
    defaults: DEFAULTS,
    select: |fields, decoder| {
        set_common(fields, decoder)?;
        let renormalised = fields.bool_or("norm_topk_prob", true)?;
        set_experts(fields, decoder, Sizes { count: 512, inner: 512, top_k: 10 }, renormalised)
    },
};

pub const QWEN3_5: Family = Family {
    class: "Qwen3_5ForCausalLM",
    names: &["Qwen3_5TextModel", "qwen3_5_text"],
    multimodal: &["Qwen3_5ForConditionalGeneration", "qwen3_5"],
    defaults: Defaults { vocab: 248320, hidden: 4096, inner: 12288, layers: 32, kv_heads: Some(4), ..DEFAULTS },
    select: set_common,
};

pub const QWEN3_5_MOE: Family = Family {
    class: "Qwen3_5MoeForCausalLM",
    names: &["Qwen3_5MoeTextModel", "qwen3_5_moe_text"],
    multimodal: &["Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"],
    defaults: Defaults { vocab: 248320, layers: 40, ..DEFAULTS },
    select: |fields, decoder| {
        set_common(fields, decoder)?;
        set_experts(fields, decoder, Sizes { count: 256, inner: 512, top_k: 8 }, true)
    },
};

fn set_common(fields: &Fields<'_>, decoder: &mut DecoderConfig) -> Result<()> {
    (decoder.norm, decoder.head_norm) = (NormKind::RmsPlusOne, HeadNorm::Head);
    (decoder.mlp_bias, decoder.attention_gate) = (false, true);
    let defaults = RopeDefaults { partial: Some(0.25), ..RopeDefaults::PLAIN };
    decoder.ropes = vec![rope::read(fields, rope_sizes(fields, decoder, DEFAULTS.positions)?, defaults)?];
    let layer = Recurrent {
        kind: RecurrentKind::DeltaNet,
        kernel: fields.usize_or("linear_conv_kernel_dim", 4)?,
        kernel_bias: false,
        bias: false,
        key_heads: fields.usize_or("linear_num_key_heads", 16)?,
        heads: fields.usize_or("linear_num_value_heads", 32)?,
        key_dim: fields.usize_or("linear_key_head_dim", 128)?,
        value_dim: fields.usize_or("linear_value_head_dim", 128)?,
        // A form that only this program writes, for GGUF files.
        tiled: fields.bool_or("linear_value_heads_tiled", false)?,
    };
    let interval = fields.usize_or("full_attention_interval", 4)?.max(1);
    let recurrent = mixed_layers(fields, decoder.layers.len(), |i| !(i + 1).is_multiple_of(interval))?;
    set_recurrent(decoder, layer, &recurrent);
    Ok(())
}

fn set_experts(fields: &Fields<'_>, decoder: &mut DecoderConfig, sizes: Sizes, renormalised: bool) -> Result<()> {
    let inner = fields.usize_or("shared_expert_intermediate_size", 512)?;
    experts(fields, decoder, sizes, renormalised, Some(SharedExpert { inner, gated: true }))
}
