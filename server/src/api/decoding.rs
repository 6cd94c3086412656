//! The fields by which completions and chats say how tokens are chosen: OpenAI's, and vLLM's extensions.

use std::collections::BTreeMap;

use engine::constraint::{Grammar, Thoughts};
use engine::sampling::{Beam, EarlyStopping, MAX_LOGPROBS, MAX_OUTPUTS, SamplingOptions, SamplingParams};
use serde::Deserialize;

use super::stop::{Stop, StopBeams, stop_tokens};
use super::stream::Reports;
use super::structured::{FormFields, ResponseFormat, Schema, StructuredOutputs};
use crate::app::App;
use crate::error::{ApiError, check};

/// Biased tokens in a request, at most.
const MAX_BIASES: usize = 1024;

/// Fields that all requests for text have. What is left out falls back on the model's own defaults where it has any
/// (see [`SamplingOptions`]), else on OpenAI's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Decoding {
    /// The model; there is one.
    pub model: Option<String>,
    /// Outputs per prompt.
    pub n: Option<usize>,
    /// Outputs generated, of which the `n` best are returned; with beam search the number of beams.
    pub best_of: Option<usize>,
    /// Randomness; 0 is greedy.
    pub temperature: Option<f32>,
    /// Sample among the likeliest tokens that reach this probability.
    pub top_p: Option<f32>,
    /// Sample among this many of the likeliest tokens; 0 and -1 are all.
    pub top_k: Option<i64>,
    /// Sample among tokens at least this fraction as likely as the likeliest.
    pub min_p: Option<f32>,
    /// Weakens tokens of prompt and output; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// Weakens tokens of the output.
    pub presence_penalty: Option<f32>,
    /// Weakens tokens by how often they are in the output.
    pub frequency_penalty: Option<f32>,
    /// From token ids, written as strings, to what is added to their logits.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Makes sampling reproducible.
    pub seed: Option<i64>,
    /// Texts that end an output.
    pub stop: Option<Stop>,
    /// Tokens that end an output.
    pub stop_token_ids: Option<Vec<u32>>,
    /// What ended an output, a text or a token, is part of its text.
    pub include_stop_str_in_output: Option<bool>,
    /// Generate past end-of-sequence tokens.
    pub ignore_eos: Option<bool>,
    /// Tokens that an output has before anything may end it.
    pub min_tokens: Option<usize>,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: Option<bool>,
    /// Give the prompt the special tokens that the model expects around a text.
    pub add_special_tokens: Option<bool>,
    /// Beam search in place of sampling.
    pub use_beam_search: Option<bool>,
    /// Exponent of the length in a beam's score.
    pub length_penalty: Option<f32>,
    /// When a beam search stops: true, false or "never".
    pub early_stopping: Option<StopBeams>,
    /// Which form an output has: OpenAI's way to ask for JSON.
    pub response_format: Option<ResponseFormat>,
    /// vLLM's way to ask for texts of a form.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Its older ways, a field for each: a JSON schema,
    pub guided_json: Option<Schema>,
    /// a regular expression,
    pub guided_regex: Option<String>,
    /// texts to choose from,
    pub guided_choice: Option<Vec<String>>,
    /// a grammar.
    pub guided_grammar: Option<String>,
    /// Report the logprobs of the prompt's tokens, and this many of the likeliest in the place of each.
    pub prompt_logprobs: Option<usize>,
    /// Report the ids of the prompt's and the outputs' tokens.
    pub return_token_ids: Option<bool>,
    /// Name tokens by their ids where logprobs are reported.
    pub return_tokens_as_token_ids: Option<bool>,
    /// Send tokens as they come.
    pub stream: Option<bool>,
    /// How.
    pub stream_options: Option<StreamOptions>,
}

