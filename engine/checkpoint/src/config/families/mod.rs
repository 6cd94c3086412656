//! The families of decoders. A family's file says which names its configurations have, what absent members mean, and
//! which mechanisms of [`DecoderConfig`] the members select.

mod cohere;
mod deepseek;
mod gemma;
mod gemma4;
mod glm;
mod gpt_oss;
mod granite;
mod lfm2;
mod llama;
mod mixtral;
mod olmo;
mod phi;
mod qwen_moe;
mod qwen_next;
mod smollm;

use super::decoder::{DecoderConfig, DecoderLayer, HeadNorm, LayerNorms, NormKind};
use super::experts::Experts;
use super::fields::{Fields, in_range};
use super::recurrent::Recurrent;
use super::rope::{self, RopeDefaults, RopeSizes};
use super::{MAX_LAYERS, MAX_WIDTH, ModelConfig, ModelFamily, activation, head_dim};
use crate::error::{Error, Result};

/// All families of decoders.
const ALL: [&Family; 26] = [
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::QWEN2,
    &llama::QWEN3,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma4::GEMMA4,
    &olmo::OLMO2,
    &olmo::OLMO3,
    &cohere::COHERE2,
    &smollm::SMOLLM3,
    &phi::PHI3,
    &glm::GLM4,
    &granite::GRANITE,
    &granite::GRANITE_MOE,
    &granite::GRANITE_MOE_HYBRID,
    &lfm2::LFM2,
    &mixtral::MIXTRAL,
    &qwen_moe::QWEN2_MOE,
    &qwen_moe::QWEN3_MOE,
    &qwen_next::QWEN3_NEXT,
    &qwen_next::QWEN3_5,
    &qwen_next::QWEN3_5_MOE,
    &gpt_oss::GPT_OSS,
    &deepseek::DEEPSEEK_V2,
    &deepseek::DEEPSEEK_V3,
];

/// A family: its names, and how its configuration is read.
pub(super) struct Family {
    /// The class of causal language models, for messages.
    pub class: &'static str,
    /// Other names of the class, and values of `model_type`.
    pub names: &'static [&'static str],
    /// Classes, and values of `model_type`, whose `text_config` is the configuration of this class.
    pub multimodal: &'static [&'static str],
    pub defaults: Defaults,
    /// Changes LLaMA's mechanisms to the family's.
    pub select: fn(&Fields<'_>, &mut DecoderConfig) -> Result<()>,
}

/// The values that absent members have.
pub(super) struct Defaults {
    pub vocab: usize,
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    /// `None` means as many as query heads.
    pub kv_heads: Option<usize>,
    /// `None` means the hidden size, divided by the number of query heads.
    pub head_dim: Option<usize>,
    pub positions: usize,
    /// The member with the epsilon of norms, and its value.
    pub eps: (&'static str, f64),
    /// The member with the activation function, and its value.
    pub activation: (&'static str, &'static str),
    pub rope: RopeDefaults,
    pub attention_bias: bool,
    pub tied: bool,
    pub bos: Option<u32>,
    pub eos: &'static [u32],
}

impl Defaults {
    /// LLaMA's values. They are the most common.
    pub const LLAMA: Defaults = Defaults {
        vocab: 32000,
        hidden: 4096,
        inner: 11008,
        layers: 32,
        heads: 32,
        kv_heads: None,
        head_dim: None,
        positions: 2048,
        eps: ("rms_norm_eps", 1e-6),
        activation: ("hidden_act", "silu"),
        rope: RopeDefaults::PLAIN,
        attention_bias: false,
        tied: false,
        bos: Some(1),
        eos: &[2],
    };
}

/// Finds a family by the name of a class or a `model_type`. Also returns whether the name belongs to a multimodal model.
pub(super) fn find(name: &str) -> Option<(&'static Family, bool)> {
    let multimodal = |family: &Family| family.multimodal.contains(&name);
    let family = ALL.into_iter().find(|f| f.class == name || f.names.contains(&name) || multimodal(f))?;
    Some((family, multimodal(family)))
}

/// The names of all classes, for messages.
pub(super) fn classes() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().map(|family| family.class)
}

