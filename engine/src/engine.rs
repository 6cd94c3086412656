//! The engine: requests in, tokens out. A step is schedule, run, postprocess.

use std::time::Instant;

use crate::backend::{Batch, BlockMoves, Span};
use crate::error::{Error, Result};
use crate::group::{NewToken, RequestId, SequenceGroup};
use crate::kv::{BlockPool, Usage, blocks_for};
use crate::runner::Runner;
use crate::sampling::{SampleRow, Sampled, SamplingParams};
use crate::scheduler::{Limits, Scheduler, Step};
use crate::sequence::{FinishReason, Output};
use crate::stats::Stats;

/// What an engine must know of its model and memory.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Blocks in the KV pool.
    pub num_blocks: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Most positions a sequence may have.
    pub max_len: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Tokens that end a sequence.
    pub eos: Vec<u32>,
    /// Most sequences running at a time.
    pub max_num_seqs: usize,
    /// Most tokens in a step.
    pub max_batch_tokens: usize,
}

/// Likeliest tokens that a row of logits can be asked for: what the GPU can sort.
const MAX_CANDIDATES: usize = kernels::sampling::CANDIDATES as usize;

/// Share of the pool kept free when a request is admitted (4.5 of the paper; V0's watermark).
const WATERMARK: f64 = 0.01;

/// A request whose outputs are all there.
#[derive(Debug)]
pub struct Finished {
    /// The request.
    pub id: RequestId,
    /// Its outputs, best first where it asked for a choice.
    pub outputs: Vec<Output>,
    /// When it came.
    pub arrival: Instant,
    /// When its first token was there.
    pub first_token: Option<Instant>,
}

/// What a step brought.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// The new tokens of outputs that can be streamed.
    pub tokens: Vec<NewToken>,
    /// The requests that are complete.
    pub finished: Vec<Finished>,
}

/// Serves any number of requests at once.
pub struct Engine {
    config: EngineConfig,
    pool: BlockPool,
    scheduler: Scheduler,
    runner: Box<dyn Runner>,
    next_id: RequestId,
    stats: Stats,
}

impl Engine {
    /// An engine whose steps are executed by `runner`.
    pub fn new(config: EngineConfig, runner: Box<dyn Runner>) -> Self {
        let pool = BlockPool::new(config.num_blocks, config.block_size);
        let limits = Limits {
            max_num_seqs: config.max_num_seqs,
            max_batch_tokens: config.max_batch_tokens,
            watermark_blocks: (config.num_blocks as f64 * WATERMARK) as usize,
        };
        let scheduler = Scheduler::new(pool.clone(), limits);
        Engine { config, pool, scheduler, runner, next_id: 0, stats: Stats::default() }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`Error::Request`] if it makes no sense or could never run; nothing is queued then.
    pub fn add(&mut self, prompt: Vec<u32>, params: SamplingParams) -> Result<RequestId> {
        params.validate()?;
        self.check_prompt(&prompt)?;
        let vocab_size = self.config.vocab_size;
        if let Some((id, _)) = params.logit_bias.iter().find(|bias| bias.0 as usize >= vocab_size) {
            return Err(Error::Request(format!("logit-bias id {id} is outside the vocabulary of {vocab_size} tokens")));
        }
        if params.width() > self.config.max_num_seqs {
            let (width, most) = (params.width(), self.config.max_num_seqs);
            return Err(Error::Request(format!("{width} sequences for one request, but at most {most} run at a time")));
        }
        if let Some(beam) = params.beam.filter(|beam| beam.num_candidates(self.config.eos.len()) > MAX_CANDIDATES) {
            let width = beam.width;
            return Err(Error::Request(format!(
                "a beam-width of {width} asks for more than {MAX_CANDIDATES} candidates"
            )));
        }
        let seed = match params.seed {
            Some(seed) => seed,
            None => getrandom::u64().map_err(|e| Error::Request(format!("no random seed to be had: {e}")))?,
        };
        let id = self.next_id;
        self.next_id += 1;
        let max_output = self.config.max_len - prompt.len();
        self.scheduler.add(SequenceGroup::new(id, prompt, params, seed, max_output, &self.config.eos, &self.pool));
        Ok(id)
    }

    /// One iteration over everything that runs.
    ///
    /// # Errors
    /// When the device failed: the requests in progress are lost. Those that wait are not, but a GPU that has failed fails
    /// again.
    pub fn step(&mut self) -> Result<StepOutput> {
        let step = self.scheduler.schedule();
        let sampled = self.run(&step).inspect_err(|_| self.scheduler.drop_running())?;
        Ok(self.postprocess(&step, &sampled))
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        !self.scheduler.is_idle()
    }

    /// Ends one output before its time, as a stop string does. It is reported by the next step if it was the last.
    pub fn stop_output(&mut self, id: RequestId, index: usize) {
        self.scheduler.end(id, |group| group.stop(index, FinishReason::Stop));
    }

