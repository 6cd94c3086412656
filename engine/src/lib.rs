//! Quire's engine: a paged KV cache, an iteration-level scheduler, models written over a backend trait.
//!
//! Start with [`engine`], whose step is schedule, run, postprocess; then `scheduler`, `kv` and `backend`.

pub mod backend;
pub mod error;
pub mod sampling;
pub mod tensor;

pub use error::{Error, Result};
