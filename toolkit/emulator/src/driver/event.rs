//! An event: a point in a stream that others wait for.

use super::capture::CaptureClock;
use std::time::Instant;

/// Where an event was recorded last.
#[derive(Debug)]
pub(super) enum Recorded {
    Never,
    /// As work of this number.
    Queued(u64),
    /// In a capture.
    Captured(u32, CaptureClock),
}

/// What the driver knows of an event.
#[derive(Debug)]
pub(super) struct EventState {
    /// Whether its time is taken.
    pub timed: bool,
    pub recorded: Recorded,
    /// When the stream came to it.
    pub at: Option<Instant>,
}
