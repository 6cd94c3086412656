//! A sequence: the prompt and one continuation of it.

use crate::constraint::{Constraint, Matcher};
use crate::kv::{BlockPool, BlockTable};

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token or a stop string.
    Stop,
    /// The token limit, the model's last position, the end of the KV pool, or that no token could follow which the
    /// request's grammar allows.
    Length,
    /// The request was cancelled.
    Abort,
}

/// A generated token with its logprob and, if asked for, the likeliest tokens in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Log-softmax of the raw logits at the token.
    pub logprob: f32,
    /// The likeliest tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// One entry a token of a prompt; none of the first, which follows nothing.
pub type PromptLogprobs = Vec<Option<TokenLogprob>>;

/// A finished continuation.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Under which index its tokens were reported while it grew. Has no meaning for beams.
    pub index: usize,
    /// The generated tokens, a closing end-of-sequence token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Sum of the tokens' logprobs.
    pub cumulative_logprob: f64,
    /// The beam search's score.
    pub score: Option<f64>,
    /// One entry a token, if the request asked for logprobs.
    pub logprobs: Option<Vec<TokenLogprob>>,
}

impl Output {
    /// Leaves the first `tokens` tokens, whose logprobs have the sum `sum`.
    pub(crate) fn truncate(&mut self, tokens: usize, sum: f64) {
        self.tokens.truncate(tokens);
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.truncate(tokens);
        }
        self.cumulative_logprob = sum;
    }
}

/// A prompt and one continuation, with the block table of what is in the cache. Cloning forks it: the copy shares all
/// blocks (4.4 of the paper).
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Which of the request's outputs this becomes.
    pub index: usize,
    /// Prompt, then generated tokens; while a step is computed, a draft of what follows after these.
    pub tokens: Vec<u32>,
    /// How many of the tokens, the last ones, are a draft.
    pub drafted: usize,
    /// Length of the prompt.
    pub prompt_len: usize,
    /// Blocks of the tokens whose keys and values are computed, or will be in the scheduled step.
    pub table: BlockTable,
    /// Seed of its random choices.
    pub seed: u64,
    /// Sum of the generated tokens' logprobs.
    pub cumulative_logprob: f64,
    /// One entry a generated token, if asked for.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Has read the generated tokens, if these are constrained.
    pub matcher: Option<Matcher>,
}

impl Sequence {
    /// A sequence that is only a prompt.
    pub fn new(prompt: Vec<u32>, pool: &BlockPool, logprobs: bool) -> Self {
        Sequence {
            index: 0,
            prompt_len: prompt.len(),
            drafted: 0,
            tokens: prompt,
            table: BlockTable::new(pool),
            seed: 0,
            cumulative_logprob: 0.0,
            logprobs: logprobs.then(Vec::new),
            matcher: None,
        }
    }

    /// The prompt's tokens.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt_len]
    }

    /// The generated tokens.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }

    /// Adds a draft of the tokens that follow, to be verified by the next step.
    pub fn draft(&mut self, tokens: &[u32]) {
        self.tokens.extend(tokens);
        self.drafted = tokens.len();
    }

    /// Takes the draft back: what it was.
    pub fn take_draft(&mut self) -> Vec<u32> {
        self.tokens.split_off(self.tokens.len() - std::mem::take(&mut self.drafted))
    }

    /// Tokens whose keys and values are not in the cache.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.table.len()
    }

    /// The sequence with a matcher for its output, if that is constrained.
    pub fn constrained(self, constraint: Option<&Constraint>) -> Self {
        Sequence { matcher: constraint.map(Constraint::matcher), ..self }
    }

    /// Appends a generated token.
    pub fn push(&mut self, token: u32, logprob: f32, top: &[(u32, f32)]) {
        self.tokens.push(token);
        self.cumulative_logprob += f64::from(logprob);
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.push(TokenLogprob { token, logprob, top: top.to_vec() });
        }
    }

    /// The finished continuation.
    pub fn finish(self, finish_reason: FinishReason, score: Option<f64>) -> Output {
        Output {
            index: self.index,
            tokens: self.tokens[self.prompt_len..].to_vec(),
            finish_reason,
            cumulative_logprob: self.cumulative_logprob,
            score,
            logprobs: self.logprobs,
        }
    }
}
