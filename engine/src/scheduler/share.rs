//! What owners hold, and what of it is beyond their share.
//!
//! A share is a part of the rows and a part of the blocks. All owners that hold something and want more have one share
//! between them, so that however many they are, the rest is left to owners that hold nothing. Shares matter only while
//! requests wait or blocks run out: then the groups of an owner that were admitted last are beyond its share, down to a
//! single sequence, which every owner may keep. A group of which only some outputs are beyond it is divided there.

use std::collections::HashMap;

use super::queue::WaitingQueue;
use super::{Scheduler, Step};
use crate::group::{OwnerId, SequenceGroup};
use crate::kv::blocks_for;
use crate::sequence::Sequence;

/// Rows of a step, and blocks of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub rows: usize,
    pub blocks: usize,
}

impl Held {
    /// What a group holds, or will.
    fn by(group: &SequenceGroup) -> Self {
        Held { rows: group.width(), blocks: group.num_blocks() }
    }

    fn add(&mut self, other: Held) {
        self.rows += other.rows;
        self.blocks += other.blocks;
    }

    fn take(&mut self, other: Held) {
        self.rows = self.rows.saturating_sub(other.rows);
        self.blocks = self.blocks.saturating_sub(other.blocks);
    }
}

/// What each owner holds, and may hold.
#[derive(Debug)]
pub struct Shares {
    held: HashMap<OwnerId, Held>,
    share: Held,
}

impl Shares {
    /// Of what runs now. An owner's share is `part` of `all`, or less if several want more than they have.
    pub fn of(running: &[SequenceGroup], queue: &WaitingQueue, all: Held, part: f64) -> Self {
        let mut held: HashMap<OwnerId, Held> = HashMap::new();
        for group in running {
            held.entry(group.owner).or_default().add(Held::by(group));
        }
        let growing = held.keys().filter(|owner| queue.has(**owner)).count().max(1);
        let share = |all: usize| ((all as f64 * part) as usize / growing).max(1);
        Shares { held, share: Held { rows: share(all.rows), blocks: share(all.blocks) } }
    }

    /// Whether anything of `owner` runs.
    pub fn holds(&self, owner: OwnerId) -> bool {
        self.held.contains_key(&owner)
    }

    /// The rows that `owner` has.
    pub fn rows(&self, owner: OwnerId) -> usize {
        self.held.get(&owner).map_or(0, |held| held.rows)
    }

    /// Whether any owner holds more than a share, so that there is something to give up.
    pub fn is_anyone_beyond(&self) -> bool {
        self.held.values().any(|held| held.rows > self.share.rows || held.blocks > self.share.blocks)
    }

    /// How many of a waiting group's outputs its owner may have. An owner that holds nothing may have any of them.
    pub fn outputs_left(&self, group: &SequenceGroup) -> usize {
        let mut left = self.share;
        if let Some(held) = self.held.get(&group.owner) {
            left.take(*held);
            return group.outputs_within(left.rows, left.blocks);
        }
        let least = if group.can_split() { 1 } else { group.width() };
        group.outputs_within(left.rows, left.blocks).max(least)
    }

    /// Counts a group that runs.
    pub fn add(&mut self, group: &SequenceGroup) {
        self.held.entry(group.owner).or_default().add(Held::by(group));
    }
}

impl Scheduler {
    /// Sequences that can decode side by side and leave something to others: each takes a row and a token of every step.
    fn rows(&self) -> usize {
        self.options.max_num_seqs.min(self.options.max_batch_tokens)
    }

    /// What owners hold now.
    pub(super) fn shares(&self) -> Shares {
        let all = Held { rows: self.rows(), blocks: self.capacity() };
        Shares::of(&self.running, &self.queue, all, self.options.max_request_share)
    }

    /// Puts the running groups in order for a step: first come, first served, except that groups beyond their owner's
    /// share come last if others may need what they hold. The last group is given up first. Gives groups up at once if
    /// owners that hold nothing find no room.
    pub(super) fn arrange(&mut self, hold_new: bool, step: &mut Step) {
        if self.is_disturbed {
            self.running.sort_by_key(SequenceGroup::rank);
            self.is_disturbed = false;
        }
        self.rejoin();
        let is_tight = self.is_tight();
        if (self.queue.is_empty() && !is_tight) || !self.is_contended() {
            return;
        }
        let shares = self.shares();
        if !shares.is_anyone_beyond() {
            return;
        }
        let wanted = self.wanted_by_newcomers(hold_new, &shares);
        let is_room = self.rows_lacking(wanted) == 0 && self.has_blocks(wanted);
        if !is_room || is_tight {
            self.find_beyond(shares.share);
        }
        if !is_room {
            self.make_room(wanted, step);
        }
    }

