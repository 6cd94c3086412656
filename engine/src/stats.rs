//! What an engine has done so far.

use crate::kv::PoolUsage;

/// Counters over all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Iterations.
    pub steps: usize,
    /// Tokens run through the model, recomputed ones included.
    pub computed_tokens: usize,
    /// Tokens sampled.
    pub sampled_tokens: usize,
    /// Tokens that were drafted.
    pub drafted_tokens: usize,
    /// Those of them that were right, and spared a step each.
    pub accepted_tokens: usize,
    /// Most sequences in a step.
    pub peak_seqs: usize,
    /// Groups preempted.
    pub preemptions: usize,
    /// Those of them that were swapped out; the others were recomputed.
    pub swapped_out: usize,
    /// Blocks moved to the swap space for them.
    pub swapped_out_blocks: usize,
    /// Blocks moved back from the swap space for them.
    pub swapped_in_blocks: usize,
    /// Cached blocks moved to the swap space when they were evicted.
    pub offloaded_blocks: usize,
    /// Blocks moved back from the swap space since a prefix look-up found them.
    pub restored_blocks: usize,
    /// Outputs that ended because the pool is too small for them even alone.
    pub exhausted: usize,
    /// Blocks copied on write.
    pub copied_blocks: usize,
    /// Tokens of sequences that began to be computed, recomputed ones included.
    pub looked_up_tokens: usize,
    /// Those of them that were not computed, since a known prefix had them.
    pub hit_tokens: usize,
    /// Those of the latter that came back from the swap space.
    pub swap_hit_tokens: usize,
    /// Use of the pool at the step that used most blocks.
    pub peak: PoolUsage,
    /// Sum of used slots over all steps.
    used_slots: usize,
    /// Sum of filled slots over all steps.
    filled_slots: usize,
    /// Sums of used blocks, and of blocks as if none were shared, over all steps.
    used_blocks: usize,
    unshared_blocks: usize,
}

impl Stats {
    /// Takes in the state of the pool in a step. `unshared_blocks` is the length of all block tables together.
    pub(crate) fn observe(&mut self, usage: PoolUsage, unshared_blocks: usize) {
        if usage.used_blocks >= self.peak.used_blocks {
            self.peak = usage;
        }
        self.used_slots += usage.used_slots;
        self.filled_slots += usage.filled_slots;
        self.used_blocks += usage.used_blocks;
        self.unshared_blocks += unshared_blocks;
    }

    /// Share of the slots in allocated blocks that held a token, over all steps (the paper reports 96.3 %).
    pub fn utilisation(&self) -> f64 {
        ratio(self.filled_slots, self.used_slots)
    }

    /// The same at the step that used most blocks.
    pub fn peak_utilisation(&self) -> f64 {
        ratio(self.peak.filled_slots, self.peak.used_slots)
    }

    /// Share of the tokens looked up in known prefixes that were there.
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hit_tokens, self.looked_up_tokens)
    }

    /// Share of the drafted tokens that were right.
    pub fn acceptance(&self) -> f64 {
        ratio(self.accepted_tokens, self.drafted_tokens)
    }

    /// Share of blocks that sharing saved, over all steps (6.3 of the paper).
    pub fn sharing_saved(&self) -> f64 {
        if self.unshared_blocks == 0 { 0.0 } else { 1.0 - ratio(self.used_blocks, self.unshared_blocks) }
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
