//! The fields of completions and chats that control decoding: OpenAI's, and vLLM's extensions.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::tools::constraint::{Grammar, Thoughts};
use engine::tools::sampling::{Beam, EarlyStopping, MAX_LOGPROBS, MAX_OUTPUTS, SamplingOptions, SamplingParams};
use serde::Deserialize;

use super::answer_grammar::exclusive;
use super::stop::{Stop, StopBeams, stop_tokens};
use super::stream::Reports;
use super::structured::{Asked, ResponseFormat, Schema, StructuredOutputs, schema};
use crate::app::App;
use crate::error::{ApiError, check, only};

/// Maximum bytes of a salt. The cache keeps it with the first block of each prompt.
const MAX_SALT_BYTES: usize = 1024;
/// Maximum biased tokens in a request.
const MAX_BIASES: usize = 1024;

/// Fields that all generating endpoints share. An omitted field takes the model's own default if it has one (see
/// [`SamplingOptions`]), or else OpenAI's default.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Decoding {
    /// The model's name, which must be the served one.
    pub model: Option<String>,
    /// Outputs per prompt.
    pub n: Option<usize>,
    /// Outputs to generate, of which the `n` best are returned. In a beam search, the number of beams.
    pub best_of: Option<usize>,
    /// The sampling temperature. 0 is greedy.
    pub temperature: Option<f32>,
    /// Sample among the most likely tokens whose probabilities sum to this value.
    pub top_p: Option<f32>,
    /// Sample among this many of the most likely tokens. 0 and -1 mean all.
    pub top_k: Option<i64>,
    /// Sample among tokens whose probability is at least this fraction of the highest.
    pub min_p: Option<f32>,
    /// Penalises tokens of prompt and output. 1 has no effect.
    pub repetition_penalty: Option<f32>,
    /// Penalises tokens that occur in the output.
    pub presence_penalty: Option<f32>,
    /// Penalises tokens by their number of occurrences in the output.
    pub frequency_penalty: Option<f32>,
    /// Maps token ids, written as strings, to values added to their logits.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// The seed that makes sampling reproducible.
    pub seed: Option<i64>,
    /// Texts that end an output.
    pub stop: Option<Stop>,
    /// Tokens that end an output.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Whether an output's text includes the stop string or stop token that ended it.
    pub include_stop_str_in_output: Option<bool>,
    /// Whether to generate past end-of-sequence tokens.
    pub ignore_eos: Option<bool>,
    /// Minimum tokens of an output.
    pub min_tokens: Option<usize>,
    /// Whether to omit special tokens from the text.
    pub skip_special_tokens: Option<bool>,
    /// Whether to add the special tokens that the model expects around a text to the prompt.
    pub add_special_tokens: Option<bool>,
    /// Whether to use beam search instead of sampling.
    pub use_beam_search: Option<bool>,
    /// The exponent of the length in a beam's score.
    pub length_penalty: Option<f32>,
    /// When to stop a beam search: true, false or "never".
    pub early_stopping: Option<StopBeams>,
    /// The form of outputs, in OpenAI's field.
    pub response_format: Option<ResponseFormat>,
    /// The form of outputs, in vLLM's field.
    pub structured_outputs: Option<StructuredOutputs>,
    /// A JSON schema for outputs, in vLLM's older field.
    pub guided_json: Option<Schema>,
    /// A regular expression for outputs, in vLLM's older field.
    pub guided_regex: Option<String>,
    /// Texts to choose an output from, in vLLM's older field.
    pub guided_choice: Option<Vec<String>>,
    /// A grammar for outputs, in vLLM's older field.
    pub guided_grammar: Option<String>,
    /// Report the logprobs of the prompt's tokens, and this many of the most likely tokens at each position.
    pub prompt_logprobs: Option<usize>,
    /// Whether to report the token ids of prompt and outputs.
    pub return_token_ids: Option<bool>,
    /// Whether logprobs name tokens by their ids.
    pub return_tokens_as_token_ids: Option<bool>,
    /// Cached prompts are shared only with requests of the same salt. vLLM's field.
    pub cache_salt: Option<String>,
    /// The urgency. Requests with lower numbers are served earlier. vLLM's field.
    pub priority: Option<i64>,
    /// Whether to stream tokens as they are generated.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
}

