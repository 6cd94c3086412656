//! Text processing around a model: tokenizers, chat templates, answers and constraints.
//!
//! [`tokenizer`] encodes, [`detokenizer`] decodes token by token, and [`stop_matcher`] finds stop strings in the result.
//! [`chat`] renders conversations with a model's template, [`answer`] splits an output into thoughts, text and tool calls,
//! and [`constraint`] compiles schemas and grammars into masks over the vocabulary.

pub mod answer;
pub mod chat;
pub mod constraint;
pub mod detokenizer;
pub mod stop_matcher;
pub mod tokenizer;
