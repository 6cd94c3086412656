//! Checks whether a request fits when it runs alone.

use super::{Engine, EngineConfig};
use crate::embedding::Pooling;
use crate::error::{Error, Result};
use crate::kv::blocks_for;
use crate::sampling::SamplingParams;

impl Engine {
    /// Rejects a prompt that is too long for the model or the KV cache even if the request runs alone.
    pub(super) fn check_prompt(&self, prompt: &[u32], params: &SamplingParams) -> Result<()> {
        let refuse = |why: String| Err(Error::request("prompt", why));
        let EngineConfig { max_len, vocab_size, block_size, .. } = self.config;
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
        let num_blocks = self.scheduler.capacity();
        let own = blocks_for(len, block_size) - self.pinned_blocks(prompt, params);
        if own.min(self.blocks_alone(len, params)) > num_blocks {
            return refuse(format!(
                "the prompt has {} tokens, but the KV cache holds {} in all ({num_blocks} blocks of {block_size})",
                prompt.len(),
                num_blocks * block_size
            ));
        }
        Ok(())
    }

    /// Rejects beam searches that are too large for the KV cache. Beams compete at every step, so all must fit together
    /// at their full length.
    pub(super) fn check_beams(&self, prompt: &[u32], params: &SamplingParams) -> Result<()> {
        let Some(beam) = params.beam else { return Ok(()) };
        let EngineConfig { max_len, block_size, .. } = self.config;
        let most = params.max_tokens.min(max_len - prompt.len());
        // The last generated token needs no slot, because no token follows it.
        let longest = blocks_for(prompt.len() + most.saturating_sub(1), block_size);
        let shared = prompt.len() / block_size;
        let needed = shared + beam.width * (longest - shared) - self.pinned_blocks(prompt, params);
        let num_blocks = self.scheduler.capacity();
        if needed > num_blocks {
            let why = format!(
                "{} beams of up to {most} tokens after a prompt of {} may take {needed} KV blocks, but there are \
                 {num_blocks}, and beams cannot be run in parts",
                beam.width,
                prompt.len()
            );
            return Err(Error::request("beam_width", why));
        }
        Ok(())
    }

    /// The number of blocks that a sequence of `tokens` tokens needs when it has the cache to itself. Beams keep all
    /// their blocks.
    fn blocks_alone(&self, tokens: usize, params: &SamplingParams) -> usize {
        match params.beam {
            Some(_) => blocks_for(tokens, self.config.block_size),
            None => self.pool.blocks_at_once(tokens, 1),
        }
    }

    /// The number of full blocks that a prompt shares with a pinned prefix.
    fn pinned_blocks(&self, prompt: &[u32], params: &SamplingParams) -> usize {
        // Requests that want a result for every token compute them all, so they share nothing.
        let computes_all = params.prompt_logprobs.is_some() || params.pooling == Some(Pooling::Mean);
        if computes_all { 0 } else { self.scheduler.prefixes().pinned_len(prompt) / self.config.block_size }
    }

    /// The maximum length of `prompt` and an output together, limited by the model's positions and by the KV blocks
    /// available to one sequence.
    pub fn context_len(&self, prompt: &[u32], params: &SamplingParams) -> usize {
        let EngineConfig { max_len, block_size, .. } = self.config;
        let blocks = self.scheduler.capacity() + self.pinned_blocks(prompt, params);
        if self.blocks_alone(max_len, params) <= self.scheduler.capacity() {
            return max_len;
        }
        // The last token needs no slot.
        max_len.min(blocks * block_size + 1)
    }
}
