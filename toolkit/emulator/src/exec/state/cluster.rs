//! The barrier of a cluster of blocks, as its blocks and warps keep it.

use super::clock::{Gathering, View};
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
