//! The mechanisms of decoders that have no kernels, and the heads that attention has kernels for.

use kernels::attention::AttentionShape;
use kernels::attention::paper::MAX_HEAD_SIZE;

use kernels::layout::VECTOR;
use kernels::norm::NormShape;
use kernels::rope::{Pairing, check_general};

use crate::config::{DecoderConfig, DecoderLayer, HeadNorm, Latent, ModelConfig, ModelFamily, Rope};
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

/// Like [`check`], for the paper's kernels.
pub(super) fn check_paper(config: &ModelConfig) -> Result<()> {
    let ModelFamily::Decoder(decoder) = &config.family else { return Ok(()) };
    match missing_in_paper(decoder) {
        None => Ok(()),
        Some(what) => Err(Error::Unsupported(format!("--attention v1 and v2 on the GPU have no kernels for {what}"))),
    }
}

/// Whether layers have experts.
pub(super) fn has_experts(config: &ModelConfig) -> bool {
    has_layer(config, |layer| layer.experts.is_some())
}

/// Whether layers keep a state.
pub(super) fn has_states(config: &ModelConfig) -> bool {
    has_layer(config, |layer| layer.recurrent.is_some())
}

fn has_layer(config: &ModelConfig, is_so: impl Fn(&DecoderLayer) -> bool) -> bool {
    match &config.family {
        ModelFamily::Decoder(decoder) => decoder.layers.iter().any(is_so),
        _ => false,
    }
}

fn missing(decoder: &DecoderConfig) -> Option<&'static str> {
    let lacking = [
        (decoder.latent.is_some_and(|latent| !has_latent_kernels(latent)), "latent vectors of this size"),
        (decoder.layers.iter().any(|layer| !can_rotate(decoder, layer)), "rotations of this part of each head"),
        (has_long_rows(decoder), "norms of such long rows of heads"),
        (
            decoder.layer_embedding.is_some_and(|extra| !extra.width.is_multiple_of(VECTOR as usize)),
            "embeddings for each layer that are not whole vectors",
        ),
    ];
    lacking.into_iter().find(|(lacks, _)| *lacks).map(|(_, what)| what)
}

/// Returns the first mechanism that the paper's cache write lacks. It rotates whole heads only, and normalises no values.
fn missing_in_paper(decoder: &DecoderConfig) -> Option<&'static str> {
    let is_part = |layer: &DecoderLayer| rotation(decoder, layer).is_some_and(|rope| rope.rotated != layer.head_dim);
    let is_adjacent = |layer: &DecoderLayer| rotation(decoder, layer).is_some_and(|rope| rope.adjacent);
    let lacking = [
        (decoder.layers.iter().any(is_part), "rotations of a part of each head"),
        (decoder.layers.iter().any(is_adjacent), "rotations of adjacent elements"),
        (decoder.value_norm, "norms of values"),
        (decoder.latent.is_some(), "attention over latent vectors"),
        (decoder.layers.iter().any(|layer| layer.recurrent.is_some()), "layers that keep a state"),
    ];
    lacking.into_iter().find(|(lacks, _)| *lacks).map(|(_, what)| what)
}

/// Whether kernels attend to latent vectors of these sizes, and project between them and heads.
fn has_latent_kernels(Latent { rank, rotated, unrotated, value, .. }: Latent) -> bool {
    latent_shape(1, rank, rotated, 16).is_ok() && unrotated.is_multiple_of(16) && value.is_multiple_of(VECTOR as usize)
}

fn latent_shape(heads: usize, rank: usize, rotated: usize, block_size: usize) -> Result<AttentionShape> {
    let [heads, key, rank, block_size] =
        [heads, rank + rotated, rank, block_size].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    AttentionShape::latent(heads, key, rank, block_size)
        .map_err(|error| Error::Unsupported(format!("on the GPU: {error}")))
}

fn rotation<'a>(decoder: &'a DecoderConfig, layer: &DecoderLayer) -> Option<&'a Rope> {
    layer.rope.map(|rope| &decoder.ropes[rope])
}

/// Whether a kernel can rotate a layer's heads. If the elements of pairs must be adjacent, queries and keys are
/// reordered. That is wrong for keys that are also values, and for keys of a layer with another rotation.
fn can_rotate(decoder: &DecoderConfig, layer: &DecoderLayer) -> bool {
    let Some(rope) = rotation(decoder, layer) else { return true };
    let is_reordered = !rope.adjacent && needs_adjacent_pairs(rope.rotated);
    let pairing = if rope.adjacent || is_reordered { Pairing::Interleaved } else { Pairing::Halves };
    let [size, rotated] = [layer.head_dim, rope.rotated].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let has_same_keys = decoder.layers[layer.source].rope == layer.rope && !layer.value_is_key;
    check_general(size, rotated, pairing).is_ok() && (has_same_keys || !is_reordered)
}

/// Whether the first `rotated` elements of heads can be rotated only if the elements of a pair are adjacent: half of them
/// are not whole vectors.
pub(super) fn needs_adjacent_pairs(rotated: usize) -> bool {
    !rotated.is_multiple_of(2 * VECTOR as usize)
}

/// Whether heads are normalised in rows that are too long for a kernel.
fn has_long_rows(decoder: &DecoderConfig) -> bool {
    let is_long = |layer: &DecoderLayer| {
        let width = u32::try_from(layer.heads * layer.head_dim).unwrap_or(u32::MAX);
        NormShape::of(width).is_err()
    };
    decoder.head_norm == HeadNorm::Row && decoder.layers.iter().any(is_long)
}

/// Returns a worker's attention heads in each layer. `config` is the model's configuration
/// [for this worker](Shard::config).
///
/// # Errors
/// [`Error::Unsupported`] if no kernel supports the heads of a layer, their softcap, or latent vectors in 8 bits.
pub(super) fn layer_shapes(
    config: &ModelConfig,
    shard: Shard,
    block_size: usize,
    kv_dtype: KvDtype,
    kernels: AttentionKernels,
) -> Result<Vec<AttentionShape>> {
    if let ModelFamily::Decoder(DecoderConfig { latent: Some(Latent { rank, rotated, .. }), layers, .. }) =
        &config.family
    {
        if !matches!(kv_dtype, KvDtype::Float(_)) {
            return Err(Error::Unsupported(format!("the GPU has no kernels for latent vectors in {kv_dtype}")));
        }
        let own = |layer: &DecoderLayer| latent_shape(shard.heads(layer.heads).len(), *rank, *rotated, block_size);
        return layers.iter().map(own).collect();
    }
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
