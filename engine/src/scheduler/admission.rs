//! Admission of waiting groups: the most urgent level first, and within it first come, first served, except for owners
//! that have their share.

use std::time::Instant;

use super::growth::Budget;
use super::share::Shares;
use super::{Scheduler, Step};
use crate::group::{LineId, SequenceGroup};
use crate::kv::{Counts, OutOfBlocks, blocks_needed, distinct_blocks, relocate};

impl Scheduler {
    /// The arrival of the first waiting group, if that group is new.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.queue.front().filter(|group| group.is_new()).map(|group| group.arrival)
    }

    /// Admits waiting groups. An owner without a running group is never passed over. Other owners are passed over if
    /// their first group does not fit.
    pub(super) fn admit(&mut self, hold_new: bool, budget: &mut Budget, step: &mut Step) {
        if self.queue.is_empty() || budget.rows == 0 {
            return;
        }
        // Offload first, so that the admitted groups find blocks that running groups have just evicted.
        self.offload(step);
        let mut shares = self.shares();
        // Computed once: an owner stops being a newcomer only when one of its groups is admitted.
        let mut others: Vec<_> = self.queue.lines().filter(|owner| !self.is_newcomer(*owner, &shares)).collect();
        while budget.tokens > 0
            && budget.rows > 0
            && let Some(owner) = self.turn(&shares, &others)
        {
            if hold_new && self.queue.head(owner).is_some_and(SequenceGroup::is_new) {
                return;
            }
            if !self.fit_head(owner, &shares, budget, step) {
                if !shares.is_running(owner) {
                    return;
                }
                others.retain(|other| *other != owner);
                continue;
            }
            let is_newcomer = self.is_newcomer(owner, &shares);
            let Some(mut group) = self.queue.take(owner) else { return };
            if group.is_new() {
                self.newcomer_was_last = is_newcomer;
                self.tickets += 1;
                group.ticket = Some(self.tickets);
                step.admitted.extend(group.is_first_part().then_some(group.id));
            }
            budget.rows -= group.width();
            self.lift_earlier(&group);
            let has_adapter = self.lease_adapter(&mut group, step);
            self.swap_in(&mut group, step);
            // A preempted group may come back after later groups were admitted.
            self.is_disturbed |= self.running.last().is_some_and(|last| last.order() > group.order());
            self.running.push(group);
            let at = self.running.len() - 1;
            if !has_adapter {
                // It runs alone, and pinned prefixes have the memory. It ends.
                step.exhausted = true;
                return;
            }
            if !self.grow(at, budget, step) {
                step.exhausted = at == 0 && !self.compact(step) && !self.running[at].is_divisible();
                return;
            }
            self.offload(step);
            shares.add(&self.running[at]);
            if self.queue.has(owner) && !others.contains(&owner) {
                others.push(owner);
            }
        }
    }

    /// The owner whose turn it is, among the owners of the most urgent level. Newcomers come in order. After each
    /// newcomer, one waiting owner of `others` that has less than its share gets a turn: the one with the fewest rows. If
    /// no newcomer waits, such an owner gets a turn even if it has its share.
    fn turn(&self, shares: &Shares, others: &[LineId]) -> Option<LineId> {
        let newcomer = self.newcomers(shares).next();
        let level = |owner: &LineId| self.queue.level(*owner);
        let first = newcomer.iter().chain(others).filter_map(level).min()?;
        let is_first = |owner: &LineId| level(owner) == Some(first);
        let newcomer = newcomer.filter(is_first);
        let key = |owner: LineId| {
            let head = self.queue.head(owner)?;
            Some((shares.outputs_left(head) == 0, shares.rows(owner), head.rank(), owner))
        };
        match (newcomer, others.iter().copied().filter(is_first).filter_map(key).min()) {
            (Some(_), Some((false, _, _, other))) if self.newcomer_was_last => Some(other),
            (Some(newcomer), _) => Some(newcomer),
            (None, other) => other.map(|(_, _, _, owner)| owner),
        }
    }

    /// The newcomers among the waiting owners, in order.
    pub(super) fn newcomers(&self, shares: &Shares) -> impl Iterator<Item = LineId> {
        self.queue.lines().filter(|owner| self.is_newcomer(*owner, shares))
    }

    /// Whether a waiting owner is a newcomer. It has no running group, and its first group was preempted or none of its
    /// groups was admitted since it began to wait.
    pub(super) fn is_newcomer(&self, owner: LineId, shares: &Shares) -> bool {
        let is_new = self.queue.head(owner).is_some_and(SequenceGroup::is_new);
        !(shares.is_running(owner) || is_new && self.queue.was_served(owner))
    }

    /// Whether the first group of an owner can run now. The group is divided if it is more than the owner may have
    /// while others wait, or if it would not fit even alone.
    fn fit_head(&mut self, owner: LineId, shares: &Shares, budget: &Budget, step: &Step) -> bool {
        if let Some(head) = self.queue.head(owner)
            && self.queue.is_contended(owner)
            && head.can_split()
        {
            let keep = match shares.outputs_left(head) {
                0 => budget.rows,
                left => left.min(budget.rows),
            };
            // A prompt takes the same blocks for any number of outputs.
            if keep < head.width() && (!head.is_new() || self.fits(head, budget.tokens)) {
                self.split_head(owner, keep);
            }
        }
        while self.running.is_empty()
            && let Some(head) = self.queue.head(owner)
            && head.is_divisible()
            && !self.fits_alone(head)
        {
            self.split_head(owner, head.running.len().div_ceil(2));
        }
        let Some(head) = self.queue.head(owner) else { return false };
        // A step that has swapped a group out swaps none in.
        let moves = step.swapped_out == 0 || !self.is_swapped(head);
        moves && head.width() <= budget.rows && self.has_adapter_left(head) && self.fits(head, budget.tokens)
    }

    fn split_head(&mut self, owner: LineId, keep: usize) {
        if let Some(id) = self.queue.split_head(owner, keep, &self.pool) {
            self.parts.divided(id);
        }
    }

    /// Whether a waiting group fits: enough blocks for all its tokens, plus the watermark, and enough budget to decode.
    /// A group that does not fit even alone is admitted alone, and then ends because blocks are exhausted.
    fn fits(&self, group: &SequenceGroup, budget: usize) -> bool {
        if self.running.is_empty() {
            return true;
        }
        if group.is_decoding() && group.running.len() > budget {
            return false;
        }
        let spare_pages = self.watermark_pages + self.adapter_pages(group);
        match self.is_swapped(group) {
            true => self.pool.fits(&self.blocks_to_admit(group), spare_pages),
            false => self.prefixes.fits(group, spare_pages),
        }
    }

    /// The numbers of free blocks that a waiting group needs to be admitted.
    pub(super) fn blocks_to_admit(&self, group: &SequenceGroup) -> Counts {
        if self.is_swapped(group) {
            // The next token of each sequence may take another block.
            distinct_blocks(group.tables()).plus(Counts::each(self.pool.groups().len(), group.running.len()))
        } else {
            self.prefixes.blocks_to_restore(group)
        }
    }

    /// Whether a waiting group can get another token when it runs alone.
    fn fits_alone(&self, group: &SequenceGroup) -> bool {
        if !self.is_swapped(group) {
            return self.prefixes.fits(group, self.adapter_pages(group));
        }
        let next = blocks_needed(&self.swap, group.tables().map(|table| (table, 1)));
        self.pool.fits(&distinct_blocks(group.tables()).plus(next), self.adapter_pages(group))
    }

    pub(super) fn is_swapped(&self, group: &SequenceGroup) -> bool {
        group.tables().any(|t| t.pool().is(&self.swap))
    }

    fn swap_in(&mut self, group: &mut SequenceGroup, step: &mut Step) {
        if self.is_swapped(group) {
            self.tier.iter_mut().for_each(|tier| tier.keep_until_settled(group.tables()));
            match relocate(group.tables_mut(), &self.pool, &mut step.moves.swap_in) {
                Ok(()) => step.swapped_in += 1,
                // The group runs alone, and even its swapped blocks do not fit. It is recomputed and ends when blocks
                // run out.
                Err(OutOfBlocks) => group.release(&self.pool),
            }
        }
    }
}
