//! The part of the configuration shared by LLaMA, Mistral, Qwen2 and Qwen3.

use super::fields::{Fields, in_range};
use super::{
    Activation, MAX_POSITIONS, MAX_WIDTH, ModelConfig, ModelFamily, Rope, RopeScaling, activation, head_dim, rope,
};
use crate::error::{Error, Result};

/// Settings that are specific to the LLaMA-like architectures.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Elements of the gate and up projections.
    pub intermediate_size: usize,
    /// The epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// Rotary position embeddings.
    pub rope: Rope,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the projection out of attention has a bias.
    pub o_bias: bool,
    /// Whether the feed-forward projections have biases.
    pub mlp_bias: bool,
    /// Whether queries and keys are RMS-normalised per head before the rotation (Qwen3).
    pub qk_norm: bool,
    /// The activation function of the gate.
    pub activation: Activation,
    windows: Windows,
}

impl LlamaConfig {
    /// The number of positions that layer `layer` sees, including its own. `None` for all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        match &self.windows {
            Windows::None => None,
            Windows::All(size) => Some(*size),
            Windows::From { layer: first, size } => (layer >= *first).then_some(*size),
            Windows::Of { layers, size } => layers.get(layer).copied().unwrap_or(false).then_some(*size),
        }
    }
}

/// The layers with a sliding window.
#[derive(Clone, Debug, PartialEq)]
enum Windows {
    None,
    All(usize),
    From { layer: usize, size: usize },
    Of { layers: Vec<bool>, size: usize },
}

/// The architectures that this module reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

/// The default values of a class.
struct Defaults {
    vocab: usize,
    intermediate: usize,
    /// `None` means as many as query heads.
    kv_heads: Option<usize>,
    positions: usize,
    bos: Option<u32>,
    eos: &'static [u32],
}

impl Kind {
    fn defaults(self) -> Defaults {
        let (bos, eos): (_, &'static [u32]) = (Some(1), &[2]);
        match self {
            Kind::Llama => Defaults { vocab: 32000, intermediate: 11008, kv_heads: None, positions: 2048, bos, eos },
            Kind::Mistral => {
                Defaults { vocab: 32000, intermediate: 14336, kv_heads: Some(8), positions: 131072, bos, eos }
            }
            Kind::Qwen2 | Kind::Qwen3 => Defaults {
                vocab: 151936,
                intermediate: 22016,
                kv_heads: Some(32),
                positions: 32768,
                bos: None,
                eos: &[],
            },
        }
    }
}

pub(super) fn read(fields: &Fields<'_>, kind: Kind) -> Result<ModelConfig> {
    let defaults = kind.defaults();
    let hidden = fields.usize_or("hidden_size", 4096)?;
    let heads = fields.usize_or("num_attention_heads", 32)?;
    let layers = fields.usize_or("num_hidden_layers", 32)?;
    let max_positions = fields.usize_or("max_position_embeddings", defaults.positions)?;
    // Null means as many as query heads. An absent member means the default of the class.
    let kv_default = if fields.has("num_key_value_heads") { heads } else { defaults.kv_heads.unwrap_or(heads) };
    let kv_heads = fields.usize_or("num_key_value_heads", kv_default)?;
    let head_dim = match fields.usize("head_dim")? {
        Some(size) => size,
        None if kind == Kind::Qwen3 && !fields.has("head_dim") => 128,
        None => head_dim(hidden, heads)?,
    };
    if !head_dim.is_multiple_of(2) {
        return Err(Error::Config(format!(
            "the head size ({head_dim}) is odd, so its elements cannot be rotated in pairs"
        )));
    }
    let attention_bias = match kind {
        Kind::Llama | Kind::Qwen3 => fields.bool_or("attention_bias", false)?,
        Kind::Mistral | Kind::Qwen2 => false,
    };
    let llama = LlamaConfig {
        intermediate_size: fields.usize_or("intermediate_size", defaults.intermediate)?,
        rms_norm_eps: fields.positive_or("rms_norm_eps", 1e-6)? as f32,
        rope: rope::read(fields, max_positions)?,
        qkv_bias: attention_bias || kind == Kind::Qwen2,
        o_bias: attention_bias,
        mlp_bias: kind == Kind::Llama && fields.bool_or("mlp_bias", false)?,
        qk_norm: kind == Kind::Qwen3,
        activation: activation("hidden_act", fields.string("hidden_act")?.unwrap_or("silu"))?,
        windows: windows(fields, kind, layers)?,
    };
    if let RopeScaling::Factors { factors } = &llama.rope.scaling
        && factors.len() != head_dim / 2
    {
        let count = factors.len();
        return Err(Error::Config(format!("{count} factors for the frequencies of heads of {head_dim} elements")));
    }
    in_range("intermediate_size", llama.intermediate_size, 4 * MAX_WIDTH)?;
    Ok(ModelConfig {
        architecture: String::new(),
        family: ModelFamily::Llama(llama),
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
        tie_word_embeddings: fields.bool_or("tie_word_embeddings", false)?,
        quantization: None,
    })
}

fn windows(fields: &Fields<'_>, kind: Kind, layers: usize) -> Result<Windows> {
    let in_force = match kind {
        Kind::Llama => false,
        Kind::Mistral => true,
        Kind::Qwen2 | Kind::Qwen3 => fields.bool_or("use_sliding_window", false)?,
    };
    // Null disables the window. An absent member means the default of the class.
    let size = match fields.usize("sliding_window")? {
        Some(size) => Some(size),
        None if fields.has("sliding_window") => None,
        None => Some(4096),
    };
    let Some(size) = size.filter(|_| in_force) else { return Ok(Windows::None) };
    in_range("sliding_window", size, MAX_POSITIONS)?;
    if kind == Kind::Mistral {
        return Ok(Windows::All(size));
    }
    let Some(types) = fields.strings("layer_types")? else {
        return Ok(Windows::From { layer: fields.usize_or("max_window_layers", 28)?, size });
    };
    if types.len() != layers {
        return Err(Error::Config(format!("layer_types names {} layers, but there are {layers}", types.len())));
    }
    let layers = types
        .iter()
        .map(|name| match name.as_str() {
            "sliding_attention" => Ok(true),
            "full_attention" => Ok(false),
            other => Err(Error::Unsupported(format!("layer_types has {other:?}, which is not implemented"))),
        })
        .collect::<Result<_>>()?;
    Ok(Windows::Of { layers, size })
}