    /// Cancels a request. The next step reports it as finished, with what it had.
    pub fn abort(&mut self, id: RequestId) {
        self.scheduler.end(id, |group| group.stop_all(FinishReason::Abort));
    }

    /// What was done so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// How much of the KV pool is in use now.
    pub fn usage(&self) -> Usage {
        self.pool.usage()
    }

    /// Sizes and limits.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The queues, for looking at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    fn check_prompt(&self, prompt: &[u32]) -> Result<()> {
        let refuse = |why: String| Err(Error::Request(why));
        let EngineConfig { max_len, vocab_size, num_blocks, block_size, .. } = self.config;
        if prompt.is_empty() {
            return refuse("the prompt has no tokens".into());
        }
        if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocab_size) {
            return refuse(format!("prompt id {id} is outside the vocabulary of {vocab_size} tokens"));
        }
        if prompt.len() >= max_len {
            return refuse(format!(
                "the prompt has {} tokens, but the model has {max_len} positions and one must be left to generate",
                prompt.len()
            ));
        }
        if blocks_for(prompt.len() + 1, block_size) > num_blocks {
            return refuse(format!(
                "the prompt has {} tokens, but the KV cache holds {} in all ({num_blocks} blocks of {block_size})",
                prompt.len(),
                num_blocks * block_size
            ));
        }
        Ok(())
    }

    fn run(&mut self, step: &Step) -> Result<Vec<Sampled>> {
        if step.chunks.is_empty() {
            return Ok(Vec::new());
        }
        let (batch, rows) = batch(&self.scheduler, step, self.config.block_size);
        self.runner.run(batch, &rows)
    }

    fn postprocess(&mut self, step: &Step, sampled: &[Sampled]) -> StepOutput {
        self.count(step, sampled);
        let mut tokens = Vec::with_capacity(sampled.len());
        let mut rest = sampled;
        for &at in &step.sampled {
            let group = &mut self.scheduler.running_mut()[at];
            let (own, others) = rest.split_at(group.num_sample_rows());
            tokens.extend(group.advance(own));
            rest = others;
        }
        if let Some(id) = step.exhausted {
            self.stats.exhausted += 1;
            self.scheduler.end(id, |group| group.stop_all(FinishReason::Length));
        }
        let finished = self.scheduler.take_finished().into_iter().map(|g| Finished {
            id: g.id,
            arrival: g.arrival,
            first_token: g.first_token,
            outputs: g.into_outputs(),
        });
        StepOutput { tokens, finished: finished.collect() }
    }

    fn count(&mut self, step: &Step, sampled: &[Sampled]) {
        let stats = &mut self.stats;
        stats.preemptions += step.preempted;
        if step.chunks.is_empty() {
            return;
        }
        stats.steps += 1;
        stats.computed_tokens += step.num_tokens();
        stats.sampled_tokens += sampled.len();
        stats.copied_blocks += step.copies.len();
        let seqs = self.scheduler.running().iter().flat_map(|g| &g.running);
        stats.peak_seqs = stats.peak_seqs.max(seqs.clone().count());
        stats.observe(self.pool.usage(), seqs.map(|s| s.table.blocks().len()).sum());
    }
}

/// The step's tokens as a backend wants them, and for each row of logits how to sample it.
fn batch<'a>(scheduler: &'a Scheduler, step: &Step, block_size: usize) -> (Batch, Vec<SampleRow<'a>>) {
    let moves = BlockMoves { copies: step.copies.clone(), ..BlockMoves::default() };
    let mut batch = Batch { moves, ..Batch::default() };
    let mut rows = Vec::new();
    for chunks in step.chunks.chunk_by(|a, b| a.group == b.group) {
        let first = batch.spans.len();
        let group = &scheduler.running()[chunks[0].group];
        for chunk in chunks {
            let seq = &group.running[chunk.seq];
            let span = Span {
                start: batch.tokens.len(),
                len: chunk.range.len(),
                context: chunk.range.end,
                table: batch.blocks.len(),
            };
            batch.spans.push(span);
            batch.tokens.extend(&seq.tokens[chunk.range.clone()]);
            batch.positions.extend(chunk.range.clone().map(|p| p as u32));
            batch.slots.extend(chunk.range.clone().map(|p| seq.table.slot(p)));
            let blocks = &seq.table.blocks()[..blocks_for(chunk.range.end, block_size)];
            batch.blocks.extend(blocks.iter().map(|b| b.id()));
        }
        if step.sampled.binary_search(&chunks[0].group).is_ok() {
            // Every sequence of the group has a chunk in this step, in order.
            for (seq, row) in group.sample_rows() {
                let span = batch.spans[first + seq];
                batch.logit_rows.push((span.start + span.len - 1) as u32);
                rows.push(row);
            }
        }
    }
    (batch, rows)
}
