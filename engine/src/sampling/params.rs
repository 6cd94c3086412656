//! How a request wants its tokens chosen.

use crate::error::{Error, Result};

/// When a beam search may stop, as in Hugging Face's `early_stopping`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyStopping {
    /// As soon as `width` hypotheses are finished (`true`).
    Yes,
    /// When no running beam can beat the worst finished one at its present length (`false`).
    No,
    /// When no running beam can beat the worst finished one at any length (`"never"`).
    Never,
}

/// Beam search: deterministic, over the raw logits (4.4 of the paper).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beam {
    /// Beams kept at each step.
    pub width: usize,
    /// Exponent of the length in `score = sum of logprobs / length^penalty`.
    pub length_penalty: f32,
    /// When to stop.
    pub early_stopping: EarlyStopping,
}

/// Everything a request can ask of the choice of tokens. The default is greedy, one output.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Outputs returned.
    pub n: usize,
    /// Outputs generated, of which the `n` with the highest mean logprob are returned. With beam search this has no
    /// meaning and stays equal to `n`.
    pub best_of: usize,
    /// Most tokens generated per output. The model's positions and the KV pool bound it too. 0 is for requests that
    /// want something of the prompt: its echo or its logprobs.
    pub max_tokens: usize,
    /// 0 is greedy: the token with the highest logit, the lower id among equals.
    pub temperature: f32,
    /// Sample among the `k` likeliest tokens; 0 is all.
    pub top_k: usize,
    /// Sample among the likeliest tokens that together reach this probability.
    pub top_p: f32,
    /// Sample among tokens at least this fraction as likely as the likeliest.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the output.
    pub presence_penalty: f32,
    /// Subtracted from logits once per occurrence in the output.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, after the penalties. No token is named twice.
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes sampling reproducible, whatever else is in the batch. `None` takes a random seed.
    pub seed: Option<u64>,
    /// Texts that end an output; they are not part of it.
    pub stop: Vec<String>,
    /// Generate past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Report this many of the likeliest tokens with each token's logprob.
    pub logprobs: Option<usize>,
    /// Report the logprobs of the prompt's tokens too, with this many of the likeliest in the place of each.
    pub prompt_logprobs: Option<usize>,
    /// Outputs are read as going on from the prompt: the prompt's text and an output's, one after the other, are what all
    /// tokens are decoded to at once. An output by itself may lack a space in front, which some decoders drop.
    pub echo: bool,
    /// Beam search in place of sampling.
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
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
            echo: false,
            beam: None,
        }
    }
}

/// Most logprobs a request may ask for.
pub const MAX_LOGPROBS: usize = 100;
/// Most outputs or beams a request may ask for.
pub const MAX_OUTPUTS: usize = 1024;

impl SamplingParams {
    /// Sequences that the request runs side by side.
    pub fn width(&self) -> usize {
        self.beam.map_or(self.best_of, |b| b.width)
    }

    /// Refuses what makes no sense, naming the field.
    pub fn validate(&self) -> Result<()> {
        let check = |ok: bool, why: &str| if ok { Ok(()) } else { Err(Error::Request(why.into())) };
        check(self.n >= 1, "n must be at least 1")?;
        let of_prompt = self.echo || self.prompt_logprobs.is_some();
        check(self.max_tokens >= 1 || of_prompt, "max-tokens must be at least 1")?;
        check(
            self.temperature.is_finite() && self.temperature >= 0.0,
            "temperature must be a number that is not negative",
        )?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top-p must be above 0 and at most 1")?;
        check((0.0..=1.0).contains(&self.min_p), "min-p must be between 0 and 1")?;
        check(
            self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
            "repetition-penalty must be a number above 0",
        )?;
        check(
            (-2.0..=2.0).contains(&self.presence_penalty) && (-2.0..=2.0).contains(&self.frequency_penalty),
            "presence-penalty and frequency-penalty must be between -2 and 2",
        )?;
        check(self.logit_bias.iter().all(|bias| bias.1.is_finite()), "logit-bias must be numbers")?;
        let mut biased: Vec<u32> = self.logit_bias.iter().map(|bias| bias.0).collect();
        biased.sort_unstable();
        check(biased.is_sorted_by(|a, b| a < b), "logit-bias must not name a token twice")?;
        check(self.stop.iter().all(|s| !s.is_empty()), "a stop string must not be empty")?;
        let logprobs = self.logprobs.max(self.prompt_logprobs);
        check(logprobs.is_none_or(|k| k <= MAX_LOGPROBS), &format!("logprobs must be at most {MAX_LOGPROBS}"))?;
        check(self.width() <= MAX_OUTPUTS, &format!("at most {MAX_OUTPUTS} outputs or beams can run for one request"))?;
        match self.beam {
            Some(beam) => self.validate_beam(beam, check),
            None => check(self.n <= self.best_of, "n must not be greater than best-of"),
        }
    }

    fn validate_beam(&self, beam: Beam, check: impl Fn(bool, &str) -> Result<()>) -> Result<()> {
        check(beam.width >= 1, "beam-width must be at least 1")?;
        check(self.n <= beam.width, "n must not be greater than beam-width")?;
        check(self.best_of == self.n, "best-of cannot be used with beam search")?;
        check(self.temperature == 0.0, "temperature cannot be used with beam search")?;
        check(
            self.top_k == 0 && self.top_p == 1.0 && self.min_p == 0.0,
            "top-k, top-p and min-p cannot be used with beam search",
        )?;
        check(
            self.repetition_penalty == 1.0 && self.presence_penalty == 0.0 && self.frequency_penalty == 0.0,
            "penalties cannot be used with beam search",
        )?;
        check(self.logit_bias.is_empty(), "logit-bias cannot be used with beam search")?;
        check(self.stop.is_empty(), "stop strings cannot be used with beam search")?;
        check(beam.length_penalty.is_finite(), "length-penalty must be a number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(params: SamplingParams, naming: &str) {
        let message = params.validate().unwrap_err().to_string();
        assert!(message.contains(naming), "{message}");
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        let d = SamplingParams::default;
        assert!(d().validate().is_ok());
        refused(SamplingParams { max_tokens: 0, ..d() }, "max-tokens");
        assert!(SamplingParams { max_tokens: 0, echo: true, ..d() }.validate().is_ok());
        refused(SamplingParams { prompt_logprobs: Some(101), ..d() }, "logprobs");
        refused(SamplingParams { temperature: -0.1, ..d() }, "temperature");
        refused(SamplingParams { temperature: f32::NAN, ..d() }, "temperature");
        refused(SamplingParams { top_p: 0.0, ..d() }, "top-p");
        refused(SamplingParams { top_p: 1.1, ..d() }, "top-p");
        refused(SamplingParams { n: 3, best_of: 2, ..d() }, "best-of");
        refused(SamplingParams { stop: vec![String::new()], ..d() }, "stop");
        refused(SamplingParams { logit_bias: vec![(3, f32::NAN)], ..d() }, "logit-bias");
        refused(SamplingParams { logit_bias: vec![(3, 1.0), (4, 0.0), (3, 2.0)], ..d() }, "logit-bias");
        let beam = Some(Beam { width: 4, length_penalty: 1.0, early_stopping: EarlyStopping::No });
        assert!(SamplingParams { beam, n: 4, best_of: 4, ..d() }.validate().is_ok());
        refused(SamplingParams { beam, temperature: 0.5, ..d() }, "temperature");
        refused(SamplingParams { beam, n: 5, best_of: 5, ..d() }, "beam-width");
    }
}
