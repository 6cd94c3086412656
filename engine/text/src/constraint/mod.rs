//! Structured output: which tokens may come next, so that an output is a sentence of a grammar.
//!
//! A [`Grammar`] is what a user asks for: a JSON schema, a regular expression, a choice of texts, a grammar in Lark's form.
//! A [`GrammarCompiler`], of which a model has one, makes it a [`Constraint`], which requests are given. Each sequence of
//! such a request has a [`Matcher`], which has read the sequence's output and gives a mask for its next token: a bit for
//! every token of the vocabulary. Masks are applied where tokens are chosen; nothing else of the engine knows of them.
//!
//! The work is done by the crate `llguidance`, a lexer of lazily made derivatives of regular expressions under an Earley
//! parser, over a trie of the vocabulary.

mod bounds;
mod compiler;
mod deadline;
mod grammar;
mod matcher;
mod reason;
mod schema;
mod stop;
pub mod trial;

pub use compiler::{GrammarCompiler, PreparedGrammar};
pub use grammar::{DocumentRule, Documents, Grammar};
pub use matcher::{Constraint, Matcher, Reading, Thoughts, compute_masks};
pub use schema::exact_numbers;
pub use stop::Stop;
