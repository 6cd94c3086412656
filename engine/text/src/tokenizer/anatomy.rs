//! The components of a tokenizer, so that its properties can be derived from its settings.

use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, ModelWrapper};

/// The character that sentencepiece writes for a space.
pub(super) const SPACE: &str = "\u{2581}";

/// The components of a byte-pair encoding tokenizer.
pub(super) struct Anatomy<'a> {
    /// The normalization steps in order, each as in `tokenizer.json`.
    pub normalizers: Vec<Value>,
    /// The steps that split the normalized text into words.
    pub pre_tokenizers: Vec<Value>,
    /// The model that splits words into tokens.
    pub bpe: &'a BPE,
    /// The model's tokens.
    pub vocabulary: Vec<String>,
    /// Tokens that are matched in the text before normalization.
    pub added: Vec<&'a AddedToken>,
}

impl<'a> Anatomy<'a> {
    /// The components of `tokenizer`. `None` if its model is no byte-pair encoding.
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

    /// Whether words are written in the alphabet that has one character for each byte.
    pub fn is_byte_level(&self) -> bool {
        self.normalizers.iter().chain(&self.pre_tokenizers).any(|step| kind(step) == "ByteLevel")
    }

    /// Whether every character of a word has a token, or its bytes do. Then no character is left out, and no token
    /// stands for more than its own text.
    pub fn encodes_every_character(&self) -> bool {
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

/// The type of a step.
pub(super) fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The steps of a normalizer or pre-tokenizer. Nested sequences are flattened.
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
