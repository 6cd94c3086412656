//! Sampling: chooses tokens from logits.

mod beam;
mod likeliest;
mod options;
mod params;
mod request;
mod sampler;
mod scan;
mod softmax;

pub use beam::{Advance, Branch, Candidate};
pub use options::SamplingOptions;
pub use params::{Beam, EarlyStopping, MAX_LOGPROBS, MAX_OUTPUTS, MAX_TEMPERATURE, SamplingParams};
pub use sampler::{SampleRow, Sampled, sample_row};
pub use softmax::{Map, Softmax};
