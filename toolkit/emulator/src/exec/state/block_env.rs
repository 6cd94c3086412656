//! What the instructions of a warp can reach outside of the warp.

use super::block::BlockState;
use super::constants::LaunchConstants;
use super::fences::GlobalReleases;
use super::meter::Meter;
use crate::exec::peers::Peers;
use crate::memory::Memory;

/// What the instructions of a warp can reach outside of the warp.
pub(crate) struct BlockEnv<'a> {
    /// What stays the same during the launch.
    pub launch: &'a LaunchConstants<'a>,
    /// Global memory.
    pub memory: &'a mut Memory,
    /// What strong writes to global memory released, for threads of other blocks to acquire.
    pub releases: &'a mut GlobalReleases,
    /// What the warps of the block share.
    pub block: &'a mut BlockState,
    /// The other blocks of its cluster.
    pub peers: Peers<'a>,
    /// The counts, and the instruction that runs.
    pub meter: &'a mut Meter,
}
