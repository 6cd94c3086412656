//! Sampling parameters of a request.

use std::sync::Arc;

use crate::adapter::AdapterHandle;
use crate::constraint::Constraint;
use crate::embedding::Pooling;
use crate::error::{Error, Result};

/// When a beam search may stop, as in Hugging Face's `early_stopping`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyStopping {
    /// As soon as `width` hypotheses are finished (`true`).
    Yes,
    /// When no running beam can beat the worst finished one at its current length (`false`).
    No,
    /// When no running beam can beat the worst finished one at any length (`"never"`).
    Never,
}

/// Beam search: deterministic, over the raw logits (4.4 of the paper). A constraint restricts the beams but does not
/// change their scores. Scores are sums of unconstrained logprobs, as in Hugging Face's `generate` with
/// `prefix_allowed_tokens_fn`. If a constraint allows fewer than `width` sequences, fewer are returned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beam {
    /// Beams kept at each step.
    pub width: usize,
    /// Exponent of the length in `score = sum of logprobs / length^penalty`.
    pub length_penalty: f32,
    /// When to stop.
    pub early_stopping: EarlyStopping,
}

/// Sampling parameters of a request. The default is one greedy output.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Number of outputs to return.
    pub n: usize,
    /// Number of outputs to generate. The `n` with the highest mean logprob are returned. With beam search it is
    /// ignored and must equal `n`.
    pub best_of: usize,
    /// Most tokens to generate per output. The model's positions and the KV pool limit it too. 0 is for requests that
    /// want only a result for the prompt: its echo, logprobs or embedding.
    pub max_tokens: usize,
    /// 0 is greedy: chooses the token with the highest logit, the lower id among equals.
    pub temperature: f32,
    /// Sample among the `k` likeliest tokens. 0 is off.
    pub top_k: usize,
    /// Sample among the smallest set of likeliest tokens whose total probability reaches this.
    pub top_p: f32,
    /// Sample among tokens at least this fraction as likely as the likeliest.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or output. 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logits of tokens in the output.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once per occurrence in the output.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, after the penalties. Each token may occur once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes sampling reproducible, whatever else is in the batch. `None` uses a random seed.
    pub seed: Option<u64>,
    /// Stop strings, which end an output.
    pub stop: Vec<String>,
    /// Tokens that end an output, in addition to the model's end-of-sequence tokens.
    pub stop_token_ids: Vec<u32>,
    /// Whether the stop string or token that ended an output is part of its text.
    pub include_stop_str_in_output: bool,
    /// Whether to continue past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Number of tokens that an output must have before anything may end it. Until then, end-of-sequence tokens and
    /// `stop_token_ids` cannot be chosen, and stop strings are ignored.
    pub min_tokens: usize,
    /// Whether to leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Report each token's logprob, and this many of the likeliest tokens.
    pub logprobs: Option<usize>,
    /// Report the logprobs of the prompt's tokens too, and this many of the likeliest tokens at each position.
    pub prompt_logprobs: Option<usize>,
    /// Return the prompt's embedding instead of generating tokens.
    pub pooling: Option<Pooling>,
    /// Decode outputs as continuations of the prompt. The prompt's text followed by an output's is then the text of all
    /// tokens decoded at once. Otherwise the output may lack its leading space, which some decoders drop.
    pub echo: bool,
    /// A grammar that outputs must match. An output ends when it is complete and no token can follow, even before
    /// `min_tokens`.
    pub constraint: Option<Constraint>,
    /// The numbers of the prompt's tokens up to the ends of messages. Later prompts often begin with the
    /// same messages, so the states of recurrent layers are kept there. They never change an output.
    pub turn_ends: Vec<usize>,
    /// The request shares cached blocks only with requests of the same salt, or without one if this is `None`. It never
    /// changes an output.
    pub cache_salt: Option<Arc<str>>,
    /// The adapter whose products are added to the model's projections. `None` for the model alone.
    pub adapter: Option<AdapterHandle>,
    /// How urgent the request is. Requests with lower numbers are served earlier. It never changes an output.
    pub priority: i64,
    /// Beam search instead of sampling.
    pub beam: Option<Beam>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            n: 1,
            best_of: 1,
            max_tokens: 256,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            include_stop_str_in_output: false,
            ignore_eos: false,
            min_tokens: 0,
            skip_special_tokens: true,
            logprobs: None,
            prompt_logprobs: None,
            pooling: None,
            echo: false,
            constraint: None,
            turn_ends: Vec::new(),
            cache_salt: None,
            adapter: None,
            priority: 0,
            beam: None,
        }
    }
}

/// Most logprobs a request may ask for.
pub const MAX_LOGPROBS: usize = 100;
/// The highest temperature. All possible tokens are equally likely long before it. Tokens that cannot be chosen have
/// negative infinity as their logit, so they stay impossible.
pub const MAX_TEMPERATURE: f32 = 1e30;
/// Most outputs or beams a request may ask for.
pub const MAX_OUTPUTS: usize = 1024;

impl SamplingParams {
    /// The number of sequences that the request runs at the same time.
    pub fn width(&self) -> usize {
        self.beam.map_or(self.best_of, |b| b.width)
    }

