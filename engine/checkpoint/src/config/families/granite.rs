//! Granite 3: LLaMA with four factors. Some models have experts in every layer.

use super::{Defaults, Family, set_experts};
use crate::config::experts::{Experts, Routing};

pub const GRANITE: Family = Family {
    class: "GraniteForCausalLM",
    names: &["GraniteModel", "granite"],
    multimodal: &[],
    defaults: Defaults::LLAMA,
    select: |fields, decoder| {
        decoder.embedding_multiplier = fields.positive_or("embedding_multiplier", 1.0)? as f32;
        decoder.residual_multiplier = fields.positive_or("residual_multiplier", 1.0)? as f32;
        decoder.logits_multiplier = (1.0 / fields.positive_or("logits_scaling", 1.0)?) as f32;
        decoder.set_scale(fields.positive_or("attention_multiplier", 1.0)?);
        Ok(())
    },
};

pub const GRANITE_MOE: Family = Family {
    class: "GraniteMoeForCausalLM",
    names: &["GraniteMoeModel", "granitemoe"],
    multimodal: &[],
    defaults: Defaults::LLAMA,
    select: |fields, decoder| {
        (GRANITE.select)(fields, decoder)?;
        let routing = Routing::softmax(fields.usize_or("num_experts_per_tok", 2)?);
        let count = fields.usize_or("num_local_experts", 8)?;
        let inner = fields.usize_or("intermediate_size", Defaults::LLAMA.inner)?;
        set_experts(decoder, Experts::plain(count, inner, routing), |_| true);
        Ok(())
    },
};
