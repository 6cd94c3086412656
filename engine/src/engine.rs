//! The engine takes requests and produces tokens. Each step schedules, runs and postprocesses.

mod batching;
mod room;

use std::time::Instant;

use self::batching::{batch, push_span};
use crate::batch::Batch;
use crate::constraint::{Matcher, compute_masks};
use crate::delay::Delay;
use crate::error::{Error, Result};
use crate::group::{NewToken, OwnerId, RequestId, SequenceGroup};
use crate::kv::{BlockMoves, BlockPool, CacheGroup, SharedLog};
use crate::runner::{Computed, Runner};
use crate::sampling::{Sampled, SamplingParams};
use crate::scheduler::{Scheduler, SchedulerOptions, Step};
use crate::sequence::{FinishReason, Output, PromptLogprobs, Sequence};
use crate::stats::Stats;

/// Properties of the model and the memory, and scheduling options.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Pages in the KV pool. With one group of layers, a page is a block.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Pages in the swap space.
    pub swap_blocks: usize,
    /// The groups of layers that have blocks of their own.
    pub groups: Vec<CacheGroup>,
    /// Most positions a sequence may have.
    pub max_len: usize,
    /// The number of tokens above which the model encodes positions differently. `None` if it never does.
    pub boundary: Option<usize>,
    /// Size of the vocabulary. Token ids are below it.
    pub vocab_size: usize,
    /// Tokens that end a sequence.
    pub eos: Vec<u32>,
    /// Scheduling options.
    pub scheduler: SchedulerOptions,
}

/// Most likeliest tokens that can be requested for a row of logits. This is the number that the GPU can sort.
const MAX_CANDIDATES: usize = kernels::sampling::CANDIDATES as usize;

/// Fraction of the pool kept free when a request is admitted (vLLM's watermark, which the paper does not have).
const WATERMARK: f64 = 0.01;

/// A request whose outputs are complete.
#[derive(Debug)]
pub struct Finished {
    /// The request's id.
    pub id: RequestId,
    /// Its outputs, best first if the request asked to select among several.
    pub outputs: Vec<Output>,
    /// Logprobs of the prompt's tokens, if requested. A cancelled request's may be incomplete.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The prompt's embedding, if requested and not cancelled.
    pub embedding: Option<Vec<f32>>,
    /// The number of prompt tokens that were a prefix hit when the request first started.
    pub cached_tokens: usize,
    /// When the request arrived.
    pub arrival: Instant,
    /// When the request got its first token.
    pub first_token: Option<Instant>,
}

/// The results of a step.
#[derive(Debug, Default)]
pub struct StepOutput {
    /// The new tokens of outputs that can be streamed.
    pub tokens: Vec<NewToken>,
    /// Prompt logprobs of the requests that got their first tokens in this step, if requested.
    pub prompts: Vec<(RequestId, PromptLogprobs)>,
    /// The requests that are complete.
    pub finished: Vec<Finished>,
}

/// Serves any number of requests concurrently.
pub struct Engine {
    config: EngineConfig,
    pool: BlockPool,
    scheduler: Scheduler,
    runner: Box<dyn Runner>,
    next_id: RequestId,
    next_owner: OwnerId,
    /// The requests admitted in the last step.
    admitted: Vec<RequestId>,
    delay: Delay,
    stats: Stats,
}

impl Engine {
    /// An engine that executes its steps with `runner`.
    pub fn new(config: EngineConfig, runner: Box<dyn Runner>) -> Self {
        let EngineConfig { block_size, ref groups, boundary, .. } = config;
        let new_pool = |pages| BlockPool::with_boundary(pages, block_size, groups, boundary);
        let pool = new_pool(config.num_blocks);
        let swap = new_pool(config.swap_blocks);
        let watermark_pages = (config.num_blocks as f64 * WATERMARK) as usize;
        let scheduler = Scheduler::new(pool.clone(), swap, watermark_pages, config.scheduler);
        let delay = Delay::new(config.scheduler.delay_factor);
        Engine {
            config,
            pool,
            scheduler,
            runner,
            next_id: 0,
            next_owner: 0,
            admitted: Vec::new(),
            delay,
            stats: Stats::default(),
        }
    }

    /// Queues a request with an owner of its own.
    ///
    /// # Errors
    /// [`Error::Request`] if it is invalid or could never run. Nothing is queued then.
    pub fn add(&mut self, prompt: Vec<u32>, params: SamplingParams) -> Result<RequestId> {
        let owner = self.new_owner();
        self.add_for(owner, prompt, params)
    }

    /// Creates an owner, for requests whose sequences and blocks are counted together.
    pub fn new_owner(&mut self) -> OwnerId {
        self.next_owner += 1;
        self.next_owner
    }

