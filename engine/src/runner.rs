//! Runs a step's tokens through a model.

use crate::backend::{Batch, BlockCopy};
use crate::error::Result;

use crate::sampling::{SampleRow, Sampled};

/// What executes a step. The engine plans it and knows no tensors; the runner computes and knows no requests.
pub trait Runner: Send {
    /// Makes the copies, computes the batch's tokens and samples one token for each of `rows`, which belong to
    /// `batch.logit_rows` one to one.
    fn run(&mut self, batch: Batch, copies: &[BlockCopy], rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>>;
}
