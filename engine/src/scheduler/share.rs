//! Fair shares: how many rows and blocks each owner uses, and how much of that is beyond its share. Groups of one owner
//! with different priorities count as groups of different owners.
//!
//! A share is a fraction of the rows and of the blocks. All owners that have a running group and want more split one
//! share between them, so the rest is left to owners without one, however many others there are. Shares matter only
//! while requests wait or blocks run out. Then the groups that an owner had admitted last are beyond its share. Every
//! owner may keep at least one sequence. If only some outputs of a group are beyond the share, the group is divided.

use std::collections::{BTreeSet, HashMap};

use super::queue::WaitingQueue;
use super::{Scheduler, Step};
use crate::group::{LineId, SequenceGroup};
use crate::kv::{Counts, blocks_for};
use crate::load::adapter::AdapterDigest;
use crate::sequence::Sequence;

/// An amount of resources: rows of a step (one per sequence that decodes) and memory of the cache, in the units of
/// [`PoolUsage`](crate::kv::PoolUsage). With one group of layers these are blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub rows: usize,
    pub blocks: usize,
}

impl Resources {
    /// The resources that a group uses, or will use.
    pub fn by(group: &SequenceGroup) -> Self {
        Resources { rows: group.width(), blocks: group.num_blocks() }
    }

    pub fn add(&mut self, other: Resources) {
        self.rows += other.rows;
        self.blocks += other.blocks;
    }

    fn take(&mut self, other: Resources) {
        self.rows = self.rows.saturating_sub(other.rows);
        self.blocks = self.blocks.saturating_sub(other.blocks);
    }
}

/// Rows, memory and adapters that waiting groups need.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub rows: usize,
    pub blocks: Counts,
    /// Pages for adapters.
    pub pages: usize,
    /// The adapters.
    pub adapters: BTreeSet<AdapterDigest>,
}

impl Wanted {
    /// Adds the blocks and the adapter that a group needs to be admitted.
    pub fn add_memory_of(&mut self, group: &SequenceGroup, scheduler: &Scheduler) {
        self.blocks = self.blocks.plus(scheduler.blocks_to_admit(group));
        if let Some(adapter) = &group.params.adapter
            && self.adapters.insert(*adapter.digest())
        {
            self.pages += scheduler.adapter_pages(group);
        }
    }
}

/// The resources that each owner uses, and the share it may use.
#[derive(Debug)]
pub struct Shares {
    used: HashMap<LineId, Resources>,
    share: Resources,
}

impl Shares {
    /// Adds up the usage of the running groups. An owner's share is the fraction `part` of `all`, split if several
    /// owners want more than they have.
    pub fn new(running: &[SequenceGroup], queue: &WaitingQueue, all: Resources, part: f64) -> Self {
        let mut used: HashMap<LineId, Resources> = HashMap::new();
        for group in running {
            used.entry(group.line()).or_default().add(Resources::by(group));
        }
        let growing = used.keys().filter(|owner| queue.has(**owner)).count().max(1);
        let share = |all: usize| ((all as f64 * part) as usize / growing).max(1);
        Shares { used, share: Resources { rows: share(all.rows), blocks: share(all.blocks) } }
    }

    /// Whether `owner` has a running group.
    pub fn is_running(&self, owner: LineId) -> bool {
        self.used.contains_key(&owner)
    }

    /// The rows that `owner` uses.
    pub fn rows(&self, owner: LineId) -> usize {
        self.used.get(&owner).map_or(0, |used| used.rows)
    }

    /// Whether any owner is beyond its share.
    pub fn is_anyone_beyond(&self) -> bool {
        self.used.values().any(|used| used.rows > self.share.rows || used.blocks > self.share.blocks)
    }

    /// How many of a waiting group's outputs its owner may run. An owner without a running group may run at least one,
    /// and all of a group that cannot be divided.
    pub fn outputs_left(&self, group: &SequenceGroup) -> usize {
        let mut left = self.share;
        if let Some(used) = self.used.get(&group.line()) {
            left.take(*used);
            return group.outputs_within(left.rows, left.blocks);
        }
        let least = if group.can_split() { 1 } else { group.width() };
        group.outputs_within(left.rows, left.blocks).max(least)
    }

