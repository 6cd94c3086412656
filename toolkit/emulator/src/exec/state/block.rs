//! What the warps of a block share.

use super::barrier::Barrier;
use super::bulk::PendingFill;
use super::fences::Releases;
use super::mbarrier::Mbarrier;
use super::shared::SharedMemory;
use std::collections::BTreeMap;

/// What the warps of a block share.
#[derive(Debug, Default)]
pub(crate) struct BlockState {
    /// The index of the block in the grid.
    pub index: [u32; 3],
    /// The same index as one number.
    pub number: u32,
    /// Shared memory.
    pub shared: SharedMemory,
    /// The numbered barriers.
    pub barriers: [Barrier; 16],
    /// Mbarriers by their offset in shared memory.
    pub mbarriers: BTreeMap<u64, Mbarrier>,
    /// Bulk copies to shared memory that have not ended, oldest first.
    pub fills: Vec<PendingFill>,
    /// How many bulk copies to shared memory have ended.
    pub fills_ended: u32,
    /// How often something happened that a thread may wait for in a loop.
    pub events: u64,
    /// What strong writes released, for threads of the block to acquire.
    pub releases: Releases,
}

impl BlockState {
    /// Makes it the state of another block of the grid, in which nothing has happened yet.
    pub fn reset(&mut self, index: [u32; 3], number: u32, shared_bytes: usize) {
        self.index = index;
        self.number = number;
        self.shared.reset(shared_bytes);
        self.barriers = Default::default();
        self.mbarriers.clear();
        self.fills.clear();
        self.fills_ended = 0;
        self.releases.clear();
    }
}
