//! Runs a step's tokens through a model.

use crate::backend::{Backend, Batch, BlockCopy};
use crate::error::Result;
use crate::model::Model;
use crate::sampling::{SampleRow, Sampled};

/// What executes a step. The engine plans it and knows no tensors; the runner computes and knows no requests.
pub trait Runner: Send {
    /// Makes the copies, computes the batch's tokens and samples one token for each of `rows`, which belong to
    /// `batch.logit_rows` one to one.
    fn run(&mut self, batch: Batch, copies: &[BlockCopy], rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>>;
}

/// A model on a backend with its KV cache.
pub struct ModelRunner<B: Backend> {
    backend: B,
    model: Box<dyn Model<B>>,
    cache: B::KvCache,
}

impl<B: Backend> ModelRunner<B> {
    /// A runner for `model`, whose weights lie on `backend`.
    pub fn new(backend: B, model: Box<dyn Model<B>>, cache: B::KvCache) -> Self {
        ModelRunner { backend, model, cache }
    }
}

impl<B: Backend> Runner for ModelRunner<B> {
    fn run(&mut self, batch: Batch, copies: &[BlockCopy], rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        if !copies.is_empty() {
            self.backend.copy_blocks(&mut self.cache, copies);
        }
        let inputs = self.backend.upload(batch);
        let hidden = self.model.forward(&self.backend, &mut self.cache, &inputs);
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let hidden = self.backend.logit_rows(&hidden, &inputs);
        let logits = self.model.logits(&self.backend, &hidden);
        self.backend.sample(&logits, rows)
    }
}
