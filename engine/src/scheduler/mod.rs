//! Decides, once per iteration, which sequences run, and which are preempted (4.5 of the paper). A pure data structure:
//! no tensors, no text, no clock.
//!
//! First come, first served. Running groups are visited in the order in which they were first admitted; each decoding
//! sequence gets its one token, groups that still have several tokens to compute get what the token budget leaves. Where
//! blocks run out the last group gives all of its own back and waits: its blocks are swapped out, to come back as they are,
//! or dropped, to be recomputed. A group that lacks blocks even alone is divided, and half of it waits.
//!
//! Waiting groups are admitted while blocks, budget and sequence limit allow, unless blocks just ran out: those that were
//! preempted first, then the new ones in order of arrival. While others wait, an owner has at most a share of rows and
//! blocks. Owners of which nothing runs are admitted in order; owners that want more than they have take turns with them
//! until they have their share. An owner may come to hold more than its share, because nothing waited or because its
//! sequences grew. It gives the excess up when an owner that holds nothing finds no room, and before anything else is
//! preempted when blocks run out.
//!
//! No request starves:
//! - Within one owner, running groups were admitted before preempted ones, and these before new ones: the group that was
//!   admitted last is preempted first, and the one that was admitted first comes back first.
//! - The group that was admitted first of all, or its first sequence, is the first of its owner, and so never beyond a
//!   share; it is visited first and given up last. It can take the blocks of every other group, so that it always
//!   progresses.
//! - If that group waits, nothing of its owner runs, and it is the first of all that wait. The first owner of which nothing
//!   runs is never passed over, except for one turn of another owner; and every group fits when it runs alone.
//! - So every admitted group ends. A new one waits for those at most, for owners that hold nothing and came before it, and
//!   for one turn of another owner between each two of them.

mod admission;
mod growth;
mod integrity;
mod offload;
mod options;
mod parts;
mod preemption;
mod prefix;
mod queue;
mod share;
mod speculation;
mod step;

use std::collections::HashSet;
use std::sync::Arc;

pub use options::SchedulerOptions;
pub use preemption::Preemption;
pub use step::{Chunk, Step};

use self::growth::{Budget, Growth, plan_within};
use self::offload::restored;
use self::parts::Parts;
pub use self::prefix::{PrefixHit, Prefixes};
use self::queue::WaitingQueue;
use crate::group::{RequestId, SequenceGroup};
use crate::kv::{BlockPool, PoolUsage, Prefix, SharedLog, Space, SwapTier, blocks_needed, distinct_blocks};
use crate::sequence::Sequence;

/// The queues.
#[derive(Debug)]
pub struct Scheduler {
    pool: BlockPool,
    /// Blocks in the host's memory.
    swap: BlockPool,
    /// What moves between the two since cached blocks are evicted; none where these are forgotten.
    tier: Option<SwapTier>,
    prefixes: Prefixes,
    options: SchedulerOptions,
    /// Blocks kept free when a group is admitted.
    watermark_blocks: usize,
    /// Groups that are swapped out or are to be recomputed, and new ones.
    queue: WaitingQueue,
    /// As they were visited in the last step, then those that it admitted.
    running: Vec<SequenceGroup>,
    /// Whether these may stand in another order than [`SequenceGroup::rank`]'s.
    is_disturbed: bool,
    /// Whether each of them got new tokens in the last step, so that each sequence lacks one token at most.
    all_sampled: bool,
    /// Which requests are several groups.
    parts: Parts,
    /// Complete, to be taken.
    finished: Vec<SequenceGroup>,
    /// Admissions of new groups so far.
    tickets: u64,
    /// Whether nothing of its owner ran when the last group was admitted.
    newcomer_was_last: bool,
}

impl Scheduler {
    /// A scheduler that hands out the blocks of `pool`, and swaps to those of `swap`. When a group is admitted,
    /// `watermark_blocks` of the pool stay free, so that it does not push others out at once. Where prefixes are cached, and
    /// there is a swap space, cached blocks that are evicted move there.
    pub fn new(pool: BlockPool, swap: BlockPool, watermark_blocks: usize, options: SchedulerOptions) -> Self {
        let is_tiered = options.prefix_caching && swap.num_blocks() > 0;
        let tier = is_tiered.then(|| SwapTier::new(&pool, &swap));
        let below = is_tiered.then_some(&swap);
        let prefixes = Prefixes::new(&pool, below, options.prefix_caching, options.max_batch_tokens);
        Scheduler {
            pool,
            swap,
            tier,
            prefixes,
            options,
            watermark_blocks,
            queue: WaitingQueue::default(),
            running: Vec::new(),
            is_disturbed: false,
            all_sampled: true,
            parts: Parts::default(),
            finished: Vec::new(),
            tickets: 0,
            newcomer_was_last: false,
        }
    }

