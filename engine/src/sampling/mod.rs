//! From logits to tokens.

mod beam;
mod params;
mod sampler;

pub use beam::{Advance, Candidate, Finished};
pub use params::{Beam, EarlyStopping, MAX_LOGPROBS, MAX_OUTPUTS, SamplingParams};
pub use sampler::{SampleRow, Sampled, sample_row};
