//! Quire's engine: a paged KV cache, an iteration-level scheduler, models written over a backend trait.
//!
//! [`llm::Llm`] is the way in: text in, text out. [`load`] finds the model's files, [`sampling`] says what is asked of it,
//! [`llm`] and [`sequence`] have what it answers, [`chat`] turns conversations into prompts.
//!
//! Modules that are not shown here are public for the tools and tests of this repository, and change without notice. To read
//! the code, start with `engine`, whose step is schedule, run, postprocess; then `scheduler`, `kv` and `backend`.

#[doc(hidden)]
pub mod backend;
#[doc(hidden)]
pub mod batch;
mod completion;
mod delay;
mod device_info;
mod device_setup;
pub mod embedding;
#[doc(hidden)]
pub mod engine;
pub mod group;
pub mod kv;
pub mod llm;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod memory_plan;
#[doc(hidden)]
pub mod model;
mod options;
mod output_text;
#[doc(hidden)]
pub mod parallel;
mod quantize;
#[doc(hidden)]
pub mod runner;
pub mod sampling;
#[doc(hidden)]
pub mod scheduler;
pub mod sequence;
pub mod stats;
mod warmup;

pub use checkpoint::{Error, Result, config, error, load, mapping, quantised, tensor};
pub use quantize::quantize;
pub use text::{answer, chat, constraint, detokenizer, tokenizer};
