//! Decides, once per iteration, which sequences run, and who is preempted (4.5 of the paper). A pure data structure:
//! no tensors, no text, no clock.
//!
//! First come, first served. Running groups are visited in order of arrival; each decoding sequence gets its one
//! token, groups that still have several tokens to compute get what the token budget leaves. Where blocks run out the
//! latest group gives all of its own back and waits at the head of the queue, to be recomputed. Waiting groups are
//! admitted while blocks, budget and sequence limit allow, unless somebody was just preempted.
//!
//! The oldest group can take every other's blocks, so that it always gets on: nobody starves.

use std::collections::VecDeque;
use std::ops::Range;

use crate::backend::BlockCopy;
use crate::group::{RequestId, SequenceGroup};
use crate::kv::{Block, BlockPool, blocks_for, blocks_needed};
use crate::sequence::Sequence;

/// Bounds on what a step may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most sequences running at a time.
    pub max_num_seqs: usize,
    /// Most tokens in a step. Decoding sequences always get their token; the limit binds prompts, which are computed
    /// in chunks.
    pub max_batch_tokens: usize,
    /// Blocks kept free when a group is admitted, so that it does not push others out at once.
    pub watermark_blocks: usize,
}

/// New tokens of one sequence in a step: tokens `range` of running group `group`, sequence `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index into the running groups.
    pub group: usize,
    /// Index into the group's running sequences.
    pub seq: usize,
    /// Which of the sequence's tokens are computed.
    pub range: Range<usize>,
}

/// What the next iteration does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The new tokens, group by group in order of arrival.
    pub chunks: Vec<Chunk>,
    /// Running groups (ascending indices) that are computed to their end in this step and get new tokens.
    pub sampled: Vec<usize>,
    /// Block copies to make before anything is written.
    pub copies: Vec<BlockCopy>,
    /// Groups that were preempted to make room.
    pub preempted: usize,
    /// The only running group needs more blocks than there are. It must be ended.
    pub exhausted: Option<RequestId>,
}

impl Step {
    /// New tokens in the step.
    pub fn num_tokens(&self) -> usize {
        self.chunks.iter().map(|c| c.range.len()).sum()
    }
}

/// The queues.
#[derive(Debug)]
pub struct Scheduler {
    pool: BlockPool,
    limits: Limits,
    /// In order of arrival.
    waiting: VecDeque<SequenceGroup>,
    /// In order of arrival, all before the first of `waiting`.
    running: Vec<SequenceGroup>,
    /// Complete, to be taken.
    finished: Vec<SequenceGroup>,
}

impl Scheduler {
    /// A scheduler that hands out the blocks of `pool`.
    pub fn new(pool: BlockPool, limits: Limits) -> Self {
        Scheduler { pool, limits, waiting: VecDeque::new(), running: Vec::new(), finished: Vec::new() }
    }

    /// Queues a group.
    pub fn add(&mut self, group: SequenceGroup) {
        self.waiting.push_back(group);
    }

    /// Groups in progress, in order of arrival.
    pub fn running(&self) -> &[SequenceGroup] {
        &self.running
    }

