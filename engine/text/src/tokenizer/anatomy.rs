//! The parts of a tokenizer, taken apart to see what can be said about it without trying.

use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, ModelWrapper};

/// What sentencepiece writes for a space.
pub(super) const SPACE: &str = "\u{2581}";

/// The parts of a tokenizer whose model is a byte-pair encoding.
pub(super) struct Anatomy<'a> {
    /// What is done to the text, in order, each as `tokenizer.json` has it.
    pub normalizers: Vec<Value>,
    /// How it is then split into words.
    pub pre_tokenizers: Vec<Value>,
    /// What words are made of.
    pub bpe: &'a BPE,
    /// The model's tokens.
    pub vocabulary: Vec<String>,
    /// The tokens that are found in the text before anything is done to it.
    pub added: Vec<&'a AddedToken>,
}

impl<'a> Anatomy<'a> {
    /// The parts of `tokenizer`; nothing if its model is of another kind.
    pub fn of(tokenizer: &'a tokenizers::Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(bpe) = tokenizer.get_model() else { return None };
        Some(Anatomy {
            normalizers: steps(serde_json::to_value(tokenizer.get_normalizer()).ok()?, "normalizers"),
            pre_tokenizers: steps(serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?, "pretokenizers"),
            bpe,
            vocabulary: bpe.get_vocab().into_keys().collect(),
            added: tokenizer.get_added_vocabulary().get_added_tokens_decoder().values().collect(),
        })
    }

    /// Whether words are written in the alphabet that has a character for each byte.
    pub fn is_byte_level(&self) -> bool {
        self.normalizers.iter().chain(&self.pre_tokenizers).any(|step| kind(step) == "ByteLevel")
    }

    /// Whether every word consists of characters or bytes that are tokens, so that none is left out or stands for more
    /// than itself.
    pub fn knows_every_character(&self) -> bool {
        let has = |token: String| self.vocabulary.contains(&token);
        let plain = self.bpe.continuing_subword_prefix.is_none() && self.bpe.end_of_word_suffix.is_none();
        plain
            && if self.is_byte_level() {
                ByteLevel::alphabet().into_iter().all(|byte| has(byte.to_string()))
            } else {
                self.bpe.byte_fallback && (0..=u8::MAX).all(|byte| has(format!("<{byte:#04X}>")))
            }
    }
}

/// The name of a step.
pub(super) fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The steps of a normalizer or pre-tokenizer, of sequences within sequences too.
pub(super) fn steps(part: Value, list: &str) -> Vec<Value> {
    match part {
        Value::Null => Vec::new(),
        Value::Object(mut fields) if fields.get("type").is_some_and(|kind| kind == "Sequence") => {
            let Some(Value::Array(steps_of)) = fields.remove(list) else { return vec![Value::Object(fields)] };
            steps_of.into_iter().flat_map(|step| steps(step, list)).collect()
        }
        step => vec![step],
    }
}
