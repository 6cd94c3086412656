//! The parts of an answer.

/// A part of an answer, or a continuation of the previous part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The model's reasoning before its answer.
    Thought(String),
    /// Text of the answer.
    Text(String),
    /// The start of a call of the tool with this name.
    Call(String),
    /// More of the JSON arguments of the last call.
    Arguments(String),
}
