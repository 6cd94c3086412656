//! Structured output: restricts the next token so that an output follows a grammar.
//!
//! A user asks for a [`Grammar`], such as a JSON schema, a regular expression, a choice of texts or a Lark grammar. The
//! model's [`GrammarCompiler`] compiles it into a [`Constraint`], which is part of the request. Each sequence of the
//! request has a [`Matcher`], which reads the output and computes a mask for the next token, with one bit per token of
//! the vocabulary. The sampler applies the masks. The rest of the engine is not involved.
//!
//! The crate `llguidance` does the work. It combines a lexer, built lazily from derivatives of regular expressions,
//! with an Earley parser, over a trie of the vocabulary.

mod bounds;
mod compiler;
mod deadline;
mod grammar;
mod matcher;
mod parser;
mod reason;
mod schema;
mod stop;
pub mod trial;

pub use compiler::{GrammarCompiler, PreparedGrammar};
pub use grammar::{DocumentRule, Documents, Grammar};
pub use matcher::{Constraint, Matcher, Reading, Thoughts, compute_masks};
pub use schema::exact_numbers;
pub use stop::Stop;
