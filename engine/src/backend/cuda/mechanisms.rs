//! The mechanisms of decoders that have no kernels.

use crate::config::{DecoderConfig, DecoderLayer, HeadNorm, LayerNorms, ModelConfig, ModelFamily, NormKind};
use crate::error::{Error, Result};

/// Refuses a model that the kernels cannot compute, and names the first mechanism that they lack.
pub(super) fn check(config: &ModelConfig) -> Result<()> {
    let ModelFamily::Decoder(decoder) = &config.family else { return Ok(()) };
    match missing(decoder) {
        None => Ok(()),
        Some(what) => Err(Error::Unsupported(format!("the GPU has no kernels for {what}; use the CPU for this model"))),
    }
}

fn missing(decoder: &DecoderConfig) -> Option<&'static str> {
    let LayerNorms { after_attention, after_mlp, parallel, .. } = decoder.layer_norms;
    let shape = |i: usize| (decoder.layers[i].heads, decoder.layers[i].kv_heads, decoder.layers[i].head_dim);
    let mut layers = decoder.layers.iter().enumerate();
    let part = |layer: &DecoderLayer| layer.rope.is_some_and(|rope| decoder.ropes[rope].rotated != layer.head_dim);
    let lacking = [
        (decoder.layers.iter().any(|layer| layer.experts.is_some()), "experts"),
        (decoder.latent.is_some(), "attention over latent vectors"),
        (decoder.sinks, "attention sinks"),
        (decoder.softcap.is_some(), "a softcap of attention"),
        (decoder.logits_softcap.is_some(), "a softcap of logits"),
        (decoder.logits_multiplier != 1.0, "a factor on logits"),
        (decoder.embedding_multiplier != 1.0, "a factor on embeddings"),
        (decoder.residual_multiplier != 1.0, "a factor on the residual stream's additions"),
        (after_attention.is_some() || after_mlp.is_some(), "norms after attention or feed-forward layers"),
        (parallel, "attention and feed-forward layers in parallel"),
        (decoder.norm != NormKind::Rms, "norms other than root-mean-square norms"),
        (decoder.head_norm == HeadNorm::Row, "norms of whole rows of heads"),
        (decoder.value_norm, "norms of values"),
        (decoder.layer_embedding.is_some(), "embeddings for each layer"),
        (decoder.layer_scalar, "a factor on each layer's output"),
        (decoder.ropes.iter().any(|rope| rope.adjacent), "rotations of adjacent elements"),
        (decoder.layers.iter().any(part), "rotations of a part of each head"),
        (decoder.layers.iter().any(|layer| layer.value_is_key), "one projection for keys and values"),
        (
            layers.any(|(i, layer)| layer.source != i || shape(i) != shape(0)),
            "layers whose caches differ or are shared",
        ),
    ];
    lacking.into_iter().find(|(lacks, _)| *lacks).map(|(_, what)| what)
}
