//! Decides, once per iteration, which sequences run, and who is preempted (4.5 of the paper). A pure data structure:
//! no tensors, no text, no clock.
//!
//! First come, first served. Running groups are visited in order of arrival; each decoding sequence gets its one
//! token, groups that still have several tokens to compute get what the token budget leaves. Where blocks run out the
//! latest group gives all of its own back and waits at the head of the queue: its blocks are swapped out, to come back as
//! they are, or dropped, to be recomputed. Waiting groups are admitted in order of arrival while blocks, budget and
//! sequence limit allow, unless somebody was just preempted. Whoever is swapped out came before everybody new, so that
//! nothing new is admitted until all are back.
//!
//! The oldest group can take every other's blocks, so that it always gets on: nobody starves.

mod admission;
mod growth;
mod integrity;
mod preemption;
mod prefix;
mod step;

use std::collections::VecDeque;

pub use preemption::Preemption;
pub use step::{Chunk, Step};

use self::growth::{Budget, Growth, blocks_to_grow, plan};
pub use self::prefix::Prefixes;
use crate::group::{RequestId, SequenceGroup};
use crate::kv::{BlockPool, SharedLog, Space, Usage, blocks_needed, distinct_blocks};
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
    /// What happens to the blocks of a group that is preempted.
    pub preemption: Preemption,
    /// Whether full blocks are kept, to be shared by whoever begins with the same tokens.
    pub prefix_caching: bool,
}

/// The queues.
#[derive(Debug)]
pub struct Scheduler {
    pool: BlockPool,
    /// Blocks in the host's memory.
    swap: BlockPool,
    prefixes: Prefixes,
    limits: Limits,
    /// In order of arrival: groups that are swapped out or are to be recomputed, then the new ones.
    waiting: VecDeque<SequenceGroup>,
    /// In order of arrival, all before the first of `waiting`.
    running: Vec<SequenceGroup>,
    /// Complete, to be taken.
    finished: Vec<SequenceGroup>,
}

impl Scheduler {
    /// A scheduler that hands out the blocks of `pool`, and swaps to those of `swap`.
    pub fn new(pool: BlockPool, swap: BlockPool, limits: Limits) -> Self {
        let prefixes = Prefixes::new(&pool, limits.prefix_caching);
        Scheduler { pool, swap, prefixes, limits, waiting: VecDeque::new(), running: Vec::new(), finished: Vec::new() }
    }

    /// Queues a group.
    pub fn add(&mut self, group: SequenceGroup) {
        self.waiting.push_back(group);
    }

    /// Groups in progress, in order of arrival.
    pub fn running(&self) -> &[SequenceGroup] {
        &self.running
    }

