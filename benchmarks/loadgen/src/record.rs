//! The record of a request, as its client sees it.

use std::time::Duration;

/// A request from its arrival to its end. Times count from the beginning of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When it was due. Whatever delays it from then on, its user waits.
    pub arrival: Duration,
    /// When its answer was complete, or it failed.
    pub end: Duration,
    /// Its answer, or its failure in a sentence.
    pub outcome: Result<Answer, String>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When the first text came, if there was any.
    pub first: Option<Duration>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub output_tokens: usize,
    /// Whether the server said how many tokens these were. Otherwise prompts count as asked for, outputs by their
    /// pieces of text.
    pub counted: bool,
}
