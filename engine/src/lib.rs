//! Quire's engine: a paged KV cache, an iteration-level scheduler, models written over a backend trait.
//!
//! Start with [`engine`], whose step is schedule, run, postprocess; then [`scheduler`], [`kv`] and [`backend`].
//! [`llm::Llm`] is the way in: text in, text out.

pub mod backend;
pub mod batch;
pub mod chat;
mod completion;
pub mod config;
mod delay;
pub mod detokenizer;
pub mod engine;
pub mod error;
pub mod fit;
pub mod group;
pub mod kv;
pub mod llm;
pub mod load;
pub mod mapping;
pub mod model;
pub mod options;
mod output_text;
pub mod place;
pub mod runner;
pub mod sampling;
pub mod scheduler;
pub mod sequence;
pub mod stats;
mod stop_matcher;
pub mod tensor;
pub mod tokenizer;
mod warmup;

pub use error::{Error, Result};
