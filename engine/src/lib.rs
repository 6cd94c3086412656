//! Quire's engine: a paged KV cache, an iteration-level scheduler, models written over a backend trait.
//!
//! Start with [`engine`], whose step is schedule, run, postprocess; then [`scheduler`], [`kv`] and [`backend`].

pub mod backend;
pub mod engine;
pub mod error;
pub mod group;
pub mod kv;
pub mod runner;
pub mod sampling;
pub mod scheduler;
pub mod sequence;
pub mod stats;
pub mod tensor;

pub use error::{Error, Result};
