//! An event: a point in a stream that other streams and the host can wait for.

use super::capture::CaptureClock;
use std::time::Instant;

/// Where an event was recorded last.
#[derive(Debug)]
pub(super) enum Recorded {
    Never,
    /// Recorded as the work item with this sequence number.
    Queued(u64),
    /// Recorded in the capture with this id.
    Captured(u32, CaptureClock),
}

/// The state of an event.
#[derive(Debug)]
pub(super) struct EventState {
    /// Whether the event can be used for timing.
    pub timed: bool,
    pub recorded: Recorded,
    /// When the stream reached the event.
    pub at: Option<Instant>,
}