    /// Adds a group that starts to run.
    pub fn add(&mut self, group: &SequenceGroup) {
        self.used.entry(group.line()).or_default().add(Resources::by(group));
    }
}

impl Scheduler {
    /// The number of sequences that can decode in one step. Each takes a row and a token of every step.
    pub(super) fn rows(&self) -> usize {
        self.options.max_num_seqs.min(self.options.max_batch_tokens)
    }

    /// The current usage of all owners.
    pub(super) fn shares(&self) -> Shares {
        let all = Resources { rows: self.rows(), blocks: self.capacity() };
        Shares::new(&self.running, &self.queue, all, self.options.max_request_share)
    }

    /// Orders the running groups for a step. Groups come by level, and then by first admission. If others may need their
    /// resources, groups beyond their owner's share come last within their level. The last group is preempted first. If
    /// owners without a running group find no room, groups beyond a share are preempted at once.
    pub(super) fn arrange(&mut self, hold_new: bool, step: &mut Step) {
        if self.is_disturbed {
            self.running.sort_by_key(SequenceGroup::order);
            self.is_disturbed = false;
        }
        self.rejoin();
        self.make_way(hold_new, step);
        let is_tight = self.is_tight();
        if (self.queue.is_empty() && !is_tight) || !self.is_contended() {
            return;
        }
        let shares = self.shares();
        if !shares.is_anyone_beyond() {
            return;
        }
        let (wanted, level) = self.wanted_by_newcomers(hold_new, &shares);
        let is_room = self.has_room(&wanted);
        if !is_room || is_tight {
            self.find_beyond(shares.share);
        }
        if !is_room {
            self.make_room(&wanted, level, step);
        }
    }

    /// The resources for owners without a running group that can start in this step: all that each owner's first group
    /// needs, but at most a share. Only newcomers of the most urgent level count. Also returns that level.
    fn wanted_by_newcomers(&self, hold_new: bool, shares: &Shares) -> (Wanted, i64) {
        let (mut wanted, mut tokens) = (Wanted::default(), 0);
        let level = self.newcomers(shares).next().and_then(|owner| self.queue.level(owner));
        let newcomers = self.newcomers(shares).take_while(|owner| self.queue.level(*owner) == level);
        for head in newcomers.filter_map(|owner| self.queue.head(owner)) {
            // None of them is passed over, and the token budget limits how many start.
            if (hold_new && head.is_new()) || tokens >= self.options.max_batch_tokens {
                break;
            }
            wanted.rows += shares.outputs_left(head);
            wanted.add_memory_of(head, self);
            tokens += head.running.iter().map(Sequence::pending).sum::<usize>();
        }
        (wanted, level.unwrap_or_default())
    }

    /// Whether several owners compete.
    fn is_contended(&self) -> bool {
        let Some(one) = self.running.first().map(SequenceGroup::line) else { return false };
        self.queue.lines().chain(self.running.iter().map(SequenceGroup::line)).any(|owner| owner != one)
    }

    /// Whether blocks might run out in this step.
    fn is_tight(&self) -> bool {
        !self.is_plenty() && !self.pool.fits(&self.blocks_at_most(), 0)
    }

    /// Whether blocks certainly suffice for this step, without looking at each group. This holds if each sequence gets
    /// one token, which takes at most one block of each group of layers, and there are at least as many free blocks as
    /// rows.
    pub(super) fn is_plenty(&self) -> bool {
        let most = Counts::each(self.pool.groups().len(), self.options.max_num_seqs);
        self.all_sampled && self.pool.fits(&most, 0)
    }

    /// An upper bound on the blocks that all pending tokens take.
    pub(super) fn blocks_at_most(&self) -> Counts {
        let (size, groups) = (self.pool.block_size(), self.pool.groups());
        // New blocks, and a copy of the last one if it is shared and not full.
        let most = |seq: &Sequence| match seq.pending() {
            0 | 1 => 1,
            tokens => blocks_for(tokens, size) + 1,
        };
        let seqs = || self.running.iter().flat_map(|group| &group.running);
        let all = seqs().map(most).sum();
        Counts::by(groups.len(), |group| if groups[group].is_state() { seqs().count() } else { all })
    }

