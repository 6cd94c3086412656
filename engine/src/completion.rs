//! What a model is asked, and what it answers, as text.

use std::time::Duration;

use serde::Serialize;

use crate::group::RequestId;
use crate::sequence::{FinishReason, PromptLogprobs, TokenLogprob};

/// What is to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text; the tokenizer adds the model's special tokens.
    Text(String),
    /// Tokens, taken as they are.
    Tokens(Vec<u32>),
    /// A text together with its tokens, where it was encoded elsewhere.
    Encoded {
        /// The text.
        text: String,
        /// Its tokens.
        tokens: Vec<u32>,
    },
}

/// What ended an output, where it was something that the request named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    /// One of its stop strings.
    Text(String),
    /// One of its tokens.
    Token(u32),
}

/// One continuation of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    /// The text, with special tokens and with what has ended it only if the request wants these.
    pub text: String,
    /// The tokens, a closing end-of-sequence token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What ended it, if the request named that.
    pub stop_reason: Option<StopReason>,
    /// Sum of the tokens' logprobs.
    pub cumulative_logprob: f64,
    /// The beam search's score.
    pub score: Option<f64>,
    /// One entry a token, if the request asked for logprobs.
    pub logprobs: Option<Vec<TokenLogprob>>,
}

/// An answered request.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The request.
    pub id: RequestId,
    /// The prompt as text. With [`SamplingParams::echo`](crate::sampling::SamplingParams::echo) what outputs' texts
    /// are to follow: a character that the prompt's tokens leave incomplete is in these.
    pub prompt: String,
    /// The prompt as tokens.
    pub prompt_tokens: Vec<u32>,
    /// How many of them, from the first on, were a prefix hit when the request began to be computed.
    pub cached_tokens: usize,
    /// Their logprobs, if the request asked for them. Those of a request that was cancelled may end early.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The prompt's embedding, of length 1, if the request asked for it and was not cancelled.
    pub embedding: Option<Vec<f32>>,
    /// The continuations, best first where the request asked for a choice.
    pub outputs: Vec<Continuation>,
    /// From the request's arrival to its first token.
    pub time_to_first_token: Duration,
    /// From the request's arrival to its end.
    pub time: Duration,
}

/// What happens to requests in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestEvent {
    /// The prompt of a request that asked for its echo, before the first token of an output that can be streamed.
    Prompt {
        /// The request.
        id: RequestId,
        /// The prompt's text, as in [`Completion::prompt`].
        text: String,
        /// Its tokens.
        tokens: Vec<u32>,
        /// Their logprobs, if the request asked for them.
        logprobs: Option<PromptLogprobs>,
    },
    /// A token of an output that can be streamed. Outputs that compete for being returned, and beams, cannot.
    Token {
        /// The request.
        id: RequestId,
        /// Which of its outputs.
        index: usize,
        /// The token.
        token: u32,
        /// The text that is settled by it; empty while a character or a stop string may be incomplete. What is still
        /// held back when the output ends is in its [`Continuation::text`] only.
        text: String,
        /// The token's logprob, if the request asked for logprobs.
        logprob: Option<TokenLogprob>,
    },
    /// A request is complete.
    Done(Completion),
}

impl RequestEvent {
    /// The request that it is about.
    pub fn request(&self) -> RequestId {
        match self {
            RequestEvent::Prompt { id, .. }
            | RequestEvent::Token { id, .. }
            | RequestEvent::Done(Completion { id, .. }) => *id,
        }
    }
}