    /// Groups that are swapped out, to be recomputed, or new, in order of arrival.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &SequenceGroup> {
        self.waiting.iter()
    }

    /// The groups in progress, for taking new tokens in.
    pub fn running_mut(&mut self) -> &mut [SequenceGroup] {
        &mut self.running
    }

    /// Reports from now on what happens to blocks.
    pub fn set_log(&self, log: SharedLog) {
        self.pool.set_log(log.clone(), Space::Cache);
        self.swap.set_log(log, Space::Swap);
    }

    /// Notes in the log that a step was scheduled, with the state of both pools.
    pub fn record_step(&self) {
        self.pool.record_step();
        self.swap.record_step();
    }

    /// Where sequences find what they have in common with others.
    pub fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// Keeps what has been computed of a sequence, for whoever begins with it.
    pub fn pin(&mut self, seq: Sequence) {
        self.prefixes.pin(seq);
    }

    /// Blocks that are not pinned: what the groups have for themselves.
    pub fn capacity(&self) -> usize {
        self.pool.num_blocks() - distinct_blocks(self.prefixes.pinned_tables())
    }

    /// The requests that are swapped out, in order of arrival.
    pub fn swapped(&self) -> impl Iterator<Item = RequestId> {
        self.waiting.iter().filter(|g| self.is_swapped(g)).map(|g| g.id)
    }

    /// Use of the cache.
    pub fn usage(&self) -> Usage {
        self.pool.usage()
    }

    /// Blocks of the cache that are kept for a prefix and held by nobody, ascending.
    pub fn cached_blocks(&self) -> Vec<u32> {
        self.pool.cached()
    }

    /// How many hold each block of the cache.
    pub fn references(&self) -> Vec<u32> {
        self.pool.references()
    }

    /// Use of the swap space.
    pub fn swap_usage(&self) -> Usage {
        self.swap.usage()
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

    /// Drops the groups in progress, whose keys and values are lost with the step that failed. Their blocks are free
    /// again, nothing is known any more but what is pinned, and what was swapped out will be recomputed.
    pub fn drop_running(&mut self) {
        self.running.clear();
        self.waiting.iter_mut().for_each(|group| group.release(&self.pool));
        self.pool.forget();
        self.swap.forget();
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

    /// Plans the next iteration and reserves its blocks. With `hold_new` nothing new is admitted unless nothing runs.
    pub fn schedule(&mut self, hold_new: bool) -> Step {
        let mut step = Step::default();
        let seqs = self.running.iter().map(SequenceGroup::width).sum();
        let rows = self.limits.max_num_seqs.saturating_sub(seqs);
        let mut budget = Budget { tokens: self.limits.max_batch_tokens, rows };
        let mut at = 0;
        while at < self.running.len() {
            if self.grow(at, &mut budget, &mut step) {
                at += 1;
            } else if self.running.len() == 1 {
                // Alone with the whole pool, and it does not suffice.
                step.exhausted = Some(self.running[0].id);
                return step;
            } else {
                self.preempt_latest(&mut step);
            }
        }
        if step.preempted == 0 {
            self.admit(hold_new && !self.running.is_empty(), &mut budget, &mut step);
        }
        step
    }

    /// Schedules as much of a group as the budget allows, all of its sequences or none. False if blocks are lacking.
    fn grow(&mut self, at: usize, budget: &mut Budget, step: &mut Step) -> bool {
        if self.running[at].is_decoding() {
            return self.decode(at, budget, step);
        }
        // Later groups that decode have a claim on the budget too.
        let decoding = self.running[at + 1..].iter().filter(|g| g.is_decoding());
        let claimed = decoding.map(|g| g.running.len()).sum();
        let group = &self.running[at];
        let left = Budget { tokens: budget.tokens.saturating_sub(claimed), ..*budget };
        let plan = plan(group, left, &self.prefixes);
        if blocks_to_grow(group, &plan, &self.pool) > self.pool.num_free() {
            return false;
        }
        let unscored = group.unscored();
        for Growth { seq: at_seq, start, tokens } in plan {
            let seq = &mut self.running[at].running[at_seq];
            if let Some(start) = start {
                step.hit_tokens += start.hits;
                step.looked_up_tokens += start.looked_up;
                seq.table = start.table;
            }
            self.extend(at, at_seq, tokens, step);
            budget.tokens = budget.tokens.saturating_sub(tokens);
            if !unscored.is_empty() {
                let end = self.running[at].running[at_seq].table.len();
                budget.rows -= end.saturating_sub(unscored.start + 1);
            }
        }
        if self.running[at].running.iter().all(|s| s.pending() == 0) {
            step.sampled.push(at);
        }
        true
    }

    /// Schedules a group in which every sequence gets its one token.
    fn decode(&mut self, at: usize, budget: &mut Budget, step: &mut Step) -> bool {
        let (group, free) = (&self.running[at], self.pool.num_free());
        // None takes more than one block, so that they need not be counted unless few are left.
        if group.running.len() > free && blocks_needed(&self.pool, group.tables().map(|table| (table, 1))) > free {
            return false;
        }
        budget.tokens = budget.tokens.saturating_sub(group.running.len());
        for seq in 0..group.running.len() {
            self.extend(at, seq, 1, step);
        }
        step.sampled.push(at);
        true
    }

    /// Schedules the next tokens of a sequence, for which there are blocks.
    fn extend(&mut self, at: usize, at_seq: usize, tokens: usize, step: &mut Step) {
        let unscored = self.running[at].unscored();
        let seq = &mut self.running[at].running[at_seq];
        let begin = seq.table.len();
        if seq.table.reserve(tokens, &mut step.moves.copies).is_err() {
            unreachable!("the blocks of the whole group were counted");
        }
        let end = begin + tokens;
        if tokens > 0 {
            let scored = unscored.start.min(end)..unscored.end.min(end);
            step.chunks.push(Chunk { group: at, seq: at_seq, range: begin..end, scored });
        }
        // The tokens are computed in this step, before anything reads them.
        self.prefixes.register(seq);
    }
}
