//! Quire's engine: text in, text out. Inside are a paged KV cache, an iteration-level scheduler, and models written over
//! a backend trait.
//!
//! [`Llm`] is the entry point. [`Llm::generate`] answers a list of prompts. [`Llm::add`] and [`Llm::step`] serve
//! requests that come and go:
//!
//! ```
//! use engine::{Event, Llm, ModelFiles, Options, Prompt, SamplingParams};
//!
//! // The model bundled with the program. `ModelFiles::directory` and `ModelFiles::resolve` find others.
//! let mut llm = Llm::load(&ModelFiles::bundled(), &Options::default())?;
//! let params = SamplingParams { max_tokens: 12, temperature: 0.0, ..SamplingParams::default() };
//! llm.add(&Prompt::Text("Once upon a time".into()), params.clone())?;
//! llm.add(&Prompt::Text("The little dog".into()), params)?;
//! while llm.has_work() {
//!     for event in llm.step()? {
//!         match event {
//!             Event::Token { id, text, .. } => println!("request {id} continues with {text:?}"),
//!             Event::Done(completion) => println!("{}{}", completion.prompt, completion.outputs[0].text),
//!             Event::Prompt { .. } => {}
//!         }
//!     }
//! }
//! # Ok::<(), engine::Error>(())
//! ```
//!
//! The same program is `examples/src/generate.rs`. To read the code, start with `engine.rs`, whose step is schedule, run,
//! postprocess. Continue with `scheduler`, `kv` and `backend`.

mod adapter;
mod backend;
mod batch;
mod completion;
mod delay;
mod device_info;
mod device_setup;
mod embedding;
mod engine;
mod group;
mod kv;
mod llm;
#[cfg(feature = "cuda")]
mod memory_plan;
mod model;
mod options;
mod output_text;
mod parallel;
mod quantize;
mod runner;
mod sampling;
mod scheduler;
mod sequence;
mod stats;
pub mod tools;
mod warmup;

pub use adapter::{AdapterHandle, AdapterRegistry};
pub use checkpoint::load::ModelFiles;
pub use checkpoint::tensor::{DType, KvDtype};
pub use checkpoint::{Error, Result};
pub use completion::{Completion, Continuation, Event, Prompt, StopReason};
pub use device_info::{DeviceInfo, MemoryPlan};
pub use embedding::Pooling;
pub use group::RequestId;
pub use llm::Llm;
pub use options::{AttentionKernels, Device, Options, Preemption, SchedulerOptions, SchedulingPolicy};
pub use quantize::quantize;
pub use sampling::{Beam, EarlyStopping, SamplingParams};
pub use sequence::{FinishReason, PromptLogprobs, TokenLogprob};
pub use stats::Stats;
pub use text::constraint::Grammar;

// The names of other crates' modules, which read well as `crate::load` and the like.
use checkpoint::{config, error, load, quantised, tensor};
use text::{constraint, detokenizer, tokenizer};