    /// As [`Engine::add`], for an owner that may have other requests.
    ///
    /// # Errors
    /// See [`Engine::add`].
    pub fn add_for(&mut self, owner: OwnerId, prompt: Vec<u32>, params: SamplingParams) -> Result<RequestId> {
        params.validate()?;
        self.check_priority(params.priority)?;
        self.check_prompt(&prompt, &params)?;
        let vocab_size = self.config.vocab_size;
        if let Some((id, _)) = params.logit_bias.iter().find(|bias| bias.0 as usize >= vocab_size) {
            let why = format!("logit_bias id {id} is outside the vocabulary of {vocab_size} tokens");
            return Err(Error::request("logit_bias", why));
        }
        if let Some(id) = params.stop_token_ids.iter().find(|id| **id as usize >= vocab_size) {
            let why = format!("stop_token_ids: {id} is outside the vocabulary of {vocab_size} tokens");
            return Err(Error::request("stop_token_ids", why));
        }
        if params.constraint.as_ref().is_some_and(|constraint| constraint.vocab_size() != vocab_size) {
            return Err(Error::request("constraint", "the constraint was compiled for another model's vocabulary"));
        }
        if params.width() > self.config.scheduler.max_num_seqs {
            let (width, most) = (params.width(), self.config.scheduler.max_num_seqs);
            let why = format!("{width} sequences for one request, but at most {most} run at a time");
            return Err(Error::request(if params.beam.is_some() { "beam_width" } else { "best_of" }, why));
        }
        self.check_beams(&prompt, &params)?;
        if let Some(beam) = params.beam.filter(|beam| beam.num_candidates(self.config.eos.len()) > MAX_CANDIDATES) {
            let width = beam.width;
            let why = format!("{width} beams need more than {MAX_CANDIDATES} candidates");
            return Err(Error::request("beam_width", why));
        }
        let seed = match params.seed {
            Some(seed) => seed,
            None => getrandom::u64().map_err(|e| Error::request("seed", format!("cannot get a random seed: {e}")))?,
        };
        let id = self.next_id;
        self.next_id += 1;
        let max_output = self.config.max_len - prompt.len();
        let mut group = SequenceGroup::new(id, prompt, params, seed, max_output, &self.config.eos, &self.pool);
        group.owner = owner;
        self.scheduler.add(group);
        Ok(id)
    }

    /// Runs one iteration over all running groups.
    ///
    /// # Errors
    /// If the device failed. The running requests are lost. Waiting requests are kept, but after a GPU failure the next
    /// steps fail too.
    pub fn step(&mut self) -> Result<StepOutput> {
        let begun = Instant::now();
        let hold_new = self.scheduler.next_arrival().is_some_and(|came| self.delay.holds(begun - came));
        let step = self.scheduler.schedule(hold_new);
        self.scheduler.record_step();
        compute_masks(self.matchers(&step));
        let computed = self.run(&step).inspect_err(|_| self.scheduler.drop_running())?;
        if !step.admitted.is_empty() {
            self.delay.observe(begun.elapsed());
        }
        let output = self.postprocess(&step, &computed);
        self.admitted = step.admitted;
        Ok(output)
    }

    /// The requests admitted in the last step.
    pub fn admitted(&self) -> &[RequestId] {
        &self.admitted
    }

    /// Computes a prefix and pins its blocks. Prompts that begin with it share them, up to the first different token. A
    /// block that is shared only in part is copied (4.4 of the paper, shared prefix).
    ///
    /// # Errors
    /// [`Error::Request`] if the prefix is empty, too long or not in the vocabulary, and [`Error::Memory`] if too few
    /// blocks are free. Nothing is changed then. Other errors if the device failed.
    pub fn pin_prefix(&mut self, tokens: Vec<u32>) -> Result<()> {
        self.check_prompt(&tokens, &SamplingParams::default())?;
        let mut seq = Sequence::new(tokens, &self.pool, false).keeping_states(&[], &self.config.eos, &self.pool);
        seq.table = self.scheduler.prefixes().find_in_cache(&seq.tokens);
        seq.table.keep_states(seq.kept_states.as_ref());
        let mut batches = Vec::new();
        let mut copies = Vec::new();
        while seq.pending() > 0 {
            let start = seq.table.len();
            let len = seq.pending().min(self.config.scheduler.max_batch_tokens);
            if seq.table.reserve(len, &mut copies).is_err() {
                let (len, free) = (seq.tokens.len(), self.pool.num_free());
                return Err(Error::Memory(format!(
                    "a shared prefix of {len} tokens does not fit in the {free} free KV blocks"
                )));
            }
            let mut batch = Batch::new(self.config.groups.len());
            push_span(&mut batch, &seq, start..start + len);
            batches.push(batch);
        }
        let mut moves = BlockMoves { copies, ..self.scheduler.take_offloads() };
        self.stats.offloaded_blocks += moves.swap_out.len();
        for mut batch in batches {
            batch.moves = std::mem::take(&mut moves);
            self.stats.computed_tokens += batch.tokens.len();
            self.runner.run(batch, &[]).inspect_err(|_| self.scheduler.drop_running())?;
        }
        self.scheduler.pin(seq);
        Ok(())
    }

    /// Whether any request is queued or running.
    pub fn has_work(&self) -> bool {
        !self.scheduler.is_idle()
    }

