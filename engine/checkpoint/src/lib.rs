//! A model's files: configurations, weights, quantised types, and the hub they come from.
//!
//! [`load::ModelFiles`] finds a model: a Hugging Face directory, a GGUF file, a hub id, or the model built into the program.
//! [`config`] reads its shape, [`load::Weights`] its tensors, which are [`tensor::HostTensor`]s of floats or of one of the
//! [`quantised`] types.

pub mod config;
pub mod error;
pub mod load;
pub mod mapping;
pub mod quantised;
pub mod tensor;

pub use error::{Error, Refusal, Result};
