//! Urgent groups: running groups that are less urgent give up their rows and blocks for them.

use super::share::{Resources, Wanted};
use super::{Scheduler, SchedulingPolicy, Step};
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
        let (mut wanted, mut tokens, shares) = (Wanted::default(), 0, self.shares());
        for owner in self.queue.owners().collect::<Vec<_>>() {
            let Some(head) = self.queue.head(owner) else { continue };
            if (hold_new && head.is_new()) || tokens >= self.options.max_batch_tokens {
                return;
            }
            let priority = head.params.priority;
            wanted.rows += if self.queue.is_contended(owner) { shares.outputs_left(head) } else { head.width() };
            wanted.add_memory_of(head, self);
            tokens += head.running.iter().map(Sequence::pending).sum::<usize>();
            while !self.has_room(&wanted)
                && self.running.last().is_some_and(|last| last.level > priority)
                && self.may_fit_above(&wanted, priority)
            {
                self.give_up_last(&wanted, step);
            }
        }
    }

    /// Whether the wanted resources may be free once all running groups with a level above `priority` are preempted.
    fn may_fit_above(&self, wanted: &Wanted, priority: i64) -> bool {
        let staying = self.running.iter().filter(|group| group.level <= priority);
        let mut taken = Resources::default();
        staying.for_each(|group| taken.add(Resources::by(group)));
        let blocks = taken.blocks + self.pool.units(&wanted.blocks) + self.pool.units_of_pages(wanted.pages);
        taken.rows + wanted.rows <= self.rows()
            && blocks <= self.capacity()
            && self.have_adapters_left(wanted.adapters.iter().copied(), priority)
    }
}