    /// Ends one output early, as a stop string does. If it was the last one, the next step reports the request.
    pub fn stop_output(&mut self, id: RequestId, index: usize) {
        self.scheduler.end(id, |group| group.stop(index, FinishReason::Stop));
    }

    /// Cancels a request. The next step reports it as finished, with the tokens generated so far.
    pub fn abort(&mut self, id: RequestId) {
        self.scheduler.end(id, |group| group.stop_all(FinishReason::Abort));
    }

    /// Sends all later block events to `log`.
    pub fn set_log(&mut self, log: SharedLog) {
        self.scheduler.set_log(log);
    }

    /// Counters since the engine was created.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The engine's configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The scheduler, for inspecting its queues.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The matchers of the constrained sequences that sample a token in this step.
    fn matchers(&mut self, step: &Step) -> Vec<&mut Matcher> {
        let groups = self.scheduler.running_mut().iter_mut().enumerate();
        groups
            .filter(|(at, group)| group.params.constraint.is_some() && step.sampled.binary_search(at).is_ok())
            .flat_map(|(_, group)| &mut group.running)
            .filter_map(|seq| seq.matcher.as_mut())
            .collect()
    }

    fn run(&mut self, step: &Step) -> Result<Computed> {
        if step.is_empty() {
            return Ok(Computed::default());
        }
        let (batch, rows) = batch(&self.scheduler, step, self.config.groups.len());
        self.runner.run(batch, &rows)
    }

    fn postprocess(&mut self, step: &Step, Computed { sampled, hidden }: &Computed) -> StepOutput {
        self.count(step, sampled);
        let mut output = StepOutput { tokens: Vec::with_capacity(sampled.len()), ..StepOutput::default() };
        let (mut sampled, mut hidden) = (&sampled[..], &hidden[..]);
        for (at, chunks, is_sampled) in step.groups() {
            let group = &mut self.scheduler.running_mut()[at];
            for chunk in chunks {
                match group.params.pooling {
                    Some(_) => group.pool(take(&mut hidden, chunk.wanted.len())),
                    None => group.score(take(&mut sampled, chunk.wanted.len())),
                }
            }
            if is_sampled {
                let is_first = group.first_token.is_none();
                let (rows, drafted, before) = (group.num_sample_rows(), group.num_drafted(), output.tokens.len());
                group.advance(take(&mut sampled, rows), &mut output.tokens);
                if drafted > 0 {
                    let wrong = rows - (output.tokens.len() - before);
                    self.stats.drafted_tokens += drafted;
                    self.stats.accepted_tokens += drafted - wrong;
                    self.stats.sampled_tokens -= wrong;
                }
                if let Some(logprobs) = group.prompt_logprobs.as_ref().filter(|_| is_first) {
                    output.prompts.push((group.id, logprobs.clone()));
                }
            }
        }
        if step.exhausted {
            let group = &mut self.scheduler.running_mut()[0];
            self.stats.exhausted += group.running.len();
            group.stop_all(FinishReason::Length);
        }
        output.finished.extend(self.scheduler.take_finished().into_iter().map(|mut g| Finished {
            id: g.id,
            arrival: g.arrival,
            first_token: g.first_token,
            prompt_logprobs: g.prompt_logprobs.take(),
            embedding: g.embedding(),
            cached_tokens: g.cached_tokens.unwrap_or(0),
            outputs: g.into_outputs(),
        }));
        output
    }

    fn count(&mut self, step: &Step, sampled: &[Sampled]) {
        let stats = &mut self.stats;
        stats.preemptions += step.preempted;
        stats.looked_up_tokens += step.looked_up_tokens;
        stats.hit_tokens += step.hit_tokens;
        stats.swapped_out += step.swapped_out;
        stats.swap_hit_tokens += step.swap_hit_tokens;
        stats.offloaded_blocks += step.offloaded_blocks;
        stats.restored_blocks += step.restored_blocks;
        stats.swapped_out_blocks += step.moves.swap_out.len() - step.offloaded_blocks;
        stats.swapped_in_blocks += step.moves.swap_in.len() - step.restored_blocks;
        if step.chunks.is_empty() {
            return;
        }
        stats.steps += 1;
        stats.computed_tokens += step.num_tokens();
        let of_prompts = step.chunks.iter().filter(|c| self.scheduler.running()[c.group].params.pooling.is_none());
        stats.sampled_tokens += sampled.len() - of_prompts.map(|c| c.wanted.len()).sum::<usize>();
        stats.copied_blocks += step.moves.copies.len();
        let seqs = self.scheduler.running().iter().flat_map(|g| &g.running);
        stats.peak_seqs = stats.peak_seqs.max(seqs.clone().count());
        stats.observe(self.pool.usage(), seqs.map(|s| self.pool.units(&s.table.live_counts())).sum());
    }
}

/// Splits off the next `count` results of a step.
fn take<'a, T>(results: &mut &'a [T], count: usize) -> &'a [T] {
    let (own, others) = results.split_at(count);
    *results = others;
    own
}
