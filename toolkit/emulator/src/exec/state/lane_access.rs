//! One lane's access to memory, with its view of the accesses that come before it.

use super::clock::{View, WarpClock};

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
    /// Returns the access that a lane of a warp makes now.
    #[inline(always)]
    pub fn new(clock: &'a WarpClock, lane: usize, strong: bool) -> Self {
        Self { warp: clock.warp, lane, epoch: clock.epoch, view: clock.view(lane), strong }
    }

    /// Returns the accesses that the lanes of a warp make now. Usually all lanes share one view.
    #[inline(always)]
    pub fn by_lane(clock: &'a WarpClock, strong: bool) -> impl Fn(usize) -> Self + Copy {
        let (first, alike) = (Self::new(clock, 0, strong), clock.has_one_view());
        move |lane| if alike { Self { lane, ..first } } else { Self::new(clock, lane, strong) }
    }

    /// Returns the index of the thread in its cluster of blocks.
    pub fn thread(&self) -> usize {
        self.warp * 32 + self.lane
    }
}
