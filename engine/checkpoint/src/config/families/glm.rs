//! GLM-4: norms before and after each part of a layer, and a rotation of half of each head.

use super::{Defaults, Family, rope_sizes};
use crate::config::decoder::LayerNorms;
use crate::config::rope::{self, RopeDefaults};

pub const GLM4: Family = Family {
    class: "Glm4ForCausalLM",
    names: &["Glm4Model", "glm4"],
    multimodal: &[],
    defaults: Defaults {
        vocab: 151552,
        inner: 13696,
        layers: 40,
        kv_heads: Some(2),
        head_dim: Some(128),
        positions: 131072,
        eps: ("rms_norm_eps", 1.5625e-7),
        attention_bias: true,
        bos: None,
        eos: &[151329, 151336, 151338],
        ..Defaults::LLAMA
    },
    select: |fields, decoder| {
        (decoder.o_bias, decoder.mlp_bias) = (false, false);
        decoder.layer_norms = LayerNorms {
            after_attention: Some("post_self_attn_layernorm"),
            after_mlp: Some("post_mlp_layernorm"),
            ..LayerNorms::BEFORE
        };
        let defaults = RopeDefaults { partial: Some(0.5), ..RopeDefaults::PLAIN };
        let rope = rope::read(fields, rope_sizes(fields, decoder, 131072)?, defaults)?;
        decoder.ropes = vec![rope.adjacent()];
        Ok(())
    },
};
