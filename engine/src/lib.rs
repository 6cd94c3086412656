//! Quire's engine: a paged KV cache, an iteration-level scheduler, models written over a backend trait.
//!
//! Start with [`engine`], whose step is schedule, run, postprocess; then `scheduler`, `kv` and `backend`.

pub mod backend;
pub mod config;
pub mod detokenizer;
pub mod error;
pub mod load;
pub mod sampling;
pub mod tensor;
pub mod tokenizer;

pub use error::{Error, Result};