    /// Groups that wait to be admitted, or to be restored after a preemption, in order of arrival.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &SequenceGroup> {
        self.waiting.iter()
    }

    /// The groups in progress, for taking new tokens in.
    pub fn running_mut(&mut self) -> &mut [SequenceGroup] {
        &mut self.running
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.finished.is_empty()
    }

    /// Ends outputs of a group before their time. `end` is not called if there is no such group.
    pub fn end(&mut self, id: RequestId, end: impl FnOnce(&mut SequenceGroup)) {
        if let Some(group) = self.running.iter_mut().chain(&mut self.waiting).find(|g| g.id == id) {
            end(group);
            self.retire();
        }
    }

    /// Takes out the groups whose outputs are all there.
    pub fn take_finished(&mut self) -> Vec<SequenceGroup> {
        self.retire();
        std::mem::take(&mut self.finished)
    }

    /// Drops the groups in progress, whose keys and values are lost; their blocks are free again.
    pub fn drop_running(&mut self) {
        self.running.clear();
    }

    /// Whether the group is in one of the queues.
    pub fn contains(&self, id: RequestId) -> bool {
        self.running.iter().chain(&self.waiting).any(|group| group.id == id)
    }

    fn retire(&mut self) {
        self.finished.extend(self.running.extract_if(.., |g| g.is_finished()));
        if let Some(at) = self.waiting.iter().position(SequenceGroup::is_finished) {
            self.finished.extend(self.waiting.remove(at));
        }
    }

    /// Plans the next iteration and reserves its blocks.
    pub fn schedule(&mut self) -> Step {
        let mut step = Step::default();
        let mut budget = self.limits.max_batch_tokens;
        let mut at = 0;
        while at < self.running.len() {
            if self.grow(at, &mut budget, &mut step) {
                at += 1;
            } else if self.running.len() == 1 {
                // Alone with the whole pool, and it does not suffice.
                step.exhausted = Some(self.running[0].id);
                return step;
            } else {
                self.preempt_latest();
                step.preempted += 1;
            }
        }
        if step.preempted == 0 {
            self.admit(&mut budget, &mut step);
        }
        step
    }

    /// Schedules as much of a group as the budget allows, all of its sequences or none. False if blocks are lacking.
    fn grow(&mut self, at: usize, budget: &mut usize, step: &mut Step) -> bool {
        let plan = self.plan(at, *budget);
        let group = &mut self.running[at];
        if blocks_needed(plan.iter().map(|&(seq, n)| (&group.running[seq].table, n))) > self.pool.num_free() {
            return false;
        }
        for (seq, tokens) in plan {
            let table = &mut group.running[seq].table;
            let start = table.len();
            if table.reserve(tokens, &mut step.copies).is_err() {
                unreachable!("the blocks of the whole group were counted");
            }
            step.chunks.push(Chunk { group: at, seq, range: start..start + tokens });
            *budget = budget.saturating_sub(tokens);
        }
        if group.running.iter().all(|s| s.pending() == 0) {
            step.sampled.push(at);
        }
        true
    }

    /// How many tokens each sequence of a group gets (index, tokens): one each when it decodes, else as much as is
    /// missing and `budget` allows. Several sequences stop one token short, so that they decode together.
    fn plan(&mut self, at: usize, budget: usize) -> Vec<(usize, usize)> {
        if self.running[at].is_decoding() {
            return (0..self.running[at].running.len()).map(|seq| (seq, 1)).collect();
        }
        // Later groups that decode have a claim on the budget too.
        let decoding = self.running[at + 1..].iter().filter(|g| g.is_decoding());
        let mut left = budget.saturating_sub(decoding.map(|g| g.running.len()).sum());
        let seqs = &mut self.running[at].running;
        let short = usize::from(seqs.len() > 1);
        let mut plan = Vec::new();
        for i in 0..seqs.len() {
            if seqs[i].table.is_empty() && !share_prefix(seqs, i, self.pool.block_size()) {
                continue;
            }
            let tokens = (seqs[i].pending() - short).min(left);
            left -= tokens;
            if tokens > 0 {
                plan.push((i, tokens));
            }
        }
        plan
    }

    /// Moves waiting groups to the running ones.
    fn admit(&mut self, budget: &mut usize, step: &mut Step) {
        let mut seqs: usize = self.running.iter().map(SequenceGroup::width).sum();
        while *budget > 0
            && let Some(group) = self.waiting.front()
        {
            let spare = if self.running.is_empty() { 0 } else { self.limits.watermark_blocks };
            let fits = blocks_to_restore(group, self.pool.block_size()) + spare <= self.pool.num_free();
            // What can't fit even alone is admitted alone, and found to be exhausted.
            if !(fits || self.running.is_empty()) || seqs + group.width() > self.limits.max_num_seqs {
                return;
            }
            seqs += group.width();
            self.running.extend(self.waiting.pop_front());
            if !self.grow(self.running.len() - 1, budget, step) {
                if self.running.len() == 1 {
                    step.exhausted = Some(self.running[0].id);
                }
                return;
            }
        }
    }

    fn preempt_latest(&mut self) {
        if let Some(mut group) = self.running.pop() {
            for seq in &mut group.running {
                seq.release(&self.pool);
            }
            self.waiting.push_front(group);
        }
    }

    /// Proves that queues and pool agree: every block is free or held by a running sequence, arrival order is kept, and
    /// waiting groups hold nothing.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        let held = self.running.iter().flat_map(|g| &g.running).flat_map(|s| s.table.blocks());
        self.pool.check_integrity(held.collect::<Vec<&Block>>())?;
        if self.waiting.iter().flat_map(|g| &g.running).any(|s| !s.table.is_empty()) {
            return Err("a waiting group holds blocks".into());
        }
        if !self.running.iter().chain(&self.waiting).is_sorted_by_key(|g| g.id) {
            return Err("groups are out of order".into());
        }
        if self.running.iter().flat_map(|g| &g.running).any(|s| s.table.len() > s.tokens.len()) {
            return Err("a sequence holds slots for tokens it does not have".into());
        }
        Ok(())
    }
}

/// The earlier sequence of the group that begins as sequence `at` does for longest, and the tokens of the whole blocks
/// in which they agree. At least one token is left over to be computed.
fn longest_prefix(seqs: &[Sequence], at: usize, block_size: usize) -> Option<(usize, usize)> {
    let tokens = &seqs[at].tokens;
    let common = |s: &Sequence| s.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    let blocks = |n: usize| n.min(tokens.len() - 1) / block_size * block_size;
    let best = (0..at)
        .map(|donor| (donor, blocks(common(&seqs[donor]))))
        .max_by_key(|&(donor, n)| (n, std::cmp::Reverse(donor)));
    best.filter(|&(_, n)| n > 0)
}

/// Lets sequence `at`, which holds no blocks, share again what it shared before a preemption. False while the blocks it
/// is to share are not computed yet.
fn share_prefix(seqs: &mut [Sequence], at: usize, block_size: usize) -> bool {
    let Some((donor, shared)) = longest_prefix(seqs, at, block_size) else { return true };
    let ready = seqs[donor].table.len() >= shared;
    if ready {
        seqs[at].table = seqs[donor].table.fork_prefix(shared);
    }
    ready
}

/// Blocks it takes to compute all tokens of a group that holds none.
fn blocks_to_restore(group: &SequenceGroup, block_size: usize) -> usize {
    let seqs = &group.running;
    let own = |i: usize| {
        let shared = longest_prefix(seqs, i, block_size).map_or(0, |(_, n)| n / block_size);
        blocks_for(seqs[i].tokens.len(), block_size) - shared
    };
    (0..seqs.len()).map(own).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_shares_with_the_one_it_agrees_with_longest() {
        let pool = BlockPool::new(1, 2);
        let seqs = [[1, 2, 9, 9, 9], [1, 2, 3, 4, 9], [1, 2, 3, 4, 5]].map(|t| Sequence::new(t.to_vec(), &pool, false));
        assert_eq!(longest_prefix(&seqs, 2, 2), Some((1, 4)));
        assert_eq!(longest_prefix(&seqs, 1, 2), Some((0, 2)));
        assert_eq!(longest_prefix(&seqs, 0, 2), None);
    }
}