impl Family {
    pub fn read(&self, fields: &Fields<'_>) -> Result<ModelConfig> {
        let defaults = &self.defaults;
        let hidden = fields.usize_or("hidden_size", defaults.hidden)?;
        let heads = fields.usize_or("num_attention_heads", defaults.heads)?;
        let layers = fields.usize_or("num_hidden_layers", defaults.layers)?;
        in_range("the number of layers", layers, MAX_LAYERS)?;
        in_range("the hidden size", hidden, MAX_WIDTH)?;
        let max_positions = fields.usize_or("max_position_embeddings", defaults.positions)?;
        // Null means as many as query heads. An absent member means the default of the class.
        let kv_default = if fields.has("num_key_value_heads") { heads } else { defaults.kv_heads.unwrap_or(heads) };
        let kv_heads = fields.usize_or("num_key_value_heads", kv_default)?;
        let head_dim = match (fields.usize("head_dim")?, defaults.head_dim) {
            (Some(size), _) => size,
            (None, Some(size)) if !fields.has("head_dim") => size,
            (None, _) => head_dim(hidden, heads)?,
        };
        in_range("the head size", head_dim, super::MAX_HEAD_DIM)?;
        in_range("the number of key-value heads", kv_heads, super::MAX_HEADS)?;
        let layer = |source| DecoderLayer {
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            window: None,
            rope: Some(0),
            value_is_key: false,
            source,
            recurrent: None,
            inner: 0,
            experts: None,
        };
        let mut decoder = plain((0..layers).map(layer).collect());
        let bias = fields.bool_or("attention_bias", defaults.attention_bias)?;
        (decoder.qkv_bias, decoder.o_bias) = (bias, bias);
        decoder.mlp_bias = fields.bool_or("mlp_bias", false)?;
        decoder.eps = fields.positive_or(defaults.eps.0, defaults.eps.1)? as f32;
        let (member, name) = defaults.activation;
        decoder.activation = activation(member, fields.string(member)?.unwrap_or(name))?;
        let inner = fields.usize_or("intermediate_size", defaults.inner)?;
        decoder.layers.iter_mut().for_each(|layer| layer.inner = inner);
        (self.select)(fields, &mut decoder)?;
        if decoder.ropes.is_empty() {
            decoder.ropes.push(rope::read(fields, RopeSizes { head_dim, max_positions }, defaults.rope)?);
        }
        decoder.check()?;
        Ok(ModelConfig {
            architecture: String::new(),
            family: ModelFamily::Decoder(decoder),
            layers,
            heads,
            kv_heads,
            head_dim,
            hidden,
            vocab_size: fields.usize_or("vocab_size", defaults.vocab)?,
            max_positions,
            torch_dtype: None,
            eos_token_ids: fields.eos(defaults.eos)?,
            bos_token_id: fields.bos(defaults.bos)?,
            tie_word_embeddings: match fields.bool("tie_embedding")? {
                Some(tied) => tied,
                None => fields.bool_or("tie_word_embeddings", defaults.tied)?,
            },
            quantization: None,
            text_only: false,
            draft_layers: fields.either_usize("mtp_num_hidden_layers", "num_nextn_predict_layers", 0)?,
        })
    }
}

/// LLaMA's mechanisms.
fn plain(layers: Vec<DecoderLayer>) -> DecoderConfig {
    DecoderConfig {
        layers,
        ropes: Vec::new(),
        norm: NormKind::Rms,
        eps: 1e-6,
        layer_norms: LayerNorms::BEFORE,
        activation: super::Activation::Silu,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        head_norm: HeadNorm::None,
        value_norm: false,
        softcap: None,
        attention_gate: false,
        sinks: false,
        embedding_multiplier: 1.0,
        residual_multiplier: 1.0,
        logits_multiplier: 1.0,
        logits_softcap: None,
        layer_embedding: None,
        layer_scalar: false,
        latent: None,
    }
}

