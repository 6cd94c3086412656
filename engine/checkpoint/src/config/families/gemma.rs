//! Gemma 2 and 3: norms before and after each part of a layer, with factors of 1 plus the weight, and embeddings scaled
//! by the root of their size. Gemma 2 caps scores and logits. Gemma 3 normalises heads and has two rotations.

use super::{Defaults, Family, rope_sizes, set_windows, sliding_layers, window_size};
use crate::config::decoder::{DecoderConfig, HeadNorm, LayerNorms, NormKind};
use crate::config::fields::Fields;
use crate::config::rope::{self, RopeDefaults};
use crate::error::{Error, Result};

pub const DEFAULTS: Defaults = Defaults {
    vocab: 256000,
    hidden: 2304,
    inner: 9216,
    layers: 26,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    positions: 8192,
    activation: ("hidden_activation", "gelu_pytorch_tanh"),
    tied: true,
    bos: Some(2),
    eos: &[1],
    ..Defaults::LLAMA
};

pub const GEMMA2: Family = Family {
    class: "Gemma2ForCausalLM",
    names: &["gemma2"],
    multimodal: &[],
    defaults: DEFAULTS,
    select: |fields, decoder| {
        set_common(fields, decoder)?;
        decoder.set_scale(fields.positive_or("query_pre_attn_scalar", 256.0)?.powf(-0.5));
        decoder.softcap = fields.softcap("attn_logit_softcapping", Some(50.0))?;
        decoder.logits_softcap = fields.softcap("final_logit_softcapping", Some(30.0))?;
        let sliding = sliding_layers(fields, decoder.layers.len(), |layer| layer % 2 == 0)?;
        set_windows(decoder, &sliding, window_size(fields, Some(4096))?)
    },
};

pub const GEMMA3: Family = Family {
    class: "Gemma3ForCausalLM",
    names: &["gemma3_text", "Gemma3TextModel"],
    multimodal: &["Gemma3ForConditionalGeneration", "gemma3"],
    defaults: Defaults { vocab: 262208, positions: POSITIONS, ..DEFAULTS },
    select: |fields, decoder| {
        set_common(fields, decoder)?;
        decoder.head_norm = HeadNorm::Head;
        decoder.set_scale(fields.positive_or("query_pre_attn_scalar", 256.0)?.powf(-0.5));
        decoder.logits_softcap = fields.softcap("final_logit_softcapping", None)?;
        let pattern = fields.either_usize("sliding_window_pattern", "_sliding_window_pattern", 6)?.max(1);
        let sliding = sliding_layers(fields, decoder.layers.len(), |layer| !(layer + 1).is_multiple_of(pattern))?;
        set_windows(decoder, &sliding, window_size(fields, Some(4096))?)?;
        let sizes = rope_sizes(fields, decoder, POSITIONS)?;
        let global = RopeDefaults { theta: 1e6, ..RopeDefaults::PLAIN };
        let local = RopeDefaults { theta: fields.positive_or("rope_local_base_freq", 1e4)?, ..RopeDefaults::PLAIN };
        decoder.ropes = vec![
            rope::of_layers(fields, "full_attention", sizes, global, || rope::read(fields, sizes, global))?,
            rope::of_layers(fields, "sliding_attention", sizes, local, || Ok(rope::plain(sizes, local)))?,
        ];
        decoder.select_ropes(|layer| Some(usize::from(layer.window.is_some())));
        Ok(())
    },
};

const POSITIONS: usize = 131072;

/// Sets what all Gemmas have in common.
pub fn set_common(fields: &Fields<'_>, decoder: &mut DecoderConfig) -> Result<()> {
    // Gemma 4's value is a string. `vision` affects images only, so text models accept it.
    let seen = fields.text_or_flag("use_bidirectional_attention")?;
    if let Some(seen) = seen.filter(|seen| seen != "vision") {
        return Err(Error::Unsupported(format!(
            "use_bidirectional_attention ({seen}) is not implemented: the model computes embeddings, not text"
        )));
    }
    decoder.mlp_bias = false;
    decoder.norm = NormKind::RmsPlusOne;
    decoder.layer_norms = LayerNorms {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_attention_layernorm"),
        before_mlp: Some("pre_feedforward_layernorm"),
        after_mlp: Some("post_feedforward_layernorm"),
        parallel: false,
    };
    let hidden = fields.usize_or("hidden_size", DEFAULTS.hidden)?;
    decoder.embedding_multiplier = (hidden as f64).sqrt() as f32;
    Ok(())
}
