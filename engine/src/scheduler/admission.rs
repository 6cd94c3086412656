//! Who comes in from the queue: in order of arrival, what was preempted before what is new.

use std::time::Instant;

use super::growth::Budget;
use super::{Scheduler, Step};
use crate::group::SequenceGroup;
use crate::kv::{OutOfBlocks, distinct_blocks, relocate};

impl Scheduler {
    /// When the oldest of the new requests came, if it is their turn to be admitted.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.waiting.front().filter(|g| self.is_new(g)).map(|g| g.arrival)
    }

    /// Moves waiting groups to the running ones.
    pub(super) fn admit(&mut self, hold_new: bool, budget: &mut Budget, step: &mut Step) {
        while budget.tokens > 0
            && let Some(group) = self.waiting.front()
        {
            // What can't fit even alone is admitted alone, and found to be exhausted.
            let fits = self.fits(group, budget.tokens) || self.running.is_empty();
            let is_new = self.is_new(group);
            if !fits || group.width() > budget.rows || (hold_new && is_new) {
                return;
            }
            step.admitted += usize::from(is_new);
            let Some(mut group) = self.waiting.pop_front() else { return };
            budget.rows -= group.width();
            self.swap_in(&mut group, step);
            self.running.push(group);
            if !self.grow(self.running.len() - 1, budget, step) {
                if self.running.len() == 1 {
                    step.exhausted = Some(self.running[0].id);
                }
                return;
            }
        }
    }

    /// Whether there are blocks for all of a waiting group's tokens, and some to spare if others run; and whether it can
    /// go on with what is left of the budget.
    fn fits(&self, group: &SequenceGroup, budget: usize) -> bool {
        if group.is_decoding() && group.running.len() > budget {
            return false;
        }
        let spare = if self.running.is_empty() { 0 } else { self.limits.watermark_blocks };
        let needed = if self.is_swapped(group) {
            // The next token of each sequence may take another block.
            distinct_blocks(group.tables()) + group.running.len()
        } else {
            self.prefixes.blocks_to_restore(group)
        };
        needed + spare <= self.pool.num_free()
    }

    /// Whether a waiting group has nothing yet that it could have lost.
    fn is_new(&self, group: &SequenceGroup) -> bool {
        group.first_token.is_none() && !self.is_swapped(group)
    }

    pub(super) fn is_swapped(&self, group: &SequenceGroup) -> bool {
        group.tables().any(|t| t.pool().is(&self.swap))
    }

    fn swap_in(&self, group: &mut SequenceGroup, step: &mut Step) {
        if self.is_swapped(group) {
            match relocate(group.tables_mut(), &self.pool, &mut step.moves.swap_in) {
                Ok(()) => step.swapped_in += 1,
                // Alone, and not even what it had fits any more: growing will tell.
                Err(OutOfBlocks) => group.release(&self.pool),
            }
        }
    }
}
