//! Granite 3: LLaMA with four scaling factors.

use super::{Defaults, Family};

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
