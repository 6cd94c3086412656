//! The scheduler decides, once per iteration, which sequences run and which are preempted (4.5 of the paper). It is a
//! pure data structure: no tensors, no text, no clock.
//!
//! Scheduling is first come, first served. Running groups are visited in the order in which they were first admitted.
//! Each decoding sequence gets its one token, and groups that are still computing their prompts share the rest of the
//! token budget. If blocks run out, the last group is preempted: its blocks are swapped out to come back later, or
//! dropped to be recomputed. A group that does not fit even when it runs alone is divided, and half of it waits.
//!
//! Waiting groups are admitted while blocks, budget and sequence limit allow, unless blocks just ran out. Preempted
//! groups come first, then new ones in order of arrival. While others wait, an owner has at most a share of the rows
//! and blocks. Owners without a running group are admitted in order. Other owners take turns with them until they have
//! their share. An owner may come to have more than its share, because nobody waited or because its sequences grew. It
//! gives up the excess when an owner without a running group finds no room. It also does so when blocks run out, before
//! any other group is preempted.
//!
//! With [`SchedulingPolicy::Priority`], all of this holds among groups of one level, and a lower level comes first: it is
//! visited, admitted and kept first. A group's level is its request's priority. A priority whose groups wait for more
//! urgent ones gains a level in each [`priority_ageing`](SchedulerOptions::priority_ageing) steps, until one of its
//! groups is admitted. That group keeps the level, and the groups of its priority that were admitted before get it too.
//! So groups of one priority are served as if there were no others. A waiting group takes the blocks and rows of running
//! groups whose level is above its priority. Levels gained by waiting do not count for that.
//!
//! A running group's adapter stays loaded, and a step has at most [`max_loras`](SchedulerOptions::max_loras) of them. A group
//! whose adapter is one too many, or finds no memory, waits like a group that finds no blocks. It is not passed over
//! either, so running groups end and give up their adapters.
//!
//! No request starves:
//! - Within one owner, running groups were admitted before preempted ones, and these before new ones. The group that
//!   was admitted last is preempted first, and the one that was admitted first comes back first.
//! - Consider the group that was admitted before all others, or its first sequence. It is the first of its owner, so it
//!   is never beyond a share. It is visited first and preempted last. It can take the blocks of every other group, so
//!   it always progresses.
//! - If that group waits, no group of its owner runs, and it is the first of all waiting groups. The first owner
//!   without a running group is never passed over, except for one turn of another owner, and every group fits when it
//!   runs alone.
//! - So every admitted group finishes. A new group waits at most for the admitted ones, for owners without a running
//!   group that came before it, and for one turn of another owner between each two of them.
//! - With priorities, the level of a waiting priority sinks until it is the lowest. Then its first group is the first of
//!   all waiting groups, and keeps that level when it runs. Each such turn takes at most as many steps as the level
//!   needs to sink, and those of the groups that are more urgent then. So a group waits for a bounded time for each group
//!   of its own priority that came before it. Without ageing, less urgent requests can starve.

mod adapters;
mod admission;
mod ending;
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
mod urgency;

use std::collections::HashSet;
use std::sync::Arc;

pub use options::{SchedulerOptions, SchedulingPolicy};
pub use preemption::Preemption;
pub use step::{Chunk, Step};

use self::growth::{Budget, Growth, plan_within};
use self::offload::restored;
use self::parts::Parts;
use self::prefix::Lookup;
pub use self::prefix::Prefixes;
use self::queue::WaitingQueue;
use crate::group::{RequestId, SequenceGroup};
use crate::kv::{
    BlockPool, Counts, Place, PoolUsage, Prefix, SharedLog, Space, SwapTier, blocks_needed, distinct_blocks,
};
use crate::sequence::Sequence;

