//! Urgent groups: running groups that are less urgent give up their rows and blocks for them.

use std::collections::BTreeMap;

use super::share::{Shares, Wanted};
use super::{Scheduler, SchedulingPolicy, Step};
use crate::group::{LineId, SequenceGroup};
use crate::kv::{Counts, distinct_blocks};
use crate::sequence::Sequence;

impl Scheduler {
    /// Preempts running groups for more urgent waiting groups, until these find the rows and blocks that they need to
    /// start. Also frees what groups need that are admitted before them. Preempts nothing for a group that would not find
    /// enough even if all less urgent groups were preempted.
    pub(super) fn make_way(&mut self, hold_new: bool, step: &mut Step) {
        if self.options.policy == SchedulingPolicy::Fcfs
            || self.running.last().is_none_or(|last| last.level <= self.queue.most_urgent_priority())
        {
            return;
        }
        let (mut taken, mut tokens, mut placed, shares) = (0, 0, Vec::new(), self.shares());
        for line in self.queue.lines().collect::<Vec<_>>() {
            let Some(head) = self.queue.head(line) else { continue };
            if (hold_new && head.is_new()) || tokens >= self.options.max_batch_tokens {
                break;
            }
            let Some(rows) = self.rows_to_start(line, head, &shares) else { continue };
            let pending: usize = head.running.iter().map(Sequence::pending).sum();
            placed.push(line);
            if self.give_way(taken + rows, &placed, step) {
                taken += rows;
                tokens += pending;
            } else if self.is_newcomer(line, &shares) {
                // No other group is admitted before it.
                break;
            } else {
                placed.pop();
            }
        }
    }

    /// The rows that the first group of a line starts with. `None` if its owner has its share and others go first.
    fn rows_to_start(&self, line: LineId, head: &SequenceGroup, shares: &Shares) -> Option<usize> {
        if !self.queue.is_contended(line) {
            return Some(head.width());
        }
        let level = self.queue.level(line);
        match shares.outputs_left(head) {
            0 if self.newcomers(shares).any(|other| self.queue.level(other) == level) => None,
            0 => Some(head.width()),
            rows => Some(rows),
        }
    }

    /// Preempts groups that are less urgent than the last of the `placed` lines, until there are `rows` rows and enough
    /// blocks for the first groups of all of them. Returns whether there are.
    fn give_way(&mut self, rows: usize, placed: &[LineId], step: &mut Step) -> bool {
        let priority = placed.last().map_or(i64::MAX, |line| line.priority);
        let mut may_fit = None;
        loop {
            // Counted again after each preemption, which may free blocks that the groups find.
            let mut wanted = Wanted { rows, ..Wanted::default() };
            self.heads(placed).for_each(|head| wanted.add_memory_of(head, self));
            if self.has_room(&wanted) {
                return true;
            }
            if self.running.last().is_none_or(|last| last.level <= priority)
                || !*may_fit.get_or_insert_with(|| self.may_fit(rows, placed, priority))
            {
                return false;
            }
            self.give_up_last(&wanted, step);
        }
    }

    /// The first groups of `lines`.
    fn heads(&self, lines: &[LineId]) -> impl Iterator<Item = &SequenceGroup> {
        lines.iter().filter_map(|line| self.queue.head(*line))
    }

    /// Whether the first groups of the `placed` lines, which take `rows`, may find room once all running groups with a level
    /// above `priority` are preempted.
    fn may_fit(&self, rows: usize, placed: &[LineId], priority: i64) -> bool {
        let staying: Vec<_> = self.running.iter().filter(|group| group.level <= priority).collect();
        if staying.is_empty() && placed.len() == 1 {
            // It runs alone then, and is divided if it must be.
            return true;
        }
        if staying.iter().map(|group| group.width()).sum::<usize>() + rows > self.rows() {
            return false;
        }
        let growth = staying.iter().map(|group| group.running.len()).sum();
        let mut counts = Counts::each(self.pool.groups().len(), growth);
        let mut hits = Vec::new();
        for head in self.heads(placed) {
            if self.is_swapped(head) {
                counts = counts.plus(self.blocks_to_admit(head));
            } else {
                let (beside, hit) = self.prefixes.blocks_beside_hit(head);
                counts = counts.plus(beside);
                hits.extend(hit);
            }
        }
        // A block or an adapter that several of them use counts once.
        let tables = staying.iter().flat_map(|group| group.tables()).chain(self.prefixes.pinned_tables());
        let distinct = distinct_blocks(tables.chain(hits.iter().map(|hit| hit.table())));
        let groups = staying.iter().copied().chain(self.heads(placed));
        let adapters: BTreeMap<_, _> =
            groups.filter_map(|group| group.params.adapter.as_ref()).map(|a| (*a.digest(), a.pages())).collect();
        let pages = self.watermark_pages + adapters.values().sum::<usize>();
        adapters.len() <= self.options.max_loras && self.pool.holds(&counts.plus(distinct), pages)
    }

    /// Makes the groups that were admitted before `group` and have its priority at least as urgent as it is. Otherwise
    /// it could preempt them.
    pub(super) fn lift_earlier(&mut self, group: &SequenceGroup) {
        let (priority, rank, level) = (group.params.priority, group.rank(), group.level);
        if level == priority {
            return;
        }
        let earlier = |other: &&mut SequenceGroup| other.params.priority == priority && other.rank() < rank;
        for other in self.running.iter_mut().filter(earlier).filter(|other| other.level > level) {
            other.level = level;
            self.is_disturbed = true;
        }
        self.queue.lift(priority, rank, level);
    }
}