    /// Rejects invalid parameters. The error names the field.
    pub fn validate(&self) -> Result<()> {
        check("n", self.n >= 1, "n must be at least 1")?;
        let of_prompt = self.echo || self.prompt_logprobs.is_some() || self.pooling.is_some();
        check("max_tokens", self.max_tokens >= 1 || of_prompt, "max_tokens must be at least 1")?;
        let generates = self.max_tokens > 0 || self.width() > 1 || self.prompt_logprobs.is_some();
        check("pooling", self.pooling.is_none() || !generates, "pooling cannot be combined with outputs or logprobs")?;
        check("min_tokens", self.min_tokens <= self.max_tokens, "min_tokens must not be greater than max_tokens")?;
        check(
            "temperature",
            (0.0..=MAX_TEMPERATURE).contains(&self.temperature),
            format!("temperature must be a number from 0 to {MAX_TEMPERATURE:e}"),
        )?;
        check("top_p", self.top_p > 0.0 && self.top_p <= 1.0, "top_p must be above 0 and at most 1")?;
        check("min_p", (0.0..=1.0).contains(&self.min_p), "min_p must be between 0 and 1")?;
        check(
            "repetition_penalty",
            self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
            "repetition_penalty must be a number above 0",
        )?;
        let penalties = [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)];
        for (field, penalty) in penalties {
            check(field, (-2.0..=2.0).contains(&penalty), format!("{field} must be between -2 and 2"))?;
        }
        check("logit_bias", self.logit_bias.iter().all(|bias| bias.1.is_finite()), "logit_bias must be numbers")?;
        let mut biased: Vec<u32> = self.logit_bias.iter().map(|bias| bias.0).collect();
        biased.sort_unstable();
        check("logit_bias", biased.is_sorted_by(|a, b| a < b), "logit_bias must not name a token twice")?;
        check("stop", self.stop.iter().all(|s| !s.is_empty()), "a stop string must not be empty")?;
        let is_empty = self.cache_salt.as_ref().is_some_and(|salt| salt.is_empty());
        check("cache_salt", !is_empty, "cache_salt must not be empty")?;
        for (field, count) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            let why = format!("{field} must be at most {MAX_LOGPROBS}");
            check(field, count.is_none_or(|k| k <= MAX_LOGPROBS), why)?;
        }
        let width = if self.beam.is_some() { "beam_width" } else { "best_of" };
        let why = format!("at most {MAX_OUTPUTS} outputs or beams can run for one request");
        check(width, self.width() <= MAX_OUTPUTS, why)?;
        match self.beam {
            Some(beam) => self.validate_beam(beam),
            None => check("n", self.n <= self.best_of, "n must not be greater than best_of"),
        }
    }

    fn validate_beam(&self, beam: Beam) -> Result<()> {
        check("beam_width", beam.width >= 1, "beam_width must be at least 1")?;
        check("n", self.n <= beam.width, "n must not be greater than beam_width")?;
        let without = [
            ("best_of", self.best_of == self.n),
            ("temperature", self.temperature == 0.0),
            ("top_k", self.top_k == 0),
            ("top_p", self.top_p == 1.0),
            ("min_p", self.min_p == 0.0),
            ("repetition_penalty", self.repetition_penalty == 1.0),
            ("presence_penalty", self.presence_penalty == 0.0),
            ("frequency_penalty", self.frequency_penalty == 0.0),
            ("logit_bias", self.logit_bias.is_empty()),
            ("stop", self.stop.is_empty()),
            ("stop_token_ids", self.stop_token_ids.is_empty()),
            ("min_tokens", self.min_tokens == 0),
        ];
        for (field, is_off) in without {
            check(field, is_off, format!("{field} cannot be used with beam search"))?;
        }
        check("length_penalty", beam.length_penalty.is_finite(), "length_penalty must be a number")
    }
}

fn check(field: &'static str, ok: bool, why: impl Into<String>) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::request(field, why)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(params: SamplingParams, field: &'static str) {
        let Err(Error::Request(refusal)) = params.validate() else { panic!("{field} is not refused") };
        assert_eq!(refusal.field, Some(field));
        assert!(refusal.why.contains(field), "{refusal}");
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let d = SamplingParams::default;
        assert!(d().validate().is_ok());
        refused(SamplingParams { max_tokens: 0, ..d() }, "max_tokens");
        assert!(SamplingParams { max_tokens: 0, echo: true, ..d() }.validate().is_ok());
        refused(SamplingParams { prompt_logprobs: Some(101), ..d() }, "prompt_logprobs");
        let pooling = Some(Pooling::Last);
        assert!(SamplingParams { pooling, max_tokens: 0, ..d() }.validate().is_ok());
        refused(SamplingParams { pooling, ..d() }, "pooling");
        refused(SamplingParams { pooling, max_tokens: 0, n: 2, best_of: 2, ..d() }, "pooling");
        refused(SamplingParams { temperature: -0.1, ..d() }, "temperature");
        refused(SamplingParams { temperature: f32::NAN, ..d() }, "temperature");
        refused(SamplingParams { top_p: 0.0, ..d() }, "top_p");
        refused(SamplingParams { top_p: 1.1, ..d() }, "top_p");
        refused(SamplingParams { n: 3, best_of: 2, ..d() }, "n");
        refused(SamplingParams { stop: vec![String::new()], ..d() }, "stop");
        refused(SamplingParams { logit_bias: vec![(3, f32::NAN)], ..d() }, "logit_bias");
        refused(SamplingParams { logit_bias: vec![(3, 1.0), (4, 0.0), (3, 2.0)], ..d() }, "logit_bias");
        let beam = Some(Beam { width: 4, length_penalty: 1.0, early_stopping: EarlyStopping::No });
        assert!(SamplingParams { beam, n: 4, best_of: 4, ..d() }.validate().is_ok());
        refused(SamplingParams { beam, temperature: 0.5, ..d() }, "temperature");
        refused(SamplingParams { beam, n: 5, best_of: 5, ..d() }, "n");
    }
}
