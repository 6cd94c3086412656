//! An mbarrier: a barrier in shared memory that counts arrivals and bytes.

use super::clock::{Gathering, View};
use std::sync::Arc;

/// An mbarrier.
#[derive(Debug)]
pub(crate) struct Mbarrier {
    /// Arrivals that complete a phase.
    pub count: u32,
    /// Arrivals that the current phase still lacks.
    pub pending: u32,
    /// Bytes that are expected and not copied yet.
    pub bytes: i64,
    /// The number of completed phases.
    pub phase: u64,
    /// The views of the threads that have arrived in this phase.
    pub arrived: Gathering,
    /// The joined view of all threads that arrived in the previous phase.
    pub opened: Option<Arc<View>>,
    /// The thread that initialised it, and that thread's epoch. All other threads must come after this.
    pub creator: (usize, u32),
    /// The lane of the asynchronous proxy's clock that represents the copies it counts.
    pub agent: usize,
}

impl Mbarrier {
    /// Creates an mbarrier in its first phase.
    pub fn new(count: u32, creator: (usize, u32), agent: usize) -> Self {
        let arrived = Gathering::default();
        Self { count, pending: count, bytes: 0, phase: 0, arrived, opened: None, creator, agent }
    }

    /// Ends the phase if it lacks nothing. `clocks` is the number of warps in a view.
    pub fn step(&mut self, clocks: usize) {
        if self.pending == 0 && self.bytes == 0 {
            self.phase += 1;
            self.pending = self.count;
            self.opened = Some(self.arrived.take(clocks));
        }
    }

    /// Describes its state for an error message.
    pub fn describe(&self, at: u64) -> String {
        format!(
            "the mbarrier at offset {at:#x} is in phase {} with {} of {} arrivals and {} bytes missing",
            self.phase, self.pending, self.count, self.bytes
        )
    }
}
