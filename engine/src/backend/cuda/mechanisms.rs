//! The mechanisms of decoders that have no kernels, and the heads that attention has kernels for.

use kernels::attention::AttentionShape;
use kernels::attention::paper::MAX_HEAD_SIZE;

use crate::config::{DecoderConfig, DecoderLayer, HeadNorm, LayerNorms, ModelConfig, ModelFamily, NormKind};
use crate::error::{Error, Result};
use crate::kv::KvDtype;
use crate::options::AttentionKernels;
use crate::parallel::Shard;

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
    let mut layers = decoder.layers.iter().enumerate();
    let part = |layer: &DecoderLayer| layer.rope.is_some_and(|rope| decoder.ropes[rope].rotated != layer.head_dim);
    let lacking = [
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
        (layers.any(|(i, layer)| layer.source != i), "layers without keys and values"),
    ];
    lacking.into_iter().find(|(lacks, _)| *lacks).map(|(_, what)| what)
}

/// Returns a worker's attention heads in each layer. `config` is the model's configuration
/// [for this worker](Shard::config).
///
/// # Errors
/// [`Error::Unsupported`] if no kernel supports the heads of a layer together with the softcap and the type of keys and
/// values.
pub(super) fn layer_shapes(
    config: &ModelConfig,
    shard: Shard,
    block_size: usize,
    kv_dtype: KvDtype,
    kernels: AttentionKernels,
) -> Result<Vec<AttentionShape>> {
    let (heads, is_capped) = match &config.family {
        ModelFamily::Decoder(decoder) => {
            let own = |count| shard.heads(count).len();
            let layers = decoder.layers.iter().map(|layer| [own(layer.heads), own(layer.kv_heads), layer.head_dim]);
            (layers.collect(), decoder.softcap.is_some())
        }
        _ => (vec![[config.heads, config.kv_heads, config.head_dim]; config.layers], false),
    };
    // The paper's kernels take the softcap as an argument.
    let is_paper = kernels != AttentionKernels::Quire;
    let shape = |[heads, kv_heads, size]: [usize; 3]| {
        if is_paper && size > MAX_HEAD_SIZE as usize {
            return Err(Error::Unsupported(format!("--attention v1 and v2 on the GPU: heads of {size} elements")));
        }
        let [heads, kv_heads, size, block_size] =
            [heads, kv_heads, size, block_size].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let shape = AttentionShape::new(heads, kv_heads, size, block_size).map(|s| s.with_format(kv_dtype.format()));
        let capped = shape.and_then(|shape| if is_capped && !is_paper { shape.with_softcap() } else { Ok(shape) });
        capped.map_err(|error| Error::Unsupported(format!("on the GPU: {error}")))
    };
    heads.into_iter().map(shape).collect()
}
