//! gpt-oss: attention with sinks and biases, windows in every other layer, and biased experts with clamped gates.

use super::{Defaults, Family, rope_sizes, set_experts, set_windows, sliding_layers, window_size};
use crate::config::experts::{Clamp, Experts, Routing};
use crate::config::rope::{self, RopeDefaults};

pub const GPT_OSS: Family = Family {
    class: "GptOssForCausalLM",
    names: &["GptOssModel", "gpt_oss"],
    multimodal: &[],
    defaults: Defaults {
        vocab: 201088,
        hidden: 2880,
        inner: 2880,
        layers: 36,
        heads: 64,
        kv_heads: Some(8),
        head_dim: Some(64),
        positions: 131072,
        eps: ("rms_norm_eps", 1e-5),
        attention_bias: true,
        bos: None,
        eos: &[],
        ..Defaults::LLAMA
    },
    select: |fields, decoder| {
        (decoder.mlp_bias, decoder.sinks) = (false, true);
        let sliding = sliding_layers(fields, decoder.layers.len(), |layer| layer % 2 == 0)?;
        set_windows(decoder, &sliding, window_size(fields, Some(128))?)?;
        let defaults = RopeDefaults { theta: 150_000.0, ..RopeDefaults::PLAIN };
        decoder.ropes = vec![rope::read(fields, rope_sizes(fields, decoder, 131072)?, defaults)?];
        let routing = Routing { bias: true, ..Routing::softmax(fields.usize_or("num_experts_per_tok", 4)?) };
        let count = fields.usize_or("num_local_experts", 128)?;
        let inner = fields.usize_or("intermediate_size", 2880)?;
        let limit = fields.positive_or("swiglu_limit", 7.0)? as f32;
        let experts = Experts {
            clamp: Some(Clamp { alpha: 1.702, limit }),
            bias: true,
            alternating: true,
            ..Experts::plain(count, inner, routing)
        };
        set_experts(decoder, experts, |_| true);
        Ok(())
    },
};
