//! What fits the GPU's memory: the profiling run that decides the number of blocks, as in vLLM.
//!
//! The run is a rehearsal: the model's own code asks for its launches and activations, of the largest step and of every
//! kind of smaller one, and nothing is launched. So it is exact, takes milliseconds, and finds what cannot be run at all.

use launch::DeviceBuffer;

use super::CudaBackend;
use super::cache::KvCache;
use super::inputs::{BUCKETS, bucket};
use super::queue::NotedLaunch;
use crate::backend::{Backend, Batch, KvLayout, Span};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::sampling::{SampleRow, SamplingParams};

/// Bounds on what a step may hold.
#[derive(Clone, Copy, Debug)]
pub struct StepLimits {
    /// New tokens.
    pub tokens: usize,
    /// Sequences.
    pub seqs: usize,
}

/// How the memory of a GPU is shared out, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// All there is.
    pub total: usize,
    /// Weights.
    pub weights: usize,
    /// Activations of the largest step.
    pub activations: usize,
    /// What is in use in all, by others, too, before the KV cache is allocated.
    pub used: usize,
    /// What the KV cache may take.
    pub kv_cache: usize,
}

/// A step of decodes, each with so much context, and of at most one prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rehearsal {
    /// Sequences with one new token.
    pub decodes: usize,
    /// Tokens that each of them sees.
    pub context: usize,
    /// New tokens of the prompt.
    pub prompt: usize,
    /// Rows of logits; of the last token where there are fewer sequences.
    pub logits: usize,
}

impl Rehearsal {
    fn batch(&self, block_size: usize) -> Batch {
        let mut batch = Batch::default();
        let lens = std::iter::repeat_n((1, self.context.max(1)), self.decodes);
        for (len, context) in lens.chain((self.prompt > 0).then_some((self.prompt, self.prompt))) {
            batch.spans.push(Span { start: batch.tokens.len(), len, context, table: batch.blocks.len() });
            batch.tokens.resize(batch.tokens.len() + len, 0);
            batch.blocks.resize(batch.blocks.len() + context.div_ceil(block_size), 0);
        }
        let tokens = batch.tokens.len();
        batch.positions = vec![0; tokens];
        batch.slots = vec![0; tokens];
        batch.logit_rows = (0..self.logits).map(|row| row.min(tokens - 1) as u32).collect();
        batch
    }
}

impl CudaBackend {
    /// The launches of a step, which is not computed.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the model is one that there are no kernels for.
    pub fn rehearse(&self, model: &dyn Model<Self>, layout: KvLayout, step: Rehearsal) -> Result<Vec<NotedLaunch>> {
        let params = SamplingParams::default();
        let rows =
            vec![
                SampleRow { params: &params, seed: 0, prompt: &[], output: &[], barred: &[], top: 0, given: None };
                step.logits
            ];
        self.queue.rehearse(|| {
            let mut cache = KvCache::rehearsed(layout);
            let inputs = self.upload(step.batch(layout.block_size), &rows);
            let hidden = model.forward(self, &mut cache, &inputs);
            if step.logits > 0 {
                let logits = model.logits(self, &self.logit_rows(&hidden, &inputs));
                if let Err(error) = self.sample(&logits, &inputs, &rows) {
                    self.queue.fail(error);
                }
            }
        })
    }

    /// Allocates memory for the activations of every step within `limits`, and says what is left for the KV cache if
    /// `utilization` of the GPU's memory may be used.
    ///
    /// # Errors
    /// As [`rehearse`](Self::rehearse), and [`Error::Memory`].
    pub fn fit(
        &self,
        model: &dyn Model<Self>,
        layout: KvLayout,
        limits: StepLimits,
        utilization: f32,
    ) -> Result<MemoryPlan> {
        // Padded, as a decode step of that many sequences is.
        let seqs = bucket(limits.seqs).map_or(limits.seqs, |size| size as usize);
        let most = limits.tokens.max(seqs);
        // Plans of GEMMs, and so their workspaces, change with tiles of 128 rows, and below these with the buckets.
        let tokens = BUCKETS.into_iter().map(|size| size as usize).chain((1..=most / 128).map(|tiles| tiles * 128));
        for tokens in tokens.filter(|&tokens| tokens < most).chain([most]) {
            let decodes = tokens.min(seqs);
            let kinds =
                [(decodes, tokens - decodes, decodes), (0, tokens, seqs), (decodes - 1, tokens - decodes + 1, seqs)];
            for (decodes, prompt, logits) in kinds {
                self.rehearse(model, layout, Rehearsal { decodes, context: 1, prompt, logits })?;
            }
        }
        let activations = self.arena.peak();
        let Some(device) = self.queue.device() else {
            return Err(Error::Device("there is no GPU whose memory could be shared out".into()));
        };
        let memory: DeviceBuffer<u8> = self.allocate(activations, "the activations")?;
        // Cleared, since rows of padding are computed with whatever is there.
        device.stream.clear(&memory)?;
        self.arena.provide(memory.named("activations"));
        self.finish_loading()?;
        let (free, total) = device.context.memory()?;
        let used = total - free;
        let allowed = (total as f64 * f64::from(utilization)) as usize;
        let kv_cache = allowed.saturating_sub(used);
        Ok(MemoryPlan { total, weights: self.weight_bytes.get(), activations, used, kv_cache })
    }
}
