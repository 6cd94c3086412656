//! A sequence: a prompt and one continuation of it.

use std::sync::Arc;

use crate::constraint::{Constraint, Matcher};
use crate::kv::{BlockPool, BlockTable, state_ends};

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token or a stop string.
    Stop,
    /// The token limit, the model's last position, the end of the KV pool, or a point where the request's grammar
    /// allows no further token.
    Length,
    /// The request was cancelled.
    Abort,
}

/// A generated token with its logprob and, if requested, the likeliest tokens at its position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Log-softmax of the raw logits at the token.
    pub logprob: f32,
    /// The likeliest tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// One entry per token of a prompt. The first is `None`, as no token comes before it.
pub type PromptLogprobs = Vec<Option<TokenLogprob>>;

/// A finished continuation.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The index under which its tokens were reported as they were generated. Meaningless for beams.
    pub index: usize,
    /// The generated tokens, including a final end-of-sequence token.
    pub tokens: Vec<u32>,
    /// Why the output ended.
    pub finish_reason: FinishReason,
    /// Sum of the tokens' logprobs.
    pub cumulative_logprob: f64,
    /// The beam search's score.
    pub score: Option<f64>,
    /// One entry per token, if the request asked for logprobs.
    pub logprobs: Option<Vec<TokenLogprob>>,
}

impl Output {
    /// Keeps the first `tokens` tokens, whose logprobs add up to `sum`.
    pub(crate) fn truncate(&mut self, tokens: usize, sum: f64) {
        self.tokens.truncate(tokens);
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.truncate(tokens);
        }
        self.cumulative_logprob = sum;
    }
}

/// A prompt and one continuation, with the block table of its computed tokens. Cloning forks it: the copy shares all
/// blocks (4.4 of the paper).
#[derive(Clone, Debug)]
pub struct Sequence {
    /// The index of the output that this becomes.
    pub index: usize,
    /// The prompt, then generated tokens. While a step is computed, drafted tokens follow.
    pub tokens: Vec<u32>,
    /// The number of drafted tokens, which are last.
    pub drafted: usize,
    /// Length of the prompt in tokens.
    pub prompt_len: usize,
    /// The blocks of the tokens whose keys and values are computed, or will be in the scheduled step.
    pub table: BlockTable,
    /// The numbers of blocks after which the states of recurrent layers are kept, see [`BlockTable::keep_states`].
    pub kept_states: Option<Arc<[u32]>>,
    /// The seed of its random choices.
    pub seed: u64,
    /// Sum of the generated tokens' logprobs.
    pub cumulative_logprob: f64,
    /// One entry per generated token, if requested.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// The grammar matcher, which has read the generated tokens. `None` if the output is unconstrained.
    pub matcher: Option<Matcher>,
}

impl Sequence {
    /// A sequence that consists of the prompt only.
    pub fn new(prompt: Vec<u32>, pool: &BlockPool, logprobs: bool) -> Self {
        Sequence {
            index: 0,
            prompt_len: prompt.len(),
            drafted: 0,
            tokens: prompt,
            table: BlockTable::new(pool),
            kept_states: None,
            seed: 0,
            cumulative_logprob: 0.0,
            logprobs: logprobs.then(Vec::new),
            matcher: None,
        }
    }

    /// Asks for the states of recurrent layers from which later prompts are likely to resume. `asked` are numbers of tokens
    /// that the request names. End-of-sequence tokens in the prompt end its messages.
    pub fn keeping_states(mut self, asked: &[usize], eos: &[u32], pool: &BlockPool) -> Self {
        if pool.has_states() {
            let messages = (1..=self.prompt_len).filter(|&end| eos.contains(&self.tokens[end - 1]));
            let messages: Vec<usize> = messages.collect();
            self.kept_states = Some(state_ends(&messages, asked, self.prompt_len, pool.block_size()));
        }
        self
    }

    /// The prompt's tokens.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt_len]
    }

    /// The generated tokens.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }

    /// Appends drafted tokens, to be verified by the next step.
    pub fn draft(&mut self, tokens: &[u32]) {
        self.tokens.extend(tokens);
        self.drafted = tokens.len();
    }

    /// Removes and returns the draft.
    pub fn take_draft(&mut self) -> Vec<u32> {
        self.tokens.split_off(self.tokens.len() - std::mem::take(&mut self.drafted))
    }

    /// The number of tokens whose keys and values are not in the cache.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.table.len()
    }

    /// Adds a matcher for the output if there is a constraint.
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

    /// Converts the sequence to a finished output.
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
