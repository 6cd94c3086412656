//! Cohere 2 (Command R7B, Command A, Aya): attention and feed-forward layer in parallel, layer norms without biases. Only
//! the layers with a window encode positions.

use super::{Defaults, Family, rope_sizes, set_windows, sliding_layers, window_size};
use crate::config::decoder::{LayerNorms, NormKind};
use crate::config::rope::{self, RopeDefaults};

pub const COHERE2: Family = Family {
    class: "Cohere2ForCausalLM",
    names: &["Cohere2Model", "cohere2"],
    multimodal: &[],
    defaults: Defaults {
        vocab: 256000,
        hidden: 8192,
        inner: 22528,
        layers: 40,
        heads: 64,
        positions: 8192,
        eps: ("layer_norm_eps", 1e-5),
        tied: true,
        bos: Some(5),
        eos: &[255001],
        ..Defaults::LLAMA
    },
    select: |fields, decoder| {
        decoder.mlp_bias = false;
        decoder.norm = NormKind::Layer;
        decoder.layer_norms = LayerNorms { before_mlp: None, parallel: true, ..LayerNorms::BEFORE };
        decoder.logits_multiplier = fields.positive_or("logit_scale", 0.0625)? as f32;
        let pattern = fields.usize_or("sliding_window_pattern", 4)?.max(1);
        let sliding = sliding_layers(fields, decoder.layers.len(), |layer| !(layer + 1).is_multiple_of(pattern))?;
        set_windows(decoder, &sliding, window_size(fields, Some(4096))?)?;
        let rope = rope::read(fields, rope_sizes(fields, decoder, 8192)?, RopeDefaults::PLAIN)?;
        decoder.ropes = vec![rope.adjacent()];
        decoder.select_ropes(|layer| layer.window.map(|_| 0));
        Ok(())
    },
};
