//! From logits to tokens.

mod params;
mod sampler;

pub use params::{Beam, EarlyStopping, SamplingParams};
pub use sampler::{SampleRow, Sampled, sample_row};
