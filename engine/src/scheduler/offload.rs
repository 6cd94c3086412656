//! The swap space below the cache: what is evicted in a step moves there, and what is found there comes back (see
//! [`SwapTier`]).
//!
//! Groups that are preempted come first. What a step evicts is offloaded after they have been swapped out, to blocks that are
//! free or cached, and cached blocks are evicted for a group that is swapped out later.

use super::prefix::PrefixHit;
use super::{Scheduler, Step};
use crate::kv::{BlockMoves, BlockTable, SwapTier};

impl Scheduler {
    /// Offloads what was evicted so far.
    pub(super) fn offload(&mut self, step: &mut Step) {
        if let Some(tier) = &mut self.tier {
            step.offloaded_blocks += tier.offload(&mut step.moves.swap_out);
        }
    }

    /// All moves of a step are known.
    pub(super) fn settle(&mut self) {
        self.tier.iter_mut().for_each(SwapTier::settle);
    }

    /// The moves of blocks that were evicted since the last step, which come before anything is written.
    pub fn take_offloads(&mut self) -> BlockMoves {
        let mut step = Step::default();
        self.offload(&mut step);
        self.settle();
        step.moves
    }
}

/// The table of a prefix hit in the cache: what of it lies in the swap space comes back, into blocks that were counted.
pub(super) fn restored(tier: Option<&mut SwapTier>, hit: PrefixHit, step: &mut Step) -> BlockTable {
    let PrefixHit { mut table, rest } = hit;
    let Some(tier) = tier else { return table };
    let before = step.moves.swap_in.len();
    for rest in rest {
        if !rest.pool().is(table.pool()) {
            step.swap_hit_tokens += rest.len() - table.len();
        }
        if tier.restore(&mut table, rest, &mut step.moves.swap_in).is_err() {
            unreachable!("the blocks of the whole group were counted");
        }
    }
    step.restored_blocks += step.moves.swap_in.len() - before;
    table
}
