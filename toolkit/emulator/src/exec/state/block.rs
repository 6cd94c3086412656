//! The state that the warps of a block share.

use super::barrier::Barrier;
use super::bulk::PendingFill;
use super::cluster::ClusterBarrier;
use super::copy::PendingArrival;
use super::fences::Releases;
use super::mbarrier::Mbarrier;
use super::shared::SharedMemory;
use std::collections::BTreeMap;

/// The state that the warps of a block share.
#[derive(Debug, Default)]
pub(crate) struct BlockState {
    /// The index of the block in the grid.
    pub index: [u32; 3],
    /// The number of its cluster, which is the number of the cluster's first block among all launches that run at the
    /// same time.
    pub number: u32,
    /// Its rank in the cluster.
    pub rank: usize,
    /// Its part of the cluster's barrier.
    pub cluster: ClusterBarrier,
    /// Threads of other blocks that accessed its shared memory, with the epochs of their last accesses.
    pub visitors: BTreeMap<usize, u32>,
    /// Shared memory.
    pub shared: SharedMemory,
    /// The numbered barriers.
    pub barriers: [Barrier; 16],
    /// Mbarriers by their offset in shared memory.
    pub mbarriers: BTreeMap<u64, Mbarrier>,
    /// Bulk copies to shared memory in flight, oldest first.
    pub fills: Vec<PendingFill>,
    /// Arrivals that wait for copies of `cp.async`, oldest first.
    pub arrivals: Vec<PendingArrival>,
    /// How many bulk copies to shared memory have ended.
    pub fills_ended: u32,
    /// The number of events so far that a thread may wait for in a loop.
    pub events: u64,
    /// Views that strong writes released, for threads of the block to acquire.
    pub releases: Releases,
}

impl BlockState {
    /// Resets the state for another block of the grid.
    pub fn reset(&mut self, index: [u32; 3], (number, rank): (u32, usize), shared_bytes: usize, warps: (usize, usize)) {
        self.index = index;
        self.number = number;
        self.rank = rank;
        self.cluster = ClusterBarrier::default();
        self.visitors.clear();
        self.shared.reset(shared_bytes, warps);
        self.barriers = Default::default();
        self.mbarriers.clear();
        self.fills.clear();
        self.arrivals.clear();
        self.fills_ended = 0;
        self.releases.clear();
    }
}
