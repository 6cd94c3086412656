//! Phi-3 and Phi-4: LLaMA with fused projections and LongRoPE.

use super::{Defaults, Family, rope_sizes, set_windows, window_size};
use crate::config::rope::{self, RopeDefaults};

pub const PHI3: Family = Family {
    class: "Phi3ForCausalLM",
    names: &["Phi3Model", "phi3"],
    multimodal: &[],
    defaults: Defaults {
        vocab: 32064,
        hidden: 3072,
        inner: 8192,
        positions: 4096,
        eps: ("rms_norm_eps", 1e-5),
        eos: &[32000],
        ..Defaults::LLAMA
    },
    select: |fields, decoder| {
        (decoder.qkv_bias, decoder.o_bias, decoder.mlp_bias) = (false, false, false);
        let size = window_size(fields, None)?;
        set_windows(decoder, &vec![size.is_some(); decoder.layers.len()], size)?;
        let sizes = rope_sizes(fields, decoder, 4096)?;
        let defaults = RopeDefaults { partial: Some(1.0), long_names: &["su", "yarn"], ..RopeDefaults::PLAIN };
        decoder.ropes = vec![rope::read(fields, sizes, defaults)?];
        Ok(())
    },
};
