//! One lane's access to memory, and which accesses of other threads come before it.

use super::clock::View;
use super::warp::Warp;

/// An access by one lane.
#[derive(Clone, Copy)]
pub(crate) struct LaneAccess<'a> {
    /// The index of the warp in its cluster of blocks.
    pub warp: usize,
    /// The lane.
    pub lane: usize,
    /// The epoch of the warp.
    pub epoch: u32,
    /// The lane's view.
    pub view: &'a View,
    /// Whether the access is atomic, volatile or relaxed. Such accesses do not race with each other.
    pub strong: bool,
}

impl<'a> LaneAccess<'a> {
    /// The access that a lane of a warp makes now.
    #[inline(always)]
    pub fn of(warp: &'a Warp, lane: usize, strong: bool) -> Self {
        Self { warp: warp.clock.warp, lane, epoch: warp.clock.epoch, view: warp.clock.view(lane), strong }
    }

    /// The index of the thread in its cluster of blocks.
    pub fn thread(&self) -> usize {
        self.warp * 32 + self.lane
    }
}
