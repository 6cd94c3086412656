//! A model's configuration: `config.json`, completed with the defaults of its class and checked.

mod decoder;
mod experts;
mod families;
mod fields;
mod generation;
mod gpt2;
mod kv;
mod opt;
mod quantization;
mod recurrent;
mod rope;

pub use decoder::{DecoderConfig, DecoderLayer, HeadNorm, Latent, LayerEmbedding, LayerNorms, NormKind};
pub use experts::{BesideNorms, Clamp, ExpertGroups, Experts, RouterScores, Routing, SharedExpert};
pub use generation::GenerationConfig;
pub use gpt2::Gpt2Config;
pub use kernels::gemm::activation::Activation;
pub use kv::{LayerKv, LayerMemory};
pub use opt::OptConfig;
pub use quantization::{Fp8Scales, GroupSize, QuantFormat, Quantization};
pub use recurrent::{Recurrent, RecurrentKind};
pub use rope::{Rope, RopeScaling};

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::tensor::DType;
use families::Family;
use fields::Fields;

// Bounds far above every published model. Within them, no product of two or three sizes overflows. A damaged file is
// refused before anything is allocated for it.
pub(crate) const MAX_LAYERS: usize = 1 << 10;
const MAX_HEADS: usize = 1 << 12;
const MAX_HEAD_DIM: usize = 1 << 12;
const MAX_WIDTH: usize = 1 << 20;
const MAX_VOCAB: usize = 1 << 24;
const MAX_POSITIONS: usize = 1 << 28;

/// A model's shape and the settings of its architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The class name, such as `OPTForCausalLM`.
    pub architecture: String,
    /// Settings that are specific to the architecture.
    pub family: ModelFamily,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads. Divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Elements of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and output matrices.
    pub vocab_size: usize,
    /// The longest sequence that the model supports.
    pub max_positions: usize,
    /// The type that the weights were saved in, if the file says so.
    pub torch_dtype: Option<DType>,
    /// Tokens that end a text according to `config.json` alone. See [`GenerationConfig::eos_token_ids_or`].
    pub eos_token_ids: Vec<u32>,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// Whether the output matrix is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// How the weights are quantised, if they are.
    pub quantization: Option<Quantization>,
    /// Whether this is the text part of a model that also reads images or sounds.
    pub text_only: bool,
    /// Layers that predict further tokens, for drafts. They are not loaded.
    pub draft_layers: usize,
}

/// Architectures whose forward passes have the same form.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // a model has a single value
pub enum ModelFamily {
    /// OPT.
    Opt(OptConfig),
    /// GPT-2.
    Gpt2(Gpt2Config),
    /// Decoders from LLaMA on.
    Decoder(DecoderConfig),
}

impl ModelFamily {
    /// Prefixes of tensor names that differ between checkpoints of one architecture, longest first.
    pub fn weight_prefixes(&self) -> &'static [&'static str] {
        match self {
            ModelFamily::Opt(_) => &["model.decoder.", "decoder.", "model."],
            ModelFamily::Gpt2(_) => &["transformer."],
            // Multimodal checkpoints have the text model next to others.
            ModelFamily::Decoder(_) => &["model.language_model.", "language_model.", "model."],
        }
    }
}