/// What an endpoint's own fields say about outputs.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Most tokens of each.
    pub max_tokens: usize,
    /// Report so many of the likeliest tokens.
    pub logprobs: Option<usize>,
    /// The prompt is part of the answer, with logprobs of its own.
    pub echo: bool,
    /// What outputs must be, with the field that says so, in place of what other fields say.
    pub grammar: Option<(&'static str, Grammar)>,
    /// What may come before that.
    pub thoughts: Thoughts,
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    /// End with a chunk that counts tokens.
    pub include_usage: Option<bool>,
    /// Count them in every chunk, if the stream ends with a count.
    pub continuous_usage_stats: Option<bool>,
    /// Whether chunks may be padded; they are not.
    pub include_obfuscation: Option<bool>,
}

impl Decoding {
    /// The engine's parameters for such outputs. Waits until their grammar is compiled, if there is one.
    ///
    /// # Errors
    /// 400, naming the field.
    pub async fn params(mut self, app: &App, outputs: Outputs) -> Result<SamplingParams, ApiError> {
        let Outputs { max_tokens, logprobs, echo, grammar, thoughts } = outputs;
        let asked = self.form_fields().grammar()?;
        let grammar = grammar.or(asked);
        let n = self.n.unwrap_or(1);
        let beams = self.use_beam_search.unwrap_or(false);
        let width = self.best_of.unwrap_or(n);
        let most = MAX_OUTPUTS.min(app.engine_options.scheduler.max_num_seqs);
        check(n >= 1 && n <= most, "n", || format!("n must be between 1 and {most}"))?;
        check(width >= n && width <= most, "best_of", || format!("best_of must be between n and {most}"))?;
        let streams = self.stream.unwrap_or(false);
        check(!streams || beams || width == n, "best_of", || "best_of outputs cannot be streamed".into())?;
        check(streams || self.stream_options.is_none(), "stream_options", || {
            "stream_options can only be used with stream".into()
        })?;
        let scored = self.prompt_logprobs;
        check(scored.is_none_or(|k| k <= MAX_LOGPROBS), "prompt_logprobs", || {
            format!("prompt_logprobs must be at most {MAX_LOGPROBS}")
        })?;
        check(scored.is_none() || !streams, "prompt_logprobs", || "prompt_logprobs cannot be streamed".into())?;
        check(scored.is_none() || !(echo && logprobs.is_some_and(|k| Some(k) != scored)), "prompt_logprobs", || {
            "prompt_logprobs and logprobs must be the same number where the prompt is repeated with its logprobs".into()
        })?;
        within(self.temperature, "temperature", 0.0, 100.0)?;
        within(self.top_p, "top_p", f32::MIN_POSITIVE, 1.0)?;
        within(self.min_p, "min_p", 0.0, 1.0)?;
        within(self.repetition_penalty, "repetition_penalty", 1e-3, 1e3)?;
        within(self.presence_penalty, "presence_penalty", -2.0, 2.0)?;
        within(self.frequency_penalty, "frequency_penalty", -2.0, 2.0)?;
        within(self.length_penalty, "length_penalty", -100.0, 100.0)?;
        let top_k = self.top_k.map(|k| usize::try_from(k.max(0)).unwrap_or(usize::MAX));
        check(self.top_k.is_none_or(|k| k >= -1), "top_k", || "top_k must be -1, 0 or a number of tokens".into())?;
        let length_penalty = self.length_penalty.unwrap_or(1.0);
        let early_stopping = self.early_stopping.map_or(EarlyStopping::No, |stopping| stopping.0);
        let needs_beams = |field: &str| format!("{field} can only be used with use_beam_search");
        check(beams || length_penalty == 1.0, "length_penalty", || needs_beams("length_penalty"))?;
        check(beams || early_stopping == EarlyStopping::No, "early_stopping", || needs_beams("early_stopping"))?;
        let constraint = match grammar {
            Some((field, grammar)) => {
                for place in grammar.unchecked() {
                    tracing::warn!(field, %place, "the answer is not checked for a part of its schema");
                }
                Some(app.grammars.compile(field, grammar).await?.after(thoughts))
            }
            None => None,
        };
        let beam = beams.then_some(Beam { width, length_penalty, early_stopping });
        let mut params = SamplingParams {
            n,
            best_of: if beam.is_some() { n } else { width },
            max_tokens,
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            logit_bias: self.logit_bias.map_or(Ok(Vec::new()), |biases| logit_bias(&biases, app.config.vocab_size))?,
            // A seed is any 64 bits: a negative one is taken as the unsigned number of the same bits.
            seed: self.seed.map(|seed| seed as u64),
            stop: self.stop.map_or(Ok(Vec::new()), Stop::strings)?,
            stop_token_ids: self.stop_token_ids.map_or(Ok(Vec::new()), stop_tokens)?,
            include_stop_str_in_output: self.include_stop_str_in_output.unwrap_or(false),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            min_tokens: self.min_tokens.unwrap_or(0),
            skip_special_tokens: self.skip_special_tokens.unwrap_or(true),
            logprobs,
            prompt_logprobs: self.prompt_logprobs.or(logprobs.filter(|_| echo)),
            echo,
            constraint,
            beam,
            ..SamplingParams::default()
        };
        // OpenAI's temperature is 1 where neither the request nor the model says anything.
        let samples = app.defaults.do_sample == Some(true) || beam.is_some();
        let options = SamplingOptions {
            // Beams have no temperature, and clients send OpenAI's default.
            temperature: match self.temperature.filter(|&temperature| beam.is_none() || temperature != 1.0) {
                None if !samples => Some(1.0),
                temperature => temperature,
            },
            top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
        };
        options.apply(&app.defaults, &mut params);
        params.validate()?;
        Ok(params)
    }
}

