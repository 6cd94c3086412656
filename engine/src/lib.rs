//! Quire's engine: a paged KV cache, an iteration-level scheduler, and models written over a backend trait.
//!
//! [`llm::Llm`] is the entry point: text in, text out. [`load`] finds a model's files, [`sampling`] has the request
//! parameters, [`llm`] and [`sequence`] have the results, and [`chat`] turns conversations into prompts.
//!
//! Hidden modules are public for the tools and tests of this repository, and may change without notice. To read the
//! code, start with `engine`, whose step is schedule, run, postprocess. Continue with `scheduler`, `kv` and `backend`.

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
