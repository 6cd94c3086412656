//! Runs a step's tokens through a model.

use crate::backend::Backend;
use crate::batch::Batch;
use crate::error::Result;
use crate::model::Model;
use crate::sampling::{SampleRow, Sampled, SamplingParams};
use crate::warmup;

/// What executes a step. The engine plans it and knows no tensors; the runner computes and knows no requests.
pub trait Runner: Send {
    /// Moves the batch's blocks, computes its tokens and samples one token for each of `rows`, which belong to
    /// `batch.logit_rows` one to one. A batch may have moves only, and no tokens.
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>>;

    /// Prepares decode steps of up to `num_seqs` sequences before any request comes. Writes to blocks, of which there
    /// are `num_blocks`, so that no sequence may hold one yet.
    ///
    /// # Errors
    /// When the device failed.
    fn warm_up(&mut self, num_seqs: usize, num_blocks: usize, block_size: usize) -> Result<()> {
        let _ = (num_seqs, num_blocks, block_size);
        Ok(())
    }
}

/// A model on a backend with its KV cache.
pub struct ModelRunner<B: Backend> {
    pub(crate) backend: B,
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
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        let ModelRunner { backend, model, cache } = self;
        let only_moves = batch.tokens.is_empty();
        let inputs = backend.upload(batch, rows);
        backend.move_blocks(cache, &inputs);
        if only_moves {
            return Ok(Vec::new());
        }
        let logits = backend.compute(&inputs, || {
            let hidden = model.forward(backend, cache, &inputs);
            (!rows.is_empty()).then(|| model.logits(backend, &backend.logit_rows(&hidden, &inputs)))
        });
        match logits {
            Some(logits) => backend.sample(&logits, &inputs, rows),
            None => Ok(Vec::new()),
        }
    }

    fn warm_up(&mut self, num_seqs: usize, num_blocks: usize, block_size: usize) -> Result<()> {
        let params = SamplingParams::default();
        for step in warmup::steps(self.backend.decode_sizes(num_seqs), num_blocks, block_size) {
            let rows = warmup::rows(&params, step.spans.len());
            self.run(step, &rows)?;
        }
        Ok(())
    }
}