impl Decoding {
    /// What the answer reports besides its text.
    pub fn reports(&self) -> Reports {
        let usage = self.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        let continuous = self.stream_options.and_then(|options| options.continuous_usage_stats).unwrap_or(false);
        Reports {
            usage,
            usage_in_chunks: usage && continuous,
            token_ids: self.return_token_ids.unwrap_or(false),
            tokens_as_ids: self.return_tokens_as_token_ids.unwrap_or(false),
        }
    }

    /// Takes out what says which form outputs have.
    fn form_fields(&mut self) -> FormFields {
        FormFields {
            response_format: self.response_format.take(),
            structured_outputs: self.structured_outputs.take(),
            guided_json: self.guided_json.take(),
            guided_regex: self.guided_regex.take(),
            guided_choice: self.guided_choice.take(),
            guided_grammar: self.guided_grammar.take(),
        }
    }
}

fn logit_bias(biases: &BTreeMap<String, f32>, vocab_size: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    check(biases.len() <= MAX_BIASES, "logit_bias", || format!("at most {MAX_BIASES} tokens can have a bias"))?;
    let mut parsed = BTreeMap::new();
    for (id, &bias) in biases {
        within(Some(bias), "logit_bias", -100.0, 100.0)?;
        let token = id.parse().ok().filter(|&token: &u32| (token as usize) < vocab_size);
        let token = token.ok_or_else(|| {
            ApiError::field(
                "logit_bias",
                format!("logit_bias: {id:?} is not the id of one of the model's {vocab_size} tokens"),
            )
        })?;
        // "7" and "07" are the same token.
        check(parsed.insert(token, bias).is_none(), "logit_bias", || {
            format!("logit_bias: token {token} is there twice")
        })?;
    }
    Ok(parsed.into_iter().collect())
}

fn within(value: Option<f32>, field: &str, least: f32, most: f32) -> Result<(), ApiError> {
    let inside = value.is_none_or(|v| (least..=most).contains(&v));
    check(inside, field, || match least {
        f32::MIN_POSITIVE => format!("{field} must be above 0 and at most {most}"),
        least => format!("{field} must be between {least} and {most}"),
    })
}
