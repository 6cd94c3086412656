//! A cluster of blocks: its barrier, and what one block needs to reach another.

use super::clock::{Gathering, View};
use crate::exec::resident::ResidentBlock;
use std::sync::Arc;

/// Where the lanes of a warp are with the barrier of the cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClusterLanes {
    /// Lanes that have arrived in this phase.
    pub arrived: u32,
    /// Lanes that have arrived in a phase that is over, and have not waited for it yet.
    pub passed: u32,
    /// Lanes that wait.
    pub waiting: Option<u32>,
}

/// The part of the cluster's barrier that a block keeps.
#[derive(Debug, Default)]
pub(crate) struct ClusterBarrier {
    /// Whether threads of the block have arrived in this phase.
    pub has_arrivals: bool,
    /// The views of those that release.
    pub views: Gathering,
    /// The joined view of all that arrived in the phase before.
    pub opened: Option<Arc<View>>,
}

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
