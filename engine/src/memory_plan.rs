//! Planning the GPU's memory: a profiling run determines the number of blocks, as in vLLM.
//!
//! The run is a rehearsal. The model's own code requests its launches and activations for the largest step and for
//! every kind of smaller step, but nothing is launched. So the result is exact, takes milliseconds, and shows early if
//! the model cannot run.

use crate::backend::Backend;
use crate::backend::cuda::{BUCKETS, CudaBackend, NotedLaunch, bucket};
use crate::batch::{Batch, Span};
use crate::device_info::MemoryPlan;
use crate::error::Result;
use crate::kv::KvLayout;
use crate::model::Model;
use crate::sampling::{SampleRow, SamplingParams};
use crate::scheduler::SchedulerOptions;

/// A step to rehearse: decodes with the same context, at most one sequence with a draft, and at most one prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rehearsal {
    /// Sequences with one new token.
    pub decodes: usize,
    /// Tokens that each decode sees.
    pub context: usize,
    /// New tokens of the sequence with a draft. It sees no other tokens.
    pub drafted: usize,
    /// New tokens of the prompt.
    pub prompt: usize,
    /// Rows of logits. If there are fewer tokens, the last token's row is repeated.
    pub logits: usize,
}

impl Rehearsal {
    fn batch(&self, layout: &KvLayout) -> Batch {
        let mut batch = Batch::new(layout.groups.len());
        let lens = std::iter::repeat_n((1, self.context.max(1)), self.decodes);
        let others = [self.drafted, self.prompt].into_iter().filter(|&len| len > 0).map(|len| (len, len));
        for (len, context) in lens.chain(others) {
            batch.spans.push(Span { start: batch.tokens.len(), len, context, table: batch.table_len() });
            batch.tokens.resize(batch.tokens.len() + len, 0);
            let blocks = batch.table_len() + context.div_ceil(layout.block_size);
            batch.groups.iter_mut().for_each(|group| group.blocks.resize(blocks, 0));
        }
        let tokens = batch.tokens.len();
        batch.positions = vec![0; tokens];
        batch.groups.iter_mut().for_each(|group| group.slots = vec![0; tokens]);
        batch.logit_rows = (0..self.logits).map(|row| row.min(tokens - 1) as u32).collect();
        batch
    }
}

/// Returns the launches of a step without computing it.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) if there are no kernels for the model.
pub fn rehearse(
    backend: &CudaBackend,
    model: &dyn Model<CudaBackend>,
    layout: &KvLayout,
    step: Rehearsal,
) -> Result<Vec<NotedLaunch>> {
    let params = SamplingParams::default();
    let rows = vec![SampleRow::new(&params, 0); step.logits];
    backend.rehearse(|| {
        let mut cache = backend.rehearsed_cache(layout);
        let inputs = backend.upload(step.batch(layout), &rows);
        let hidden = model.forward(backend, &mut cache, &inputs);
        if step.logits > 0 {
            let logits = backend.gather_logits(model.logits(backend, backend.logit_rows(&hidden, &inputs)));
            if let Err(error) = Backend::sample(backend, &logits, &inputs, &rows) {
                backend.fail(error);
            }
        }
    })
}

/// Allocates memory for the activations of every step that `options` allow. Plans the KV cache from the memory that
/// remains if `utilization` of the GPU's memory may be used.
///
/// # Errors
/// Errors of [`rehearse`], and [`Error::Memory`](crate::Error::Memory).
pub fn plan_memory(
    backend: &CudaBackend,
    model: &dyn Model<CudaBackend>,
    layout: &KvLayout,
    options: SchedulerOptions,
    utilization: f32,
) -> Result<MemoryPlan> {
    // Padded like a decode step with this number of sequences.
    let seqs = bucket(options.max_num_seqs).map_or(options.max_num_seqs, |size| size as usize);
    let most = options.max_batch_tokens.max(seqs);
    // Plans of GEMMs, and so their workspaces, change with tiles of 128 rows, and for quantised weights with tiles of
    // 64 rows. Below that they change with the buckets.
    let tokens = BUCKETS.into_iter().map(|size| size as usize).chain((1..=most / 64).map(|tiles| tiles * 64));
    for tokens in tokens.filter(|&tokens| tokens < most).chain([most]) {
        let decodes = tokens.min(seqs);
        let kinds =
            [(decodes, tokens - decodes, decodes), (0, tokens, seqs), (decodes - 1, tokens - decodes + 1, seqs)];
        // The memory for a draft depends only on the rows of the step, and two tokens suffice for a draft.
        let drafts = (tokens > 1).then(|| (0, 2, tokens - 2, seqs));
        let kinds = kinds.map(|(decodes, prompt, logits)| (decodes, 0, prompt, logits)).into_iter().chain(drafts);
        for (decodes, drafted, prompt, logits) in kinds {
            rehearse(backend, model, layout, Rehearsal { decodes, context: 1, drafted, prompt, logits })?;
        }
    }
    let (activations, (free, total)) = backend.provide_activations()?;
    let used = total - free;
    let allowed = (total as f64 * f64::from(utilization)) as usize;
    let kv_cache = allowed.saturating_sub(used);
    Ok(MemoryPlan { total, weights: backend.weight_bytes(), activations, used, kv_cache })
}
