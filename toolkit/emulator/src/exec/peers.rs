//! The blocks of a cluster together: how one reaches another, and when their barrier opens.

use super::resident::ResidentBlock;
use super::state::clock::Gathering;
use super::state::cluster::ClusterBarrier;
use std::sync::Arc;

/// The other blocks of a block's cluster.
#[derive(Default)]
pub(crate) struct Peers<'a> {
    /// Those of lower ranks.
    pub before: &'a mut [ResidentBlock],
    /// Those of higher ranks.
    pub after: &'a mut [ResidentBlock],
}

impl Peers<'_> {
    /// The block of a rank, for the block of another rank.
    pub fn get(&mut self, own: usize, rank: usize) -> Option<&mut ResidentBlock> {
        if rank < own { self.before.get_mut(rank) } else { self.after.get_mut(rank.checked_sub(own + 1)?) }
    }
}

/// Opens the barrier of a cluster if all of its living threads have arrived.
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