/// The output settings from an endpoint's own fields.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Maximum tokens of each output.
    pub max_tokens: usize,
    /// The number of most likely tokens to report, if any.
    pub logprobs: Option<usize>,
    /// Whether the answer repeats the prompt, with its logprobs.
    pub echo: bool,
    /// A grammar for outputs, with the field that requires it. Without one, a grammar from the shared fields applies.
    pub grammar: Asked,
    /// Reasoning that may come before the constrained output.
    pub thoughts: Thoughts,
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    /// Whether the stream ends with a chunk that counts tokens.
    pub include_usage: Option<bool>,
    /// Whether every chunk counts tokens too. Needs `include_usage`.
    pub continuous_usage_stats: Option<bool>,
    /// Whether chunks may be padded. They never are.
    pub include_obfuscation: Option<bool>,
}

impl Decoding {
    /// Returns the engine's sampling parameters. Waits until the grammar is compiled, if there is one.
    ///
    /// # Errors
    /// 400, naming the field.
    pub async fn params(mut self, app: &App, outputs: Outputs) -> Result<SamplingParams, ApiError> {
        let Outputs { max_tokens, logprobs, echo, grammar, thoughts } = outputs;
        let grammar = match (grammar, self.take_format()?, self.take_constraint()?) {
            (_, Some((format, _)), Some((constraint, _))) => return Err(exclusive(format, constraint)),
            (grammar, format, constraint) => grammar.or(format).or(constraint),
        };
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
        self.check_prompt_logprobs(logprobs.filter(|_| echo))?;
        self.check_ranges()?;
        let top_k = self.top_k.map(|k| usize::try_from(k.max(0)).unwrap_or(usize::MAX));
        let beam = self.beam(width)?;
        let constraint = match grammar {
            Some((field, grammar)) => Some(app.grammars.compile(field, grammar).await?.after(thoughts)),
            None => None,
        };
        let mut params = SamplingParams {
            n,
            best_of: if beam.is_some() { n } else { width },
            max_tokens,
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            logit_bias: self.logit_bias.map_or(Ok(Vec::new()), |biases| logit_bias(&biases, app.config.vocab_size))?,
            // A seed is any 64 bits. A negative seed is read as the unsigned number with the same bits.
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
            cache_salt: self.cache_salt.map(salt).transpose()?,
            adapter: app.adapter(self.model.as_deref())?,
            priority: self.priority.unwrap_or(0),
            ..SamplingParams::default()
        };
        // OpenAI's default temperature of 1 applies if neither the request nor the model sets one.
        let samples = app.defaults.do_sample == Some(true) || beam.is_some();
        let options = SamplingOptions {
            // Beam search has no temperature, but clients send OpenAI's default.
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
    /// Checks `prompt_logprobs`. `echoed` is the number of alternatives that the echoed prompt has.
    fn check_prompt_logprobs(&self, echoed: Option<usize>) -> Result<(), ApiError> {
        let Some(scored) = self.prompt_logprobs else { return Ok(()) };
        let field = "prompt_logprobs";
        check(scored <= MAX_LOGPROBS, field, || format!("prompt_logprobs must be at most {MAX_LOGPROBS}"))?;
        check(self.stream != Some(true), field, || "prompt_logprobs cannot be streamed".into())?;
        check(echoed.is_none_or(|k| k == scored), field, || {
            "prompt_logprobs and logprobs must be equal if echo and logprobs are used together".into()
        })
    }

    /// Refuses fields that need several outputs or OpenAI's form of answers, for APIs whose answers are one message.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn check_single(&self) -> Result<(), ApiError> {
        only(self.n.is_none_or(|n| n == 1), "n", "1")?;
        only(self.best_of.is_none_or(|n| n == 1), "best_of", "1")?;
        only(self.use_beam_search != Some(true), "use_beam_search", "false")?;
        only(self.prompt_logprobs.is_none(), "prompt_logprobs", "left out")?;
        let continuous = self.stream_options.and_then(|options| options.continuous_usage_stats);
        only(continuous != Some(true), "stream_options.continuous_usage_stats", "false")?;
        only(self.return_token_ids != Some(true), "return_token_ids", "false")?;
        only(self.return_tokens_as_token_ids != Some(true), "return_tokens_as_token_ids", "false")
    }

    /// Checks fields that are numbers within a range.
    fn check_ranges(&self) -> Result<(), ApiError> {
        within(self.temperature, "temperature", 0.0, 100.0)?;
        within(self.top_p, "top_p", f32::MIN_POSITIVE, 1.0)?;
        within(self.min_p, "min_p", 0.0, 1.0)?;
        within(self.repetition_penalty, "repetition_penalty", 1e-3, 1e3)?;
        within(self.presence_penalty, "presence_penalty", -2.0, 2.0)?;
        within(self.frequency_penalty, "frequency_penalty", -2.0, 2.0)?;
        within(self.length_penalty, "length_penalty", -100.0, 100.0)?;
        check(self.top_k.is_none_or(|k| k >= -1), "top_k", || "top_k must be -1, 0 or a number of tokens".into())
    }

    /// Returns the parameters of a beam search of this width, if one is requested.
    fn beam(&self, width: usize) -> Result<Option<Beam>, ApiError> {
        let beams = self.use_beam_search.unwrap_or(false);
        let length_penalty = self.length_penalty.unwrap_or(1.0);
        let early_stopping = self.early_stopping.as_ref().map_or(EarlyStopping::No, |stopping| stopping.0);
        let needs_beams = |field: &str| format!("{field} can only be used with use_beam_search");
        check(beams || length_penalty == 1.0, "length_penalty", || needs_beams("length_penalty"))?;
        check(beams || early_stopping == EarlyStopping::No, "early_stopping", || needs_beams("early_stopping"))?;
        Ok(beams.then_some(Beam { width, length_penalty, early_stopping }))
    }

    /// Returns the data that the answer reports in addition to its text.
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

    /// Takes the form of the text from OpenAI's field.
    ///
    /// # Errors
    /// 400 if the field is malformed.
    pub fn take_format(&mut self) -> Result<Asked, ApiError> {
        self.response_format.take().map_or(Ok(None), ResponseFormat::grammar)
    }

    /// Takes the constraint of the output from vLLM's fields. They exclude each other.
    ///
    /// # Errors
    /// 400 if a schema is malformed, or a request has two constraints.
    pub fn take_constraint(&mut self) -> Result<Asked, ApiError> {
        let structured = self.structured_outputs.take().unwrap_or_default().grammars()?;
        let guided = [
            schema("guided_json", self.guided_json.take())?,
            self.guided_regex.take().map(|regex| ("guided_regex", Grammar::Regex(regex))),
            self.guided_choice.take().map(|texts| ("guided_choice", Grammar::Choice(texts))),
            self.guided_grammar.take().map(|text| ("guided_grammar", Grammar::Lark(text))),
        ];
        let mut asked = structured.into_iter().chain(guided).flatten();
        let first = asked.next();
        if let (Some((first, _)), Some((second, _))) = (&first, asked.next()) {
            return Err(exclusive(first, second));
        }
        Ok(first)
    }
}

/// Checks a salt.
///
/// # Errors
/// 400 if it is empty or too long.
pub fn salt(salt: String) -> Result<Arc<str>, ApiError> {
    check((1..=MAX_SALT_BYTES).contains(&salt.len()), "cache_salt", || {
        format!("cache_salt must have between 1 and {MAX_SALT_BYTES} bytes")
    })?;
    Ok(salt.into())
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
        // "7" and "07" name the same token.
        check(parsed.insert(token, bias).is_none(), "logit_bias", || {
            format!("logit_bias: token {token} is given twice")
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
