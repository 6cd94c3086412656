//! Qwen2 and Qwen3 with experts. Some layers may be dense. Qwen2 has a shared expert with a gate.

use super::llama::{QWEN, windows};
use super::{Defaults, Family, set_experts};
use crate::config::decoder::{DecoderConfig, HeadNorm};
use crate::config::experts::{Experts, Routing, SharedExpert};
use crate::config::fields::Fields;
use crate::error::Result;

pub const QWEN2_MOE: Family = Family {
    class: "Qwen2MoeForCausalLM",
    names: &["Qwen2MoeModel", "qwen2_moe"],
    multimodal: &[],
    defaults: Defaults { hidden: 2048, inner: 5632, layers: 24, heads: 16, kv_heads: Some(16), ..QWEN },
    select: |fields, decoder| {
        decoder.qkv_bias = fields.bool_or("qkv_bias", true)?;
        (decoder.o_bias, decoder.mlp_bias) = (false, false);
        windows(fields, decoder)?;
        let inner = fields.usize_or("shared_expert_intermediate_size", 5632)?;
        let shared = Some(SharedExpert { inner, gated: true });
        experts(
            fields,
            decoder,
            Sizes { count: 60, inner: 1408, top_k: 4 },
            fields.bool_or("norm_topk_prob", false)?,
            shared,
        )
    },
};

pub const QWEN3_MOE: Family = Family {
    class: "Qwen3MoeForCausalLM",
    names: &["Qwen3MoeModel", "qwen3_moe"],
    multimodal: &[],
    defaults: Defaults { hidden: 2048, inner: 6144, layers: 24, kv_heads: Some(4), ..QWEN },
    select: |fields, decoder| {
        decoder.mlp_bias = false;
        decoder.head_norm = HeadNorm::Head;
        windows(fields, decoder)?;
        experts(
            fields,
            decoder,
            Sizes { count: 128, inner: 768, top_k: 8 },
            fields.bool_or("norm_topk_prob", false)?,
            None,
        )
    },
};

/// The sizes that a class has if the members are absent.
pub(super) struct Sizes {
    pub count: usize,
    pub inner: usize,
    pub top_k: usize,
}

/// Reads the experts, and which layers have them.
pub(super) fn experts(
    fields: &Fields<'_>,
    decoder: &mut DecoderConfig,
    defaults: Sizes,
    renormalised: bool,
    shared: Option<SharedExpert>,
) -> Result<()> {
    let count = fields.either_usize("num_experts", "num_local_experts", defaults.count)?;
    let inner = fields.usize_or("moe_intermediate_size", defaults.inner)?;
    let top_k = fields.usize_or("num_experts_per_tok", defaults.top_k)?;
    let routing = Routing { renormalised, ..Routing::softmax(top_k) };
    let step = fields.usize_or("decoder_sparse_step", 1)?.max(1);
    let dense = fields.usizes("mlp_only_layers")?.unwrap_or_default();
    let has_experts = |layer: usize| count > 0 && !dense.contains(&layer) && (layer + 1).is_multiple_of(step);
    set_experts(decoder, Experts { shared, ..Experts::plain(count, inner, routing) }, has_experts);
    Ok(())
}
