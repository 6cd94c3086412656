//! `generation_config.json`: the sampling settings that the model's authors suggest.

use super::ModelConfig;
use super::fields::{self, Fields};
use crate::error::{Error, Result};

/// Suggested sampling settings. Each is `None` if the file does not contain it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a text. Empty if the file names none.
    pub eos_token_ids: Vec<u32>,
    /// Whether to sample at all.
    pub do_sample: Option<bool>,
    /// The divisor of the logits.
    pub temperature: Option<f32>,
    /// Number of most likely tokens to keep. 0 keeps all.
    pub top_k: Option<usize>,
    /// The probability mass to keep.
    pub top_p: Option<f32>,
    /// The minimum probability to keep, relative to the most likely token's.
    pub min_p: Option<f32>,
    /// The divisor of the logits of tokens that already occurred.
    pub repetition_penalty: Option<f32>,
    /// Maximum number of tokens to generate.
    pub max_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// Parses the text of a `generation_config.json`.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        let object = fields::parse(text, "generation_config.json")?;
        let fields = Fields::new(&object);
        Ok(GenerationConfig {
            eos_token_ids: fields.tokens("eos_token_id")?.unwrap_or_default(),
            do_sample: fields.bool("do_sample")?,
            temperature: within(&fields, "temperature", 0.0, f32::MAX)?,
            top_k: fields.usize("top_k")?,
            top_p: within(&fields, "top_p", f32::MIN_POSITIVE, 1.0)?,
            min_p: within(&fields, "min_p", 0.0, 1.0)?,
            repetition_penalty: within(&fields, "repetition_penalty", f32::MIN_POSITIVE, f32::MAX)?,
            max_new_tokens: fields.usize("max_new_tokens")?,
        })
    }

    /// Returns the tokens that end a text: this file's, or the model configuration's if this file names none.
    pub fn eos_token_ids_or(&self, config: &ModelConfig) -> Vec<u32> {
        if self.eos_token_ids.is_empty() { config.eos_token_ids.clone() } else { self.eos_token_ids.clone() }
    }
}

fn within(fields: &Fields<'_>, name: &str, least: f32, most: f32) -> Result<Option<f32>> {
    match fields.float(name)?.map(|number| number as f32) {
        Some(number) if !(least..=most).contains(&number) => {
            Err(Error::Config(format!("{name} must be between {least} and {most}, but is {number}")))
        }
        number => Ok(number),
    }
}
