//! The metadata that is written to a GGUF file, derived from a configuration and a tokenizer.

use serde_json::Value;

use super::decoder::{self, Decoder};
use super::kinds::{BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};
use super::names::Architecture;
use super::splits;
use super::writer::{Entries, refused};
use crate::config::{Activation, GenerationConfig, ModelConfig, ModelFamily};
use crate::error::{Error, Result};

/// Writes the shape of a model.
///
/// # Errors
/// If the format cannot represent a setting of the model.
pub(super) fn config(entries: &mut Entries, architecture: Architecture, config: &ModelConfig) -> Result<()> {
    let name = |key: &str| format!("{}.{key}", architecture.name());
    entries.u32(&name("vocab_size"), config.vocab_size);
    entries.u32(&name("context_length"), config.max_positions);
    entries.u32(&name("embedding_length"), config.hidden);
    entries.u32(&name("block_count"), config.layers);
    entries.u32(&name("attention.head_count"), config.heads);
    match &config.family {
        ModelFamily::Decoder(decoder) => Decoder { entries, architecture, config, decoder }.write()?,
        ModelFamily::Gpt2(gpt2) => {
            if gpt2.activation != Activation::GeluTanh {
                return Err(refused("the activation function is not GELU by tanh"));
            }
            entries.u32(&name("feed_forward_length"), gpt2.n_inner);
            entries.f32(&name("attention.layer_norm_epsilon"), gpt2.layer_norm_epsilon);
        }
        ModelFamily::Opt(opt) => {
            entries.u32(&name("feed_forward_length"), opt.ffn_dim);
            entries.u32(&name("word_embedding_length"), opt.word_embed_proj_dim);
            entries.bool(&name("norm_first"), opt.do_layer_norm_before);
            let function = match opt.activation {
                Activation::Relu => "relu",
                Activation::Gelu => "gelu",
                Activation::GeluTanh => "gelu_new",
                Activation::Silu => "silu",
            };
            entries.text(&name("activation_function"), function);
        }
    }
    Ok(())
}

/// Returns the lists of divisors of the rotation's frequencies that a file has, with their names.
pub(super) fn rope_factors(config: &ModelConfig) -> Vec<(&'static str, Vec<f32>)> {
    match &config.family {
        ModelFamily::Decoder(decoder) => decoder::factors(decoder),
        ModelFamily::Opt(_) | ModelFamily::Gpt2(_) => Vec::new(),
    }
}

/// Writes the suggested sampling settings, and the tokens that begin and end texts.
pub(super) fn generation(entries: &mut Entries, config: &ModelConfig, generation: &GenerationConfig) {
    let ends = generation.eos_token_ids_or(config);
    for (name, id) in ["eos", "eot", "eom"].into_iter().zip(ends) {
        entries.u32(&format!("tokenizer.ggml.{name}_token_id"), id as usize);
    }
    if let Some(id) = config.bos_token_id {
        entries.u32("tokenizer.ggml.bos_token_id", id as usize);
    }
    if generation.do_sample != Some(true) {
        return;
    }
    entries.f32("general.sampling.temp", generation.temperature.unwrap_or(1.0));
    let numbers =
        [("top_p", generation.top_p), ("min_p", generation.min_p), ("penalty_repeat", generation.repetition_penalty)];
    for (name, number) in numbers {
        if let Some(number) = number {
            entries.f32(&format!("general.sampling.{name}"), number);
        }
    }
    if let Some(count) = generation.top_k {
        entries.u32("general.sampling.top_k", count);
    }
}

/// Writes a tokenizer for a vocabulary of `rows` tokens. `text` is its `tokenizer.json`. It writes lists of tokens and
/// merges, which other programs read. It also writes the text itself, which this program reads.
///
/// # Errors
/// If the tokenizer is not a byte-pair encoding.
pub(super) fn tokenizer(entries: &mut Entries, text: &str, rows: usize, adds_bos: bool) -> Result<()> {
    let broken = || Error::Tokenizer("the tokenizer has no vocabulary of a byte-pair encoding".into());
    let json: Value = serde_json::from_str(text).map_err(|error| Error::Tokenizer(error.to_string()))?;
    let model = &json["model"];
    let vocabulary = model["vocab"].as_object().filter(|_| model["type"] == "BPE").ok_or_else(broken)?;
    let by_characters = model["byte_fallback"] == true;
    let unknown = model["unk_token"].as_str();
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![UNUSED; rows];
    let mut put = |id: Option<u64>, token: &str, kind: i32| {
        if let Some(id) = id.and_then(|id| usize::try_from(id).ok()).filter(|&id| id < rows) {
            token.clone_into(&mut tokens[id]);
            kinds[id] = kind;
        }
    };
    for (token, id) in vocabulary {
        let is_byte = by_characters && token.len() == 6 && token.starts_with("<0x");
        put(id.as_u64(), token, if is_byte { BYTE } else { NORMAL });
    }
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        let content = token["content"].as_str().unwrap_or_default();
        let kind = match token["special"] == true {
            true if by_characters && unknown == Some(content) => UNKNOWN,
            true => CONTROL,
            false => USER_DEFINED,
        };
        put(token["id"].as_u64(), content, kind);
    }
    if let Some(id) = unknown.and_then(|token| vocabulary.get(token)).and_then(Value::as_u64) {
        entries.u32("tokenizer.ggml.unknown_token_id", id as usize);
    }
    let merges: Vec<String> = model["merges"].as_array().ok_or_else(broken)?.iter().filter_map(merge).collect();
    if by_characters {
        entries.text("tokenizer.ggml.model", "llama");
        entries.text("tokenizer.ggml.pre", "default");
        entries.f32s("tokenizer.ggml.scores", &scores(&tokens, &merges));
        // Tokenizers of Gemma do not prepend a space.
        let normalizers = std::iter::once(&json["normalizer"])
            .chain(json["normalizer"]["normalizers"].as_array().into_iter().flatten());
        let prepends = normalizers.into_iter().any(|normalizer| normalizer["type"] == "Prepend");
        let prepends = prepends || json["pre_tokenizer"]["type"] == "Metaspace";
        entries.bool("tokenizer.ggml.add_space_prefix", prepends);
    } else {
        entries.text("tokenizer.ggml.model", "gpt2");
        entries.text("tokenizer.ggml.pre", splits::name_of(&json).unwrap_or("default"));
        entries.texts("tokenizer.ggml.merges", &merges);
    }
    entries.texts("tokenizer.ggml.tokens", &tokens);
    entries.i32s("tokenizer.ggml.token_type", &kinds);
    entries.bool("tokenizer.ggml.add_bos_token", adds_bos);
    entries.text("tokenizer.huggingface.json", text);
    Ok(())
}

/// Reads a merge, which is one string or a list of two.
fn merge(value: &Value) -> Option<String> {
    match value {
        Value::String(both) => Some(both.clone()),
        parts => Some(format!("{} {}", parts.get(0)?.as_str()?, parts.get(1)?.as_str()?)),
    }
}

/// Returns scores that reproduce the order of merges. A token's score is the negated rank of the first merge that
/// produces it.
fn scores(tokens: &[String], merges: &[String]) -> Vec<f32> {
    let mut first = std::collections::HashMap::new();
    for (rank, merge) in merges.iter().enumerate() {
        first.entry(merge.replacen(' ', "", 1)).or_insert(rank);
    }
    // Tokens that no merge produces come last, like sentencepiece's single characters.
    let score = |(id, token): (usize, &String)| first.get(token).map_or(-1e6 - id as f32, |&rank| -(rank as f32));
    tokens.iter().enumerate().map(score).collect()
}
