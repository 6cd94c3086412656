//! The record of a request, as its client sees it.

use std::time::Duration;

/// A request from its arrival to its end. Times are relative to the start of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When the request was due. Any later delay is time that its user waits.
    pub arrival: Duration,
    /// When its answer was complete, or when it failed.
    pub end: Duration,
    /// Its answer, or a sentence about its failure.
    pub outcome: Result<Answer, String>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When the first text arrived, if there was any.
    pub first: Option<Duration>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub output_tokens: usize,
    /// Whether the server reported the numbers of tokens. Otherwise the prompt counts with its requested tokens, and
    /// the output with its pieces of text.
    pub counted: bool,
}
