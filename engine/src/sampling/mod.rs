//! Sampling: chooses tokens from logits.

mod beam;
mod likeliest;
mod options;
mod params;
mod request;
mod sampler;
mod scan;

pub use beam::{Advance, Branch, Candidate};
pub use options::SamplingOptions;
pub use params::{Beam, EarlyStopping, MAX_LOGPROBS, MAX_OUTPUTS, MAX_TEMPERATURE, SamplingParams};
pub use sampler::{Map, SampleRow, Sampled, Softmax, sample_row};