/// Looks up an activation function by name. `field` is the member that contains the name, for error messages.
fn activation(field: &str, name: &str) -> Result<Activation> {
    match name {
        "relu" => Ok(Activation::Relu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        "silu" | "swish" => Ok(Activation::Silu),
        other => Err(Error::Unsupported(format!(
            "{field} is {other:?}; relu, gelu, gelu_new, gelu_pytorch_tanh and silu are supported"
        ))),
    }
}

/// A class of model, before its fields are read.
#[derive(Clone, Copy)]
enum Class {
    Opt,
    Gpt2,
    Decoder { family: &'static Family, is_multimodal: bool },
}

impl Class {
    fn read(fields: &Fields<'_>) -> Result<(Self, String)> {
        let architecture = fields.first_string("architectures")?;
        let name = match (&architecture, fields.string("model_type")?) {
            (Some(name), _) => name.clone(),
            (None, Some(model_type)) => model_type.to_owned(),
            (None, None) => return Err(Error::Config("it names neither architectures nor model_type".into())),
        };
        let class = match name.as_str() {
            "OPTForCausalLM" | "OPTModel" | "opt" => Class::Opt,
            "GPT2LMHeadModel" | "GPT2Model" | "gpt2" => Class::Gpt2,
            other => match families::find(other) {
                Some((family, is_multimodal)) => Class::Decoder { family, is_multimodal },
                None => return Err(unknown(other)),
            },
        };
        Ok((class, name))
    }
}

fn unknown(name: &str) -> Error {
    let shown: String = name.chars().take(80).collect();
    let mut classes: Vec<&str> = ["OPTForCausalLM", "GPT2LMHeadModel"].into_iter().chain(families::classes()).collect();
    let last = classes.pop().unwrap_or_default();
    Error::Unsupported(format!("{shown:?} is not implemented; {} and {last} are", classes.join(", ")))
}

/// Returns the configuration of a multimodal model's text part. It is in the member `text_config`. The tokens that begin
/// and end texts, and members that the text part lacks, come from the whole configuration.
fn text_config(object: &Map<String, Value>) -> Result<Map<String, Value>> {
    let Some(Value::Object(text)) = object.get("text_config") else {
        return Err(Error::Config("the configuration of a multimodal model has no text_config".into()));
    };
    let mut merged = object.clone();
    for (name, value) in text {
        let is_token = matches!(name.as_str(), "bos_token_id" | "eos_token_id");
        if !(is_token && object.get(name).is_some_and(|value| !value.is_null())) {
            merged.insert(name.clone(), value.clone());
        }
    }
    Ok(merged)
}

impl ModelConfig {
    /// Parses and checks the text of a `config.json`.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        let object = fields::parse(text, "config.json")?;
        let (class, name) = Class::read(&Fields::new(&object))?;
        let text_only = matches!(class, Class::Decoder { is_multimodal: true, .. });
        let object = if text_only { text_config(&object)? } else { object };
        let fields = Fields::new(&object);
        let quantization = Quantization::read(&fields)?;
        let mut config = match class {
            Class::Opt => opt::read(&fields)?,
            Class::Gpt2 => gpt2::read(&fields)?,
            Class::Decoder { family, .. } => family.read(&fields)?,
        };
        config.text_only = text_only;
        config.architecture = name;
        config.quantization = quantization;
        config.torch_dtype = match fields.string("dtype")?.or(fields.string("torch_dtype")?) {
            Some("float32" | "torch.float32") => Some(DType::F32),
            Some("float16" | "torch.float16") => Some(DType::F16),
            Some("bfloat16" | "torch.bfloat16") => Some(DType::Bf16),
            _ => None,
        };
        config.check()?;
        Ok(config)
    }

    /// The class of causal language models that [`Self::architecture`] names, if it names a decoder.
    pub fn class(&self) -> Option<&'static str> {
        families::find(&self.architecture).map(|(family, _)| family.class)
    }

    /// Elements of a token's final hidden state, which logits are computed from, and of embeddings.
    pub fn output_width(&self) -> usize {
        match &self.family {
            ModelFamily::Opt(opt) => opt.word_embed_proj_dim,
            ModelFamily::Gpt2(_) | ModelFamily::Decoder(_) => self.hidden,
        }
    }

    /// Elements of the queries of one token: `heads * head_dim`.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of the keys, or of the values, of one token: `kv_heads * head_dim`.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The maximum number of positions that a token sees in any layer, including its own. `None` if any layer sees all.
    pub fn window(&self) -> Option<usize> {
        self.kv_layers().into_iter().map(|layer| layer.window).reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    /// The number of tokens of the longest sequence whose positions are encoded as in short sequences. `None` if all
    /// sequences are encoded alike.
    pub fn regime_boundary(&self) -> Option<usize> {
        match &self.family {
            ModelFamily::Opt(_) | ModelFamily::Gpt2(_) => None,
            ModelFamily::Decoder(decoder) => decoder.ropes.iter().find_map(Rope::regime_boundary),
        }
    }

    /// Checks the conditions that hold for every architecture.
    fn check(&self) -> Result<()> {
        let invalid = |sentence: String| Err(Error::Config(sentence));
        for (name, value, most) in [
            ("the number of layers", self.layers, MAX_LAYERS),
            ("the number of attention heads", self.heads, MAX_HEADS),
            ("the number of key-value heads", self.kv_heads, MAX_HEADS),
            ("the head size", self.head_dim, MAX_HEAD_DIM),
            ("the hidden size", self.hidden, MAX_WIDTH),
            ("the width of all heads", self.heads.saturating_mul(self.head_dim), MAX_WIDTH),
            ("vocab_size", self.vocab_size, MAX_VOCAB),
            ("the number of positions", self.max_positions, MAX_POSITIONS),
        ] {
            fields::in_range(name, value, most)?;
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return invalid(format!(
                "num_attention_heads ({}) is not a multiple of num_key_value_heads ({})",
                self.heads, self.kv_heads
            ));
        }
        Ok(())
    }
}

/// Returns `hidden / heads`, which must be a whole number.
fn head_dim(hidden: usize, heads: usize) -> Result<usize> {
    match hidden.checked_rem(heads) {
        Some(0) => Ok(hidden / heads),
        Some(_) => Err(Error::Config(format!(
            "the hidden size ({hidden}) is not a multiple of the number of attention heads ({heads})"
        ))),
        None => Err(Error::Config("the number of attention heads is zero".into())),
    }
}

#[cfg(test)]
mod tests;
