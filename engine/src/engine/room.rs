//! Checks whether a request may run, and whether it fits when it runs alone.

use super::{Engine, EngineConfig};
use crate::adapter::AdapterHandle;
use crate::embedding::Pooling;
use crate::error::{Error, Result};
use crate::kv::{Counts, blocks_for, capacity};
use crate::sampling::SamplingParams;
use crate::scheduler::{SchedulerOptions, SchedulingPolicy};

impl Engine {
    /// Rejects a priority that the scheduler ignores or does not allow.
    pub(super) fn check_priority(&self, priority: i64) -> Result<()> {
        let SchedulerOptions { policy, min_priority, .. } = self.config.scheduler;
        if policy == SchedulingPolicy::Fcfs && priority != 0 {
            let why = format!(
                "priority is {priority}, but requests are served first come, first served (--scheduling-policy priority \
                 changes that)"
            );
            return Err(Error::request("priority", why));
        }
        match min_priority {
            Some(most) if priority < most => Err(Error::request(
                "priority",
                format!("priority is {priority}, but it must be at least {most}, the most urgent that is allowed"),
            )),
            _ => Ok(()),
        }
    }

    /// Rejects a prompt that is too long for the model or the KV cache even if the request runs alone.
    pub(super) fn check_prompt(&self, prompt: &[u32], params: &SamplingParams) -> Result<()> {
        let refuse = |why: String| Err(Error::request("prompt", why));
        let EngineConfig { max_len, vocab_size, .. } = self.config;
        if prompt.is_empty() {
            return refuse("the prompt has no tokens".into());
        }
        if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocab_size) {
            return refuse(format!("prompt id {id} is outside the vocabulary of {vocab_size} tokens"));
        }
        let (generates, what) = match params.max_tokens {
            0 => (0, ""),
            _ => (1, " and one must be left to generate"),
        };
        let len = prompt.len() + generates;
        if len > max_len {
            return refuse(format!(
                "the prompt has {} tokens, but the model has {max_len} positions{what}",
                prompt.len()
            ));
        }
        if let Some(adapter) = params.adapter.as_ref().filter(|adapter| !self.holds(Counts::default(), Some(adapter))) {
            let why = format!(
                "the adapter {} takes {} pages of the KV cache's memory, which has {}",
                adapter.name(),
                adapter.pages(),
                self.pool.num_pages()
            );
            return Err(Error::request("adapter", why));
        }
        if !self.fits_alone(len, prompt, params) {
            return refuse(format!("the prompt has {} tokens, but the KV cache holds {}", prompt.len(), self.room()));
        }
        Ok(())
    }

    /// The size of the KV cache without pinned blocks, for messages.
    fn room(&self) -> String {
        let (size, capacity) = (self.config.block_size, self.scheduler.capacity());
        if self.config.groups.len() == 1 {
            return format!("{} in all ({capacity} blocks of {size})", capacity * size);
        }
        let (pinned, most) = (self.scheduler.pinned(), self.config.max_len);
        let fits = |len| self.pool.holds(&pinned.plus(self.pool.blocks_at_once(len, 1)), 0);
        format!("at most {} of one sequence", capacity::longest(most, fits))
    }

    /// Rejects beam searches that are too large for the KV cache. Beams compete at every step, so all must fit together
    /// at their full length.
    pub(super) fn check_beams(&self, prompt: &[u32], params: &SamplingParams) -> Result<()> {
        let Some(beam) = params.beam else { return Ok(()) };
        let EngineConfig { max_len, block_size, .. } = self.config;
        let most = params.max_tokens.min(max_len - prompt.len());
        // The last generated token needs no slot, because no token follows it.
        let longest = blocks_for(prompt.len() + most.saturating_sub(1), block_size);
        let pinned = self.pinned_blocks(prompt.len() + most, prompt, params).min(self.pinned_blocks(
            prompt.len(),
            prompt,
            params,
        ));
        // Beams that are computed again share a prefix only where its states are kept. A beam may read one state and
        // write another.
        let shared = if self.pool.has_states() { pinned } else { prompt.len() / block_size };
        let needed = shared + beam.width * (longest - shared) - pinned;
        let blocks = |group: usize| if self.config.groups[group].is_state() { 2 * beam.width } else { needed };
        if !self.holds(Counts::by(self.config.groups.len(), blocks), params.adapter.as_ref()) {
            let there = match self.config.groups.len() {
                1 => self.scheduler.capacity().to_string(),
                _ => "fewer".into(),
            };
            let why = format!(
                "{} beams of up to {most} tokens after a prompt of {} may take {needed} KV blocks, but there are \
                 {there}, and beams cannot be run in parts",
                beam.width,
                prompt.len()
            );
            return Err(Error::request("beam_width", why));
        }
        Ok(())
    }

    /// Whether the cache holds the given numbers of blocks and an adapter, besides the blocks that are pinned.
    fn holds(&self, counts: Counts, adapter: Option<&AdapterHandle>) -> bool {
        self.pool.holds(&self.scheduler.pinned().plus(counts), adapter.map_or(0, AdapterHandle::pages))
    }

    /// Whether `tokens` tokens of a sequence that begins with `prompt` fit when it has the cache to itself. Beams keep all
    /// their blocks.
    fn fits_alone(&self, tokens: usize, prompt: &[u32], params: &SamplingParams) -> bool {
        let all = blocks_for(tokens, self.config.block_size);
        let own = all - self.pinned_blocks(tokens, prompt, params).min(all);
        let at_once = self.pool.blocks_at_once(tokens, 1);
        let counts = Counts::by(self.config.groups.len(), |group| match params.beam {
            _ if self.config.groups[group].is_state() => at_once.of(group),
            Some(_) => own,
            None => own.min(at_once.of(group)),
        });
        self.holds(counts, params.adapter.as_ref())
    }

    /// The number of full blocks that a sequence of `tokens` tokens, which begins with `prompt`, shares with a pinned
    /// prefix. A sequence that becomes long gives up the blocks that it had as a short one.
    fn pinned_blocks(&self, tokens: usize, prompt: &[u32], params: &SamplingParams) -> usize {
        if self.pool.is_long(tokens) != self.pool.is_long(prompt.len()) {
            return 0;
        }
        // Requests that want a result for every token compute them all, so they share nothing.
        let computes_all = params.prompt_logprobs.is_some() || params.pooling == Some(Pooling::Mean);
        // Pinned prefixes have neither salt nor adapter.
        if computes_all || params.cache_salt.is_some() || params.adapter.is_some() {
            0
        } else {
            self.scheduler.prefixes().pinned_len(prompt) / self.config.block_size
        }
    }

    /// The maximum length of `prompt` and an output together, limited by the model's positions and by the KV blocks
    /// available to one sequence.
    pub fn context_len(&self, prompt: &[u32], params: &SamplingParams) -> usize {
        // The last token needs no slot.
        capacity::longest(self.config.max_len, |len| self.fits_alone(len - 1, prompt, params))
    }
}
