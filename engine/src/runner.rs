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
        let params = SamplingParams::default();
        for step in warmup::steps(self.decode_sizes(num_seqs), num_blocks, block_size) {
            let rows = warmup::rows(&params, step.spans.len());
            self.run(step, &rows)?;
        }
        Ok(())
    }

    /// Numbers of sequences whose decode steps are to be computed before any request, where up to `most` run at a time.
    fn decode_sizes(&self, most: usize) -> Vec<usize> {
        let _ = most;
        Vec::new()
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

    /// Moves the batch's blocks and computes its tokens: the inputs, and if they are wanted the logits. `rows` say how
    /// these will be sampled, for the backend to know in time.
    pub(crate) fn compute(
        &mut self,
        batch: Batch,
        rows: &[SampleRow<'_>],
        wants_logits: bool,
    ) -> (B::Inputs, Option<B::Tensor>) {
        let ModelRunner { backend, model, cache } = self;
        let only_moves = batch.tokens.is_empty();
        let inputs = backend.upload(batch, rows);
        backend.move_blocks(cache, &inputs);
        if only_moves {
            return (inputs, None);
        }
        let logits = backend.compute(&inputs, || {
            let hidden = model.forward(backend, cache, &inputs);
            wants_logits.then(|| backend.gather_logits(model.logits(backend, &backend.logit_rows(&hidden, &inputs))))
        });
        (inputs, logits)
    }
}

impl<B: Backend> Runner for ModelRunner<B> {
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>> {
        let (inputs, logits) = self.compute(batch, rows, !rows.is_empty());
        match logits {
            Some(logits) => self.backend.sample(&logits, &inputs, rows),
            None => Ok(Vec::new()),
        }
    }

    fn decode_sizes(&self, most: usize) -> Vec<usize> {
        self.backend.decode_sizes(most)
    }
}
