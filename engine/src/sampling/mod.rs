//! From logits to tokens.

mod beam;
mod options;
mod params;
mod request;
mod sampler;
mod scan;

pub use beam::{Advance, Candidate, Hypothesis};
pub use options::SamplingOptions;
pub use params::{Beam, EarlyStopping, MAX_LOGPROBS, MAX_OUTPUTS, MAX_TEMPERATURE, SamplingParams};
pub use sampler::{SampleRow, Sampled, sample_row};