    /// Joins parts of one request again if they are neighbours and both decode.
    fn rejoin(&mut self) {
        let mut at = 1;
        while !self.parts.is_empty() && at < self.running.len() {
            let (one, other) = (&self.running[at - 1], &self.running[at]);
            let decodes = |group: &SequenceGroup| group.first_token.is_some() && group.is_decoding();
            let is_next = (one.id, one.ticket) == (other.id, other.ticket) && one.rank() < other.rank();
            if is_next && decodes(one) && decodes(other) {
                let other = self.running.remove(at);
                self.parts.joined(other.id);
                self.running[at - 1].join(other);
            } else {
                at += 1;
            }
        }
    }

    /// Marks the groups that are beyond their owner's `share` and sorts them last in their level.
    fn find_beyond(&mut self, share: Resources) {
        let mut left: HashMap<LineId, Resources> = HashMap::new();
        let mut at = 0;
        while at < self.running.len() {
            let group = &mut self.running[at];
            let is_first = !left.contains_key(&group.line());
            let left = left.entry(group.line()).or_insert(share);
            let keep = group.outputs_within(left.rows, left.blocks).max(usize::from(is_first));
            // A just forked group shares a block that its outputs are about to copy. One step must not both copy it and
            // give it up.
            let can_split = group.can_split() && !group.is_just_forked();
            let stays = keep == group.width() || (is_first && !can_split);
            group.beyond_share = !stays && (keep == 0 || !can_split);
            if stays {
                left.take(Resources::by(group));
            } else {
                // The owner's later groups are beyond the share too, since the last group is preempted first.
                *left = Resources::default();
                if !group.beyond_share {
                    self.divide(at, keep);
                }
            }
            at += 1;
        }
        self.running.sort_by_key(|group| (group.level, group.beyond_share, group.rank()));
        self.is_disturbed = true;
    }

    /// Divides a running group, which keeps its first `keep` outputs. The rest keeps running, unless none of its tokens
    /// was computed.
    pub(super) fn divide(&mut self, at: usize, keep: usize) {
        let rest = self.running[at].split(keep, &self.pool);
        self.parts.divided(rest.id);
        if rest.is_new() {
            self.queue.insert(rest);
        } else {
            self.running.insert(at + 1, rest);
        }
    }

    /// Whether the wanted resources are free.
    pub(super) fn has_room(&self, wanted: &Wanted) -> bool {
        self.rows_lacking(wanted) == 0 && self.has_blocks(wanted) && self.has_adapters(wanted)
    }

    /// Preempts groups beyond a share, and not more urgent than `level`, until the `wanted` resources are free.
    fn make_room(&mut self, wanted: &Wanted, level: i64, step: &mut Step) {
        while self.running.last().is_some_and(|last| last.beyond_share && last.level >= level) {
            if self.has_room(wanted) {
                return;
            }
            self.give_up_last(wanted, step);
            self.newcomer_was_last = false;
        }
    }

    /// Preempts the last running group, or those of its outputs whose rows are wanted if there are enough blocks.
    pub(super) fn give_up_last(&mut self, wanted: &Wanted, step: &mut Step) {
        let Some(last) = self.running.last() else { return };
        let (width, rows) = (last.width(), self.rows_lacking(wanted));
        if rows < width
            && self.has_blocks(wanted)
            && self.has_adapters(wanted)
            && last.first_token.is_some()
            && last.can_split()
        {
            self.divide(self.running.len() - 1, width - rows);
        }
        self.preempt_last(step);
    }

    /// The number of wanted rows that are not free.
    pub(super) fn rows_lacking(&self, wanted: &Wanted) -> usize {
        let taken: usize = self.running.iter().map(SequenceGroup::width).sum();
        wanted.rows.saturating_sub(self.rows().saturating_sub(taken))
    }

    /// Whether the wanted blocks are free, on top of those that the running groups may take in this step.
    pub(super) fn has_blocks(&self, wanted: &Wanted) -> bool {
        let growth = self.running.iter().map(|group| group.running.len()).sum();
        let growth = Counts::each(self.pool.groups().len(), growth);
        let is_nothing = wanted.blocks == Counts::default() && wanted.pages == 0;
        is_nothing || self.pool.fits(&wanted.blocks.plus(growth), self.watermark_pages + wanted.pages)
    }

    /// Whether a step may have the wanted adapters besides those of the running groups.
    fn has_adapters(&self, wanted: &Wanted) -> bool {
        self.have_adapters_left(wanted.adapters.iter().copied())
    }
}
