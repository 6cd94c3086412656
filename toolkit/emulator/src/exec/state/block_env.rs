//! The state outside a warp that its instructions can access.

use super::block::BlockState;
use super::constants::LaunchConstants;
use super::fences::GlobalReleases;
use super::meter::Meter;
use crate::exec::peers::Peers;
use crate::memory::Memory;

/// The state outside a warp that its instructions can access.
pub(crate) struct BlockEnv<'a> {
    /// The constants of the launch.
    pub launch: &'a LaunchConstants<'a>,
    /// Global memory.
    pub memory: &'a mut Memory,
    /// Views that strong writes to global memory released, for threads of other blocks to acquire.
    pub releases: &'a mut GlobalReleases,
    /// The state that the warps of the block share.
    pub block: &'a mut BlockState,
    /// The other blocks of its cluster.
    pub peers: Peers<'a>,
    /// The counts, and the index of the running instruction.
    pub meter: &'a mut Meter,
}