/// The sizes that rotations depend on. `positions` is the number of positions if it is absent.
fn rope_sizes(fields: &Fields<'_>, decoder: &DecoderConfig, positions: usize) -> Result<RopeSizes> {
    let max_positions = fields.usize_or("max_position_embeddings", positions)?;
    Ok(RopeSizes { head_dim: decoder.layers[0].head_dim, max_positions })
}

/// Reads the length of the window. Null means no window. `default` is the value if the member is absent.
fn window_size(fields: &Fields<'_>, default: Option<usize>) -> Result<Option<usize>> {
    match fields.usize("sliding_window")? {
        None if !fields.has("sliding_window") => Ok(default),
        size => Ok(size),
    }
}

/// Reads which layers have a window. Without `layer_types`, layer `i` has one if `is_sliding(i)`.
fn sliding_layers(fields: &Fields<'_>, layers: usize, is_sliding: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    layer_types(fields, layers, is_sliding, |name| match name {
        "sliding_attention" => Some(true),
        "full_attention" => Some(false),
        _ => None,
    })
}

/// Reads `layer_types`, which name two types of layers: `read` translates a name. Without them, layer `i` has the type
/// `default(i)`.
fn layer_types(
    fields: &Fields<'_>,
    layers: usize,
    default: impl Fn(usize) -> bool,
    read: impl Fn(&str) -> Option<bool>,
) -> Result<Vec<bool>> {
    let Some(types) = fields.strings("layer_types")? else { return Ok((0..layers).map(default).collect()) };
    if types.len() != layers {
        return Err(Error::Config(format!("layer_types names {} layers, but there are {layers}", types.len())));
    }
    types
        .iter()
        .map(|name| {
            let unknown = || Error::Unsupported(format!("layer_types has {name:?}, which is not implemented"));
            read(name).ok_or_else(unknown)
        })
        .collect()
}

/// Gives the window to the layers that `sliding` marks.
///
/// # Errors
/// If there are such layers and no window.
fn set_windows(decoder: &mut DecoderConfig, sliding: &[bool], size: Option<usize>) -> Result<()> {
    if size.is_none() && sliding.contains(&true) {
        return Err(Error::Config("layer_types has sliding_attention, but there is no sliding_window".into()));
    }
    for (layer, _) in decoder.layers.iter_mut().zip(sliding).filter(|(_, sliding)| **sliding) {
        layer.window = size;
    }
    Ok(())
}

/// Reads which layers keep a state. Without `layer_types`, layer `i` does if `is_recurrent(i)`.
fn mixed_layers(fields: &Fields<'_>, layers: usize, is_recurrent: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    layer_types(fields, layers, is_recurrent, |name| match name {
        "linear_attention" | "mamba" | "conv" => Some(true),
        "full_attention" | "attention" => Some(false),
        _ => None,
    })
}

/// Makes the layers that `recurrent` marks keep a state.
fn set_recurrent(decoder: &mut DecoderConfig, layer: Recurrent, recurrent: &[bool]) {
    for (own, _) in decoder.layers.iter_mut().zip(recurrent).filter(|(_, recurrent)| **recurrent) {
        (own.recurrent, own.rope) = (Some(layer), None);
    }
}

/// Gives experts to each layer that satisfies `has_experts`.
fn set_experts(decoder: &mut DecoderConfig, experts: Experts, has_experts: impl Fn(usize) -> bool) {
    for (_, layer) in decoder.layers.iter_mut().enumerate().filter(|(i, _)| has_experts(*i)) {
        layer.experts = Some(experts);
        if !layer.is_dense() {
            layer.inner = 0;
        }
    }
}
