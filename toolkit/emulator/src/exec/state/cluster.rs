//! The barrier of a cluster of blocks, as stored per block and per warp.

use super::clock::{Gathering, View};
use std::sync::Arc;

/// The state of a warp's lanes at the cluster barrier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClusterLanes {
    /// Lanes that have arrived in this phase.
    pub arrived: u32,
    /// Lanes that have arrived in a phase that is over, but have not waited for it yet.
    pub passed: u32,
    /// Lanes that wait.
    pub waiting: Option<u32>,
}

/// A block's part of the cluster barrier.
#[derive(Debug, Default)]
pub(crate) struct ClusterBarrier {
    /// Whether threads of the block have arrived in this phase.
    pub has_arrivals: bool,
    /// The views of the threads that release on arrival.
    pub views: Gathering,
    /// The joined view of all threads that arrived in the previous phase.
    pub opened: Option<Arc<View>>,
}
