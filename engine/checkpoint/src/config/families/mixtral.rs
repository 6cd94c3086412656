//! Mixtral: Mistral with experts in every layer.

use super::{Defaults, Family, set_experts, set_windows, window_size};
use crate::config::experts::{Experts, Routing};
use crate::config::rope::RopeDefaults;

pub const MIXTRAL: Family = Family {
    class: "MixtralForCausalLM",
    names: &["MixtralModel", "mixtral"],
    multimodal: &[],
    defaults: Defaults {
        inner: 14336,
        kv_heads: Some(8),
        positions: 131072,
        eps: ("rms_norm_eps", 1e-5),
        rope: RopeDefaults { theta: 1e6, ..RopeDefaults::PLAIN },
        ..Defaults::LLAMA
    },
    select: |fields, decoder| {
        (decoder.qkv_bias, decoder.o_bias, decoder.mlp_bias) = (false, false, false);
        let size = window_size(fields, None)?;
        set_windows(decoder, &vec![size.is_some(); decoder.layers.len()], size)?;
        let routing = Routing::softmax(fields.usize_or("num_experts_per_tok", 2)?);
        let count = fields.usize_or("num_local_experts", 8)?;
        let inner = fields.usize_or("intermediate_size", 14336)?;
        set_experts(decoder, Experts::plain(count, inner, routing), |_| true);
        Ok(())
    },
};
