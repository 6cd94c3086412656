//! Prompts and completions as text.

use std::time::Duration;

use serde::Serialize;

use crate::group::RequestId;
use crate::sequence::{FinishReason, PromptLogprobs, TokenLogprob};

/// A prompt to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text. The tokenizer adds the model's special tokens.
    Text(String),
    /// Tokens, used as they are.
    Tokens(Vec<u32>),
    /// A text with its tokens, if the caller has encoded it.
    Encoded {
        /// The text.
        text: String,
        /// Its tokens.
        tokens: Vec<u32>,
    },
}

/// The stop string or token of the request that ended an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    /// One of the request's stop strings.
    Text(String),
    /// One of the request's stop tokens.
    Token(u32),
}

/// One continuation of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    /// The text. Special tokens, and the string or token that ended the output, are included only if the request asked
    /// for them.
    pub text: String,
    /// The tokens, including a final end-of-sequence token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The request's stop string or stop token that ended it, if any.
    pub stop_reason: Option<StopReason>,
    /// Sum of the tokens' logprobs.
    pub cumulative_logprob: f64,
    /// The beam search's score.
    pub score: Option<f64>,
    /// One entry per token, if the request asked for logprobs.
    pub logprobs: Option<Vec<TokenLogprob>>,
}

/// An answered request.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The request's id.
    pub id: RequestId,
    /// The prompt as text. With [`SamplingParams::echo`](crate::sampling::SamplingParams::echo) it is decoded so that
    /// the outputs' texts continue it. A character that the prompt's last tokens leave incomplete is then part of the
    /// outputs.
    pub prompt: String,
    /// The prompt as tokens.
    pub prompt_tokens: Vec<u32>,
    /// The number of prompt tokens, counted from the first, that were a prefix hit when the request first started.
    pub cached_tokens: usize,
    /// Logprobs of the prompt's tokens, if requested. A cancelled request's may be incomplete.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The prompt's embedding, of length 1, if requested and not cancelled.
    pub embedding: Option<Vec<f32>>,
    /// The continuations, best first if the request asked to select among several.
    pub outputs: Vec<Continuation>,
    /// From the request's arrival to its first token.
    pub time_to_first_token: Duration,
    /// From the request's arrival to its end.
    pub time: Duration,
}

/// An event of a request in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The prompt of a request that asked for its echo. Comes before the first token of an output that can be streamed.
    Prompt {
        /// The request's id.
        id: RequestId,
        /// The prompt's text, as in [`Completion::prompt`].
        text: String,
        /// The prompt's tokens.
        tokens: Vec<u32>,
        /// The tokens' logprobs, if requested.
        logprobs: Option<PromptLogprobs>,
    },
    /// A token of an output that can be streamed. Beams cannot be streamed, nor outputs of a request that returns only
    /// the best of them.
    Token {
        /// The request's id.
        id: RequestId,
        /// The index of the output.
        index: usize,
        /// The token.
        token: u32,
        /// The text that this token settles. Empty while a character or a stop string may be incomplete. Text still
        /// held back when the output ends is only in its [`Continuation::text`].
        text: String,
        /// The token's logprob, if the request asked for logprobs.
        logprob: Option<TokenLogprob>,
        /// As [`Completion::cached_tokens`].
        cached_tokens: usize,
    },
    /// A request is complete.
    Done(Completion),
}

impl Event {
    /// The id of the request.
    pub fn request(&self) -> RequestId {
        match self {
            Event::Prompt { id, .. } | Event::Token { id, .. } | Event::Done(Completion { id, .. }) => *id,
        }
    }
}
