//! Counters of an engine's work.

use crate::kv::PoolUsage;

/// Counters over all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Steps that computed tokens.
    pub steps: usize,
    /// Tokens run through the model, including recomputed ones.
    pub computed_tokens: usize,
    /// Sampled tokens.
    pub sampled_tokens: usize,
    /// Drafted tokens.
    pub drafted_tokens: usize,
    /// Drafted tokens that were right. Each saved a step.
    pub accepted_tokens: usize,
    /// Most sequences in a step.
    pub peak_seqs: usize,
    /// Preempted groups.
    pub preemptions: usize,
    /// Preempted groups that were swapped out. The others were recomputed.
    pub swapped_out: usize,
    /// Blocks of preempted groups that were moved to the swap space.
    pub swapped_out_blocks: usize,
    /// Blocks of preempted groups that were moved back from the swap space.
    pub swapped_in_blocks: usize,
    /// Cached blocks that were moved to the swap space on eviction.
    pub offloaded_blocks: usize,
    /// Blocks moved back from the swap space by prefix hits.
    pub restored_blocks: usize,
    /// Outputs that ended because even alone they needed more blocks than the pool has.
    pub exhausted: usize,
    /// Blocks copied for copy-on-write.
    pub copied_blocks: usize,
    /// Tokens looked up in the prefix index when sequences started, including those recomputed after a preemption.
    pub looked_up_tokens: usize,
    /// Looked up tokens that were prefix hits and not computed.
    pub hit_tokens: usize,
    /// Prefix hit tokens whose blocks were in the swap space.
    pub swap_hit_tokens: usize,
    /// Pool usage in the step that used most blocks.
    pub peak: PoolUsage,
    /// Sum of used slots over all steps.
    used_slots: usize,
    /// Sum of filled slots over all steps.
    filled_slots: usize,
    /// Sums over all steps of used blocks, and of used blocks counted once per table.
    used_blocks: usize,
    unshared_blocks: usize,
}

impl Stats {
    /// Adds the state of the pool in a step. `unshared_blocks` is the total length of all block tables.
    pub(crate) fn observe(&mut self, usage: PoolUsage, unshared_blocks: usize) {
        if usage.used_blocks >= self.peak.used_blocks {
            self.peak = usage;
        }
        self.used_slots += usage.used_slots;
        self.filled_slots += usage.filled_slots;
        self.used_blocks += usage.used_blocks;
        self.unshared_blocks += unshared_blocks;
    }

    /// Fraction of slots in used blocks that held a token, over all steps (the paper reports 96.3 %).
    pub fn utilisation(&self) -> f64 {
        ratio(self.filled_slots, self.used_slots)
    }

    /// Fraction of slots in used blocks that held a token, in the step that used most blocks.
    pub fn peak_utilisation(&self) -> f64 {
        ratio(self.peak.filled_slots, self.peak.used_slots)
    }

    /// Fraction of the looked up tokens that were prefix hits.
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hit_tokens, self.looked_up_tokens)
    }

    /// Fraction of the drafted tokens that were right.
    pub fn acceptance(&self) -> f64 {
        ratio(self.accepted_tokens, self.drafted_tokens)
    }

    /// Fraction of blocks that sharing saved, over all steps (6.3 of the paper).
    pub fn sharing_saved(&self) -> f64 {
        if self.unshared_blocks == 0 { 0.0 } else { 1.0 - ratio(self.used_blocks, self.unshared_blocks) }
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
