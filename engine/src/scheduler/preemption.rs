//! Preemption: a group gives up its blocks when blocks run out (4.5 of the paper).

use super::{Scheduler, Step};
use crate::group::SequenceGroup;
use crate::kv::{BlockTable, compact, relocate};

/// What happens to the blocks of a preempted group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preemption {
    /// vLLM's rule: groups of several sequences are swapped, single sequences are recomputed. The paper describes both
    /// ways and gives no rule.
    #[default]
    Auto,
    /// Blocks move to the swap space and back. Groups that do not fit there are recomputed.
    Swap,
    /// Blocks are dropped and computed again.
    Recompute,
}

impl Preemption {
    /// Whether to swap `group` out rather than recompute it.
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
    /// Preempts the last running group. It is recomputed if it cannot be swapped out because the swap space is full.
    pub(super) fn preempt_last(&mut self, step: &mut Step) {
        let Some(mut group) = self.running.pop() else { return };
        step.preempted += 1;
        let swaps = self.options.preemption.swaps(&group);
        if swaps && relocate(group.tables_mut(), &self.swap, &mut step.moves.swap_out).is_ok() {
            step.swapped_out += 1;
        } else {
            group.release(&self.pool);
        }
        group.lease = None;
        self.queue.insert(group);
    }

    /// Drops the blocks of running sequences that have become long. They are computed again, as blocks of long sequences.
    pub(super) fn lengthen(&mut self) {
        if self.pool.boundary().is_none() {
            return;
        }
        for seq in self.running.iter_mut().flat_map(|group| &mut group.running) {
            if !seq.table.is_empty() && !seq.table.is_long() && self.pool.is_long(seq.tokens.len()) {
                seq.table = BlockTable::new(&self.pool);
                self.all_sampled = false;
            }
        }
    }

    /// Gives back the blocks that windows have left behind, before free blocks are counted.
    pub(super) fn slide(&mut self) {
        if self.pool.has_windows() {
            for group in &mut self.running {
                let states_only = group.keeps_all_blocks();
                for seq in &mut group.running {
                    seq.table.settle(&seq.tokens);
                    seq.table.slide_past(seq.prompt_len, states_only);
                }
            }
        }
    }

    /// Moves the blocks of the only running group to fewer pages. Returns false if they take as few as possible. The
    /// step makes no other copies within the cache. Swaps come before them, so they cannot interfere.
    ///
    /// A group that runs alone always progresses: if its next tokens fit an empty cache together with its blocks, they
    /// fit after compaction. It then grows in the next step, in which nothing else changes. If it has no blocks, it may
    /// fail to start only because the blocks that a lookup found are scattered, so it starts without them.
    pub(super) fn compact(&mut self, step: &mut Step) -> bool {
        let running = self.running.iter_mut().flat_map(SequenceGroup::tables_mut);
        compact(&self.pool, running.chain(self.prefixes.pinned_tables_mut()), &mut step.moves.copies)
    }

    /// Preempts half the sequences of the only running group. They run when the others are done. Returns false if the
    /// group has only one sequence or cannot be divided.
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
