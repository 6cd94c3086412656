//! Runs a step's tokens through a model.

use std::sync::Arc;

use crate::adapter::{AdapterChange, Sites};
use crate::backend::Backend;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::kv::CacheGroup;
use crate::model::Model;
use crate::sampling::{SampleRow, Sampled, SamplingParams};
use crate::warmup;

/// The results of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Computed {
    /// The sample from each row of logits.
    pub sampled: Vec<Sampled>,
    /// The final hidden state of each of [`Batch::hidden_rows`].
    pub hidden: Vec<Vec<f32>>,
}

/// Collects the samples of a step without hidden states.
impl FromIterator<Sampled> for Computed {
    fn from_iter<I: IntoIterator<Item = Sampled>>(sampled: I) -> Self {
        Computed { sampled: sampled.into_iter().collect(), ..Computed::default() }
    }
}

/// Executes steps. The engine plans steps and knows no tensors. The runner computes them and knows no requests.
pub trait Runner: Send {
    /// Moves the batch's blocks, computes its tokens and samples one token for each of `rows`. `rows` correspond to
    /// `batch.logit_rows` one to one. A batch may have moves and no tokens.
    ///
    /// # Errors
    /// If the device failed, or a result is not a number.
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Computed>;

    /// Prepares decode steps of up to `num_seqs` sequences before any request. Writes to the first of `num_blocks`
    /// pages, so no sequence may use a block yet.
    ///
    /// # Errors
    /// If the device failed.
    fn warm_up(&mut self, num_seqs: usize, num_blocks: usize, block_size: usize, groups: &[CacheGroup]) -> Result<()> {
        let params = SamplingParams::default();
        for step in warmup::steps(self.decode_sizes(num_seqs), num_blocks, block_size, groups) {
            let rows = warmup::rows(&params, step.spans.len());
            self.run(step, &rows)?;
        }
        Ok(())
    }

    /// The matrices of the model, or of the first worker's part, that adapters can change. `None` if the device cannot compute
    /// with adapters.
    fn sites(&self) -> Option<Arc<Sites>> {
        None
    }

    /// The numbers of sequences whose decode steps the warm-up computes, if up to `most` sequences run at a time.
    fn decode_sizes(&self, most: usize) -> Vec<usize> {
        let _ = most;
        Vec::new()
    }
}

/// A step on the device, possibly still in progress.
pub(crate) struct OnDevice<B: Backend> {
    inputs: B::Inputs,
    logits: Option<B::Tensor>,
    hidden: Option<B::Tensor>,
}

/// A model on a backend, with its KV cache.
pub struct ModelRunner<B: Backend> {
    pub(crate) backend: B,
    model: Box<dyn Model<B>>,
    cache: B::KvCache,
    /// The loaded adapters, by slot.
    adapters: Vec<Option<Arc<B::Adapter>>>,
}

impl<B: Backend> ModelRunner<B> {
    /// A runner for `model`, whose weights are on `backend`.
    pub fn new(backend: B, model: Box<dyn Model<B>>, cache: B::KvCache) -> Self {
        ModelRunner { backend, model, cache, adapters: Vec::new() }
    }

    /// Makes the changes to the device's adapters.
    fn change_adapters(&mut self, changes: &[AdapterChange]) -> Result<()> {
        for change in changes {
            let (slot, adapter) = match change {
                AdapterChange::Drop { slot } => (*slot as usize, None),
                AdapterChange::Load { slot, adapter } => (*slot as usize, Some(adapter)),
            };
            self.adapters.resize_with(self.adapters.len().max(slot + 1), || None);
            // Free the slot's memory first.
            self.adapters[slot] = None;
            if let Some(adapter) = adapter {
                let parts = self.model.sites().parts(adapter.adapter())?;
                self.adapters[slot] = Some(Arc::new(self.backend.adapter(parts)?));
            }
        }
        Ok(())
    }

    /// Changes the adapters, moves the batch's blocks and computes its tokens. `rows` tell the backend in advance how the
    /// logits will be sampled.
    ///
    /// # Errors
    /// If an adapter cannot be loaded.
    pub(crate) fn compute(&mut self, batch: Batch, rows: &[SampleRow<'_>], wants_logits: bool) -> Result<OnDevice<B>> {
        self.change_adapters(&batch.adapter_changes)?;
        let ModelRunner { backend, model, cache, adapters } = self;
        let (only_moves, wants_hidden) = (batch.tokens.is_empty(), !batch.hidden_rows.is_empty());
        let of_slot = |slot: &Option<u32>| adapters.get((*slot)? as usize).cloned().flatten();
        let spans: Vec<_> = batch.adapter_slots.iter().map(of_slot).collect();
        let mut inputs = backend.upload(batch, rows);
        if !spans.is_empty() {
            backend.adapt(&mut inputs, &spans);
        }
        backend.move_blocks(cache, &inputs);
        if only_moves {
            return Ok(OnDevice { inputs, logits: None, hidden: None });
        }
        let mut hidden = None;
        let logits = backend.compute(&inputs, || {
            let x = model.forward(backend, cache, &inputs);
            hidden = wants_hidden.then(|| model.final_hidden(backend, backend.hidden_rows(&x, &inputs)));
            wants_logits.then(|| backend.gather_logits(model.logits(backend, backend.logit_rows(&x, &inputs))))
        });
        Ok(OnDevice { inputs, logits, hidden })
    }
}

impl<B: Backend> Runner for ModelRunner<B> {
    fn run(&mut self, batch: Batch, rows: &[SampleRow<'_>]) -> Result<Computed> {
        let num_hidden = batch.hidden_rows.len();
        let OnDevice { inputs, logits, hidden } = self.compute(batch, rows, !rows.is_empty())?;
        let sampled = match logits {
            Some(logits) => self.backend.sample(&logits, &inputs, rows)?,
            None => Vec::new(),
        };
        let hidden = hidden.map_or(Ok(Vec::new()), |hidden| self.backend.download(&hidden))?;
        if hidden.iter().any(|x| !x.is_finite()) {
            return Err(Error::NotANumber);
        }
        let width = (hidden.len() / num_hidden.max(1)).max(1);
        Ok(Computed { sampled, hidden: hidden.chunks(width).map(<[f32]>::to_vec).collect() })
    }

    fn sites(&self) -> Option<Arc<Sites>> {
        B::HAS_ADAPTERS.then(|| self.model.sites().clone())
    }

    fn decode_sizes(&self, most: usize) -> Vec<usize> {
        self.backend.decode_sizes(most)
    }
}
