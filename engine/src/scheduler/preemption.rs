//! How a group gives its blocks back when they run out (4.5 of the paper).

use super::{Scheduler, Step};
use crate::group::SequenceGroup;
use crate::kv::{BlockTable, relocate};

/// What happens to the blocks of a group that is preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preemption {
    /// vLLM's rule: groups of several sequences are swapped, single sequences recomputed. The paper has both ways, and no rule.
    #[default]
    Auto,
    /// They move to the swap space and back. Groups that do not fit there are recomputed.
    Swap,
    /// They are dropped, and computed again.
    Recompute,
}

impl Preemption {
    /// Whether `group` is to be swapped out rather than recomputed.
    fn swaps(self, group: &SequenceGroup) -> bool {
        let computed = group.running.iter().any(|s| !s.table.is_empty());
        computed
            && match self {
                Preemption::Auto => group.running.len() > 1,
                Preemption::Swap => true,
                Preemption::Recompute => false,
            }
    }
}

impl Scheduler {
    /// All blocks of the last group go. Where the swap space is full it is recomputed after all.
    pub(super) fn preempt_last(&mut self, step: &mut Step) {
        let Some(mut group) = self.running.pop() else { return };
        step.preempted += 1;
        let swaps = self.options.preemption.swaps(&group);
        if swaps && relocate(group.tables_mut(), &self.swap, &mut step.moves.swap_out).is_ok() {
            step.swapped_out += 1;
        } else {
            group.release(&self.pool);
        }
        self.queue.insert(group);
    }

    /// Gives back what windows have left behind, before anything is decided on what is free.
    pub(super) fn slide(&mut self) {
        if self.pool.window().is_some() {
            let sliding = self.running.iter_mut().filter(|group| !group.keeps_all());
            sliding.flat_map(SequenceGroup::tables_mut).for_each(BlockTable::slide);
        }
    }

    /// Half of the only running group's sequences leave, to run when the others are done. False if it has but one, or
    /// cannot be divided.
    pub(super) fn narrow(&mut self, step: &mut Step) -> bool {
        match self.running.first() {
            Some(group) if group.is_divisible() => {
                self.divide(0, group.running.len().div_ceil(2));
                self.preempt_last(step);
                true
            }
            _ => false,
        }
    }
}