    /// Queues a group.
    pub fn add(&mut self, mut group: SequenceGroup) {
        if self.options.max_request_share >= 1.0 {
            group.owner = 0;
        }
        self.queue.insert(group);
    }

    /// Groups in progress. A request that was divided is several.
    pub fn running(&self) -> &[SequenceGroup] {
        &self.running
    }

    /// Groups that are swapped out, to be recomputed, or new, owner by owner. A request that was divided may be several,
    /// and may run as well.
    pub fn waiting(&self) -> impl Iterator<Item = &SequenceGroup> {
        self.queue.iter()
    }

    /// Requests of which something runs.
    pub fn num_running(&self) -> usize {
        if self.parts.is_empty() {
            return self.running.len();
        }
        self.running.iter().map(|group| group.id).collect::<HashSet<_>>().len()
    }

    /// Requests of which nothing runs.
    pub fn num_waiting(&self) -> usize {
        self.queue.len() + self.running.len() - self.parts.num_extra() - self.num_running()
    }

    /// The requests that wait and of which nothing was generated, a group of each.
    pub fn untouched(&self) -> Vec<&SequenceGroup> {
        let begun = self.queue.iter().filter(|group| group.first_token.is_some());
        let begun = self.running.iter().chain(begun).map(|group| group.id);
        let mut seen: HashSet<RequestId> = begun.chain(self.parts.begun()).collect();
        self.queue.iter().filter(|group| seen.insert(group.id)).collect()
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

    /// The prefixes that sequences can share with others.
    pub fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// Keeps what has been computed of a sequence, for requests that begin with it.
    pub fn pin(&mut self, seq: Sequence) {
        self.prefixes.pin(seq);
    }

    /// Blocks that are not pinned: those that groups can have.
    pub fn capacity(&self) -> usize {
        self.pool.num_blocks() - distinct_blocks(self.prefixes.pinned_tables())
    }

    /// The requests of which a group is swapped out.
    pub fn swapped(&self) -> impl Iterator<Item = RequestId> {
        self.queue.iter().filter(|g| self.is_swapped(g)).map(|g| g.id)
    }

    /// How many requests [`Self::swapped`] names.
    pub fn num_swapped(&self) -> usize {
        if self.swap.usage().used_blocks == 0 { 0 } else { self.swapped().collect::<HashSet<_>>().len() }
    }

    /// Use of the cache.
    pub fn usage(&self) -> PoolUsage {
        self.pool.usage()
    }

    /// Cached blocks: without references, but kept for a later prefix hit; ascending.
    pub fn cached_blocks(&self) -> Vec<u32> {
        self.pool.cached()
    }

    /// The known blocks of the cache or of the swap space, ascending, each with the prefix whose last tokens it holds.
    pub fn registered_blocks(&self, space: Space) -> Vec<(u32, Arc<Prefix>)> {
        match space {
            Space::Cache => self.pool.registered(),
            Space::Swap => self.swap.registered(),
        }
    }

    /// The reference count of each block of the cache.
    pub fn references(&self) -> Vec<u32> {
        self.pool.references()
    }

    /// Use of the swap space.
    pub fn swap_usage(&self) -> PoolUsage {
        self.swap.usage()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.is_empty() && self.finished.is_empty()
    }

    /// Ends outputs of a request before their time. `end` is called for each of its groups.
    pub fn end(&mut self, id: RequestId, mut end: impl FnMut(&mut SequenceGroup)) {
        self.running.iter_mut().filter(|group| group.id == id).for_each(&mut end);
        let ended = self.queue.extract(|group| {
            if group.id == id {
                end(group);
            }
            group.is_finished()
        });
        self.finish(ended);
        self.retire();
    }

    /// Takes out the requests whose outputs are all there, a group each.
    pub fn take_finished(&mut self) -> Vec<SequenceGroup> {
        self.retire();
        std::mem::take(&mut self.finished)
    }

    /// Drops the requests in progress, whose keys and values are lost with the step that failed: all of a request of which
    /// a part runs. Their blocks are free again, nothing is known any more but what is pinned, and what was swapped out
    /// will be recomputed.
    pub fn drop_running(&mut self) {
        let lost: HashSet<RequestId> = self.running.drain(..).map(|group| group.id).collect();
        self.queue.extract(|group| {
            group.release(&self.pool);
            lost.contains(&group.id)
        });
        self.parts.forget(&lost);
        self.pool.reset_prefix_cache();
        self.swap.reset_prefix_cache();
    }

    /// Whether anything of the request is in the queues.
    pub fn contains(&self, id: RequestId) -> bool {
        self.running.iter().chain(self.queue.iter()).any(|group| group.id == id)
    }

    fn retire(&mut self) {
        let ended: Vec<_> = self.running.extract_if(.., |group| group.is_finished()).collect();
        self.finish(ended);
    }

    fn finish(&mut self, ended: Vec<SequenceGroup>) {
        self.finished.extend(ended.into_iter().filter_map(|group| self.parts.end(group)));
    }

    /// Plans the next iteration and reserves its blocks. With `hold_new` nothing new is admitted unless nothing runs.
    pub fn schedule(&mut self, hold_new: bool) -> Step {
        let mut step = Step::default();
        self.plan(hold_new, &mut step);
        self.offload(&mut step);
        self.settle();
        step
    }

    fn plan(&mut self, hold_new: bool, step: &mut Step) {
        let hold_new = hold_new && !self.running.is_empty();
        self.slide();
        self.arrange(hold_new, step);
        self.all_sampled = false;
        let seqs = self.running.iter().map(SequenceGroup::width).sum();
        let rows = self.options.max_num_seqs.saturating_sub(seqs);
        let undecoded = self.undecoded();
        let mut budget = Budget { tokens: self.options.max_batch_tokens, rows, undecoded };
        let mut is_short = false;
        let mut at = 0;
        while at < self.running.len() {
            if self.grow(at, &mut budget, step) {
                at += 1;
                continue;
            }
            is_short = true;
            if self.running.len() > 1 {
                self.preempt_last(step);
            } else if !self.narrow(step) {
                // One sequence alone with the whole pool, and it does not suffice.
                step.exhausted = true;
                return;
            }
        }
        if !is_short {
            self.admit(hold_new, &mut budget, step);
        }
        self.all_sampled = step.sampled.len() == self.running.len();
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
        let Some(plan) = plan_within(group, left, &self.prefixes, &self.pool) else { return false };
        let wanted = group.wanted();
        if let Some(start) = plan.first().and_then(|growth| growth.start.as_ref()) {
            self.running[at].cached_tokens.get_or_insert(start.hits);
        }
        for Growth { seq: at_seq, start, tokens } in plan {
            let seq = &mut self.running[at].running[at_seq];
            if let Some(start) = start {
                step.hit_tokens += start.hits;
                step.looked_up_tokens += start.looked_up;
                seq.table = restored(self.tier.as_mut(), start.hit, step);
            }
            self.extend(at, at_seq, tokens, step);
            budget.tokens = budget.tokens.saturating_sub(tokens);
            if !wanted.is_empty() {
                let end = self.running[at].running[at_seq].table.len();
                budget.rows -= end.saturating_sub(wanted.start + 1);
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
        self.speculate(at, budget);
        for seq in 0..self.running[at].running.len() {
            let tokens = self.running[at].running[seq].pending();
            self.extend(at, seq, tokens, step);
        }
        step.sampled.push(at);
        true
    }

    /// Schedules the next tokens of a sequence, for which there are blocks.
    fn extend(&mut self, at: usize, at_seq: usize, tokens: usize, step: &mut Step) {
        let wanted = self.running[at].wanted();
        let seq = &mut self.running[at].running[at_seq];
        let begin = seq.table.len();
        if seq.table.reserve(tokens, &mut step.moves.copies).is_err() {
            unreachable!("the blocks of the whole group were counted");
        }
        let end = begin + tokens;
        if tokens > 0 {
            let wanted = wanted.start.min(end)..wanted.end.min(end);
            step.chunks.push(Chunk { group: at, seq: at_seq, range: begin..end, wanted });
        }
        // The tokens are computed in this step, before anything reads them.
        self.prefixes.register(seq);
    }
}
