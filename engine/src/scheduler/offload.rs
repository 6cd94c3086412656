//! The swap space as a tier below the cache: evicted blocks move there, and prefix hits bring them back (see
//! [`SwapTier`]).
//!
//! Preempted groups take precedence. A step offloads its evicted blocks only after it has swapped groups out, to
//! swap-space blocks that are free or cached. A group that is swapped out later may evict these cached blocks.

use super::{Scheduler, Step};
use crate::kv::{BlockMoves, BlockTable, PrefixHit, SwapTier};

impl Scheduler {
    /// Offloads the blocks evicted so far.
    pub(super) fn offload(&mut self, step: &mut Step) {
        if let Some(tier) = &mut self.tier {
            step.offloaded_blocks += tier.offload(&mut step.moves.swap_out);
        }
    }

    /// Ends the planning of the step's moves.
    pub(super) fn settle(&mut self) {
        self.tier.iter_mut().for_each(SwapTier::settle);
    }

    /// Returns the moves of blocks that were evicted since the last step. They must be made before anything is written.
    pub fn take_offloads(&mut self) -> BlockMoves {
        let mut step = Step::default();
        self.offload(&mut step);
        self.settle();
        step.moves
    }
}

/// Returns the table of a prefix hit, with all blocks in the cache. Blocks in the swap space are restored, and the
/// caller has counted the cache blocks for them.
pub(super) fn restored(tier: Option<&mut SwapTier>, hit: PrefixHit, step: &mut Step) -> BlockTable {
    let Some(tier) = tier else { return hit.into_table() };
    step.swap_hit_tokens += hit.swapped_tokens();
    let before = step.moves.swap_in.len();
    let Ok(table) = tier.restore(hit, &mut step.moves.swap_in) else {
        unreachable!("the blocks of the whole group were counted");
    };
    step.restored_blocks += step.moves.swap_in.len() - before;
    table
}
