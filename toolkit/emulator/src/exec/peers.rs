//! The blocks of a cluster: access from one to another, and the barrier that they share.

use super::resident::ResidentBlock;
use super::state::clock::Gathering;
use super::state::cluster::ClusterBarrier;
use std::sync::Arc;

/// The other blocks of a block's cluster.
#[derive(Default)]
pub(crate) struct Peers<'a> {
    /// Blocks with lower ranks.
    pub before: &'a mut [ResidentBlock],
    /// Blocks with higher ranks.
    pub after: &'a mut [ResidentBlock],
}

impl Peers<'_> {
    /// Returns the block with a rank. `own` is the rank of the block that asks.
    pub fn get(&mut self, own: usize, rank: usize) -> Option<&mut ResidentBlock> {
        if rank < own { self.before.get_mut(rank) } else { self.after.get_mut(rank.checked_sub(own + 1)?) }
    }
}

/// Opens the barrier of a cluster if all its living threads have arrived. Returns whether it opened.
pub(crate) fn open_barrier(blocks: &mut [ResidentBlock], clocks: usize) -> bool {
    if !blocks.iter().any(|block| block.state.cluster.has_arrivals) {
        return false;
    }
    let mut warps = blocks.iter().flat_map(|block| &block.warps);
    if warps.any(|warp| warp.live & !warp.cluster.arrived != 0) {
        return false;
    }
    let mut views = Gathering::default();
    blocks.iter_mut().for_each(|block| views.absorb(&mut block.state.cluster.views));
    let view = views.take(clocks);
    for block in blocks {
        block.state.cluster = ClusterBarrier { opened: Some(Arc::clone(&view)), ..ClusterBarrier::default() };
        block.state.events += 1;
        for warp in &mut block.warps {
            warp.cluster.passed |= warp.cluster.arrived;
            warp.cluster.arrived = 0;
            if let Some(mask) = warp.cluster.waiting.take() {
                warp.cluster.passed &= !mask;
                warp.clock.learn(mask, &view);
            }
        }
    }
    true
}