    /// What owners that hold nothing and can begin in this step should have: all that the first group of each wants,
    /// unless that is more than a share.
    fn wanted_by_newcomers(&self, hold_new: bool, shares: &Shares) -> Held {
        let (mut wanted, mut tokens) = (Held::default(), 0);
        for head in self.newcomers(shares).filter_map(|owner| self.queue.head(owner)) {
            // None of them is passed over, and no more begin than the budget has tokens for.
            if (hold_new && head.is_new()) || tokens >= self.options.max_batch_tokens {
                break;
            }
            wanted.add(Held { rows: shares.outputs_left(head), blocks: self.blocks_to_admit(head) });
            tokens += head.running.iter().map(Sequence::pending).sum::<usize>();
        }
        wanted
    }

    /// Whether owners compete.
    fn is_contended(&self) -> bool {
        let Some(one) = self.running.first().map(|group| group.owner) else { return false };
        self.queue.owners().chain(self.running.iter().map(|group| group.owner)).any(|owner| owner != one)
    }

    /// Whether blocks might run out in this step.
    fn is_tight(&self) -> bool {
        !self.is_plenty() && self.blocks_at_most() > self.pool.num_free()
    }

    /// Whether it can be told without a look at the groups that blocks suffice for this step: it gives each sequence a
    /// token, which takes a block at most, and there are no more sequences than rows.
    pub(super) fn is_plenty(&self) -> bool {
        self.all_sampled && self.options.max_num_seqs <= self.pool.num_free()
    }

    /// Blocks that all tokens take at most that are not computed yet.
    pub(super) fn blocks_at_most(&self) -> usize {
        let size = self.pool.block_size();
        // New blocks, and a copy of the last one if it is shared and not full.
        let most = |seq: &Sequence| match seq.pending() {
            0 | 1 => 1,
            tokens => blocks_for(tokens, size) + 1,
        };
        self.running.iter().flat_map(|group| &group.running).map(most).sum()
    }

    /// Parts of one request that decode side by side are one group again.
    fn rejoin(&mut self) {
        let mut at = 1;
        while !self.parts.is_empty() && at < self.running.len() {
            let (one, other) = (&self.running[at - 1], &self.running[at]);
            let decodes = |group: &SequenceGroup| group.first_token.is_some() && group.is_decoding();
            if (one.id, one.ticket) == (other.id, other.ticket) && decodes(one) && decodes(other) {
                let other = self.running.remove(at);
                self.parts.joined(other.id);
                self.running[at - 1].join(other);
            } else {
                at += 1;
            }
        }
    }

    /// Finds what each owner holds beyond `share`, and puts it last.
    fn find_beyond(&mut self, share: Held) {
        let mut left: HashMap<OwnerId, Held> = HashMap::new();
        let mut at = 0;
        while at < self.running.len() {
            let group = &mut self.running[at];
            let is_first = !left.contains_key(&group.owner);
            let left = left.entry(group.owner).or_insert(share);
            let keep = group.outputs_within(left.rows, left.blocks).max(usize::from(is_first));
            // A block that outputs share and are about to copy must be none that one of them gives up in the same step.
            let can_split = group.can_split() && !group.is_just_forked();
            let stays = keep == group.width() || (is_first && !can_split);
            group.beyond_share = !stays && (keep == 0 || !can_split);
            if stays {
                left.take(Held::by(group));
            } else {
                // All that comes after it is beyond the share too: an owner's last group is given up first.
                *left = Held::default();
                if !group.beyond_share {
                    self.divide(at, keep);
                }
            }
            at += 1;
        }
        self.running.sort_by_key(|group| (group.beyond_share, group.rank()));
        self.is_disturbed = true;
    }

    /// Divides a running group, which keeps `keep` outputs. The rest runs on, unless nothing of it was computed.
    pub(super) fn divide(&mut self, at: usize, keep: usize) {
        let rest = self.running[at].split(keep, &self.pool);
        self.parts.divided(rest.id);
        if rest.is_new() {
            self.queue.insert(rest);
        } else {
            self.running.insert(at + 1, rest);
        }
    }

    /// Gives up what is beyond shares until there is room for what is `wanted` by the owners whose turn it is then.
    fn make_room(&mut self, wanted: Held, step: &mut Step) {
        while let Some(last) = self.running.last().filter(|group| group.beyond_share) {
            let (width, rows, is_room) = (last.width(), self.rows_lacking(wanted), self.has_blocks(wanted));
            if rows == 0 && is_room {
                return;
            }
            if rows < width && is_room && last.first_token.is_some() && last.can_split() {
                self.divide(self.running.len() - 1, width - rows);
            }
            self.preempt_last(step);
            self.newcomer_was_last = false;
        }
    }

    /// Rows that are wanted and not free.
    fn rows_lacking(&self, wanted: Held) -> usize {
        let taken: usize = self.running.iter().map(SequenceGroup::width).sum();
        wanted.rows.saturating_sub(self.rows().saturating_sub(taken))
    }

    /// Whether the blocks that are wanted are free, and those that the running groups may take in this step.
    fn has_blocks(&self, wanted: Held) -> bool {
        let growth: usize = self.running.iter().map(|group| group.running.len()).sum();
        wanted.blocks == 0 || wanted.blocks + self.watermark_blocks + growth <= self.pool.num_free()
    }
}