/// The scheduler: running groups, waiting groups and the two block pools.
#[derive(Debug)]
pub struct Scheduler {
    pool: BlockPool,
    /// The swap space: blocks in host memory.
    swap: BlockPool,
    /// Moves evicted cached blocks to the swap space and back. `None` if evicted blocks are dropped.
    tier: Option<SwapTier>,
    prefixes: Prefixes,
    options: SchedulerOptions,
    /// Pages kept free when a group is admitted.
    watermark_pages: usize,
    /// Groups that were swapped out, that are to be recomputed, or that are new.
    queue: WaitingQueue,
    /// Running groups in the order of the last step's visits, then the groups it admitted.
    running: Vec<SequenceGroup>,
    /// Whether `running` may be out of the order of [`SequenceGroup::order`].
    is_disturbed: bool,
    /// Whether each running group got new tokens in the last step, so each sequence has at most one pending token.
    all_sampled: bool,
    /// The requests that are divided into several groups.
    parts: Parts,
    /// Finished requests, not taken yet.
    finished: Vec<SequenceGroup>,
    /// The number of new groups admitted so far.
    tickets: u64,
    /// Whether the last new group's owner had no running group when it was admitted.
    newcomer_was_last: bool,
}

impl Scheduler {
    /// A scheduler that allocates blocks of `pool` and swaps to blocks of `swap`. `watermark_pages` pages of the pool
    /// stay free when a group is admitted, so that it does not preempt others at once. With prefix caching and a swap
    /// space, evicted cached blocks move to the swap space.
    pub fn new(pool: BlockPool, swap: BlockPool, watermark_pages: usize, options: SchedulerOptions) -> Self {
        let is_tiered = options.prefix_caching && swap.num_pages() > 0;
        let tier = is_tiered.then(|| SwapTier::new(&pool, &swap));
        let below = is_tiered.then_some(&swap);
        let prefixes = Prefixes::new(&pool, below, options.prefix_caching, options.max_batch_tokens);
        Scheduler {
            pool,
            swap,
            tier,
            prefixes,
            options,
            watermark_pages,
            queue: WaitingQueue::new(match options.policy {
                SchedulingPolicy::Fcfs => 0,
                SchedulingPolicy::Priority => options.priority_ageing as u64,
            }),
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

    /// The running groups. A divided request has several.
    pub fn running(&self) -> &[SequenceGroup] {
        &self.running
    }

    /// The waiting groups, line by line: swapped out, to be recomputed, or new. A divided request may have several,
    /// and may have running groups too.
    pub fn waiting(&self) -> impl Iterator<Item = &SequenceGroup> {
        self.queue.iter()
    }

    /// The number of requests with a running group.
    pub fn num_running(&self) -> usize {
        if self.parts.is_empty() {
            return self.running.len();
        }
        self.running.iter().map(|group| group.id).collect::<HashSet<_>>().len()
    }

    /// The number of requests without a running group.
    pub fn num_waiting(&self) -> usize {
        self.queue.len() + self.running.len() - self.parts.num_extra() - self.num_running()
    }

    /// The waiting requests without any generated token, each represented by one of its groups.
    pub fn untouched(&self) -> Vec<&SequenceGroup> {
        let begun = self.queue.iter().filter(|group| group.first_token.is_some());
        let begun = self.running.iter().chain(begun).map(|group| group.id);
        let mut seen: HashSet<RequestId> = begun.chain(self.parts.begun()).collect();
        self.queue.iter().filter(|group| seen.insert(group.id)).collect()
    }

    /// The running groups, for adding new tokens to them.
    pub fn running_mut(&mut self) -> &mut [SequenceGroup] {
        &mut self.running
    }

    /// Sends all later block events of both pools to `log`.
    pub fn set_log(&self, log: SharedLog) {
        self.pool.set_log(log.clone(), Space::Cache);
        self.swap.set_log(log, Space::Swap);
    }

    /// Records in the log that a step was scheduled, with the state of both pools.
    pub fn record_step(&self) {
        self.pool.record_step();
        self.swap.record_step();
    }

    /// The prefixes that sequences can share.
    pub fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// Pins the computed blocks of a sequence, for requests that begin with its tokens.
    pub fn pin(&mut self, seq: Sequence) {
        self.prefixes.pin(seq);
    }

    /// The numbers of blocks that are pinned.
    pub fn pinned(&self) -> Counts {
        distinct_blocks(self.prefixes.pinned_tables())
    }

    /// The memory available to groups: all that is not pinned, in the units of [`PoolUsage`].
    pub fn capacity(&self) -> usize {
        self.pool.num_units() - self.pool.units(&self.pinned())
    }

    /// The ids of requests with a swapped-out group.
    pub fn swapped(&self) -> impl Iterator<Item = RequestId> {
        self.queue.iter().filter(|g| self.is_swapped(g)).map(|g| g.id)
    }

    /// The number of requests with a swapped-out group.
    pub fn num_swapped(&self) -> usize {
        if self.swap.usage().used_blocks == 0 { 0 } else { self.swapped().collect::<HashSet<_>>().len() }
    }

    /// Usage of the KV cache.
    pub fn usage(&self) -> PoolUsage {
        self.pool.usage()
    }

    /// Usage of the KV cache by a group of layers.
    pub fn group_usage(&self, group: usize) -> PoolUsage {
        self.pool.group_usage(group)
    }

    /// Pages of the KV cache with cached blocks, in ascending order: no references, but kept for later prefix hits. With
    /// one group of layers, a page is a block.
    pub fn cached_pages(&self) -> Vec<u32> {
        self.pool.cached_pages()
    }

    /// A group's registered blocks of the cache or of the swap space, in ascending order, each with the prefix whose last
    /// tokens it holds.
    pub fn registered_blocks(&self, Place { space, group }: Place) -> Vec<(u32, Arc<Prefix>)> {
        match space {
            Space::Cache => self.pool.registered(group),
            Space::Swap => self.swap.registered(group),
        }
    }

    /// The reference count of each page of the KV cache: the highest of its blocks.
    pub fn page_references(&self) -> Vec<u32> {
        self.pool.page_references()
    }

    /// Usage of the swap space.
    pub fn swap_usage(&self) -> PoolUsage {
        self.swap.usage()
    }

    /// The numbers of pages of the swap space that groups use, and that only have cached blocks.
    pub fn swap_pages(&self) -> (usize, usize) {
        let used = self.swap.page_references().into_iter().filter(|refs| *refs > 0).count();
        (used, self.swap.cached_pages().len())
    }

    /// Whether the scheduler has no groups at all.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.is_empty() && self.finished.is_empty()
    }

    /// Plans the next iteration and reserves its blocks. With `hold_new`, new groups are admitted only if none runs.
    pub fn schedule(&mut self, hold_new: bool) -> Step {
        let mut step = Step::default();
        self.plan(hold_new, &mut step);
        self.offload(&mut step);
        self.settle();
        self.drop_evicted(&mut step);
        step
    }

    fn plan(&mut self, hold_new: bool, step: &mut Step) {
        let hold_new = hold_new && !self.running.is_empty();
        self.queue.tick(self.running.iter().map(|group| group.params.priority).min());
        self.lengthen();
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
            } else if self.compact(step) {
                return;
            } else if !self.narrow(step) {
                // The one sequence that is left has the whole pool, and still needs more blocks.
                step.exhausted = true;
                return;
            }
        }
        if !is_short {
            self.admit(hold_new, &mut budget, step);
        }
        self.all_sampled = step.sampled.len() == self.running.len();
    }

    /// Schedules as much of a group as the budget allows: all its sequences or none. Returns false if there are too few
    /// blocks.
    fn grow(&mut self, at: usize, budget: &mut Budget, step: &mut Step) -> bool {
        if self.running[at].is_decoding() {
            return self.decode(at, budget, step);
        }
        // Reserve budget for the later groups that decode.
        let decoding = self.running[at + 1..].iter().filter(|g| g.is_decoding());
        let claimed = decoding.map(|g| g.running.len()).sum();
        let group = &self.running[at];
        let left = Budget { tokens: budget.tokens.saturating_sub(claimed), ..*budget };
        let plan = |lookup| plan_within(group, left, &self.prefixes, &self.pool, lookup);
        let is_alone = self.running.len() == 1 && self.pool.groups().len() > 1;
        let Some(plan) = plan(Lookup::All).or_else(|| is_alone.then(|| plan(Lookup::Pinned))?) else { return false };
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

    /// Schedules a group in which every sequence gets one token.
    fn decode(&mut self, at: usize, budget: &mut Budget, step: &mut Step) -> bool {
        let group = &self.running[at];
        // A sequence takes at most one block of each group of layers, so an exact count is needed only if few are left.
        if !self.pool.claim_each(group.running.len()) {
            let needed = blocks_needed(&self.pool, group.tables().map(|table| (table, 1)));
            if !self.pool.claim(needed) {
                return false;
            }
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

    /// Schedules the next tokens of a sequence. The caller has counted the blocks.
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
        // Other sequences may share the blocks right away: this step computes the tokens before it reads them.
        self.prefixes.register(seq);
    }
}
