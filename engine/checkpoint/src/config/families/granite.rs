//! Granite 3: LLaMA with four factors. Some models have experts in every layer. In Granite 4, most layers are Mamba-2.

use super::{Defaults, Family, mixed_layers, set_experts, set_recurrent};
use crate::config::experts::{Experts, Routing, SharedExpert};
use crate::config::fields::Fields;
use crate::config::recurrent::{Recurrent, RecurrentKind};
use crate::error::{Error, Result};

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

pub const GRANITE_MOE_HYBRID: Family = Family {
    class: "GraniteMoeHybridForCausalLM",
    names: &["GraniteMoeHybridModel", "granitemoehybrid"],
    multimodal: &[],
    defaults: Defaults::LLAMA,
    select: |fields, decoder| {
        (GRANITE.select)(fields, decoder)?;
        let inner = fields.usize_or("shared_intermediate_size", 1024)?;
        match fields.usize_or("num_local_experts", 8)? {
            0 => decoder.layers.iter_mut().for_each(|layer| layer.inner = inner),
            _ => {
                (GRANITE_MOE.select)(fields, decoder)?;
                let experts = decoder.layers.iter_mut().filter_map(|layer| layer.experts.as_mut());
                experts.for_each(|experts| experts.shared = Some(SharedExpert { inner, gated: false }));
            }
        }
        if fields.string("position_embedding_type")? != Some("rope") {
            decoder.select_ropes(|_| None);
        }
        let recurrent = mixed_layers(fields, decoder.layers.len(), |_| true)?;
        set_recurrent(decoder, mamba(fields)?, &recurrent);
        Ok(())
    },
};

/// Reads the sizes of Mamba-2.
fn mamba(fields: &Fields<'_>) -> Result<Recurrent> {
    if !fields.is_unlimited("time_step_limit")? {
        return Err(Error::Unsupported("time_step_limit is not implemented".into()));
    }
    let inner = fields.usize_or("mamba_expand", 2)?.saturating_mul(fields.usize_or("hidden_size", 4096)?);
    let heads = fields.usize_or("mamba_n_heads", 128)?;
    Ok(Recurrent {
        kind: RecurrentKind::Mamba,
        kernel: fields.usize_or("mamba_d_conv", 4)?,
        kernel_bias: fields.bool_or("mamba_conv_bias", true)?,
        bias: fields.bool_or("mamba_proj_bias", false)?,
        key_heads: fields.usize_or("mamba_n_groups", 1)?,
        heads,
        key_dim: fields.usize_or("mamba_d_state", 256)?,
        value_dim: match inner.checked_rem(heads) {
            Some(0) => inner / heads,
            _ => return Err(Error::Config(format!("{inner} channels of Mamba cannot be divided into {heads} heads"))),
        },
        tiled: false,
    })
}
