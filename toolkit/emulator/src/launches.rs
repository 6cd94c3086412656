//! The order of launches, which decides about accesses to memory.

use crate::memory::{Buffer, DeviceAddress, Memory};

impl Memory {
    /// Begins a launch and clears the access records. Accesses that may not have ended when a dependent launch begins
    /// are kept.
    pub fn begin_launch(&mut self, dependent: bool) {
        for buffer in self.buffers.iter_mut().filter(|buffer| buffer.live) {
            let accessed = buffer.used.then_some((&buffer.touched, &buffer.stored));
            buffer.unfinished.begin_launch(dependent, self.last_waited, accessed);
        }
        self.last_waited = !dependent;
        self.clear_accesses();
    }

    /// Clears all access records. All launches have ended, even from the point of view of a dependent launch.
    pub fn end_launches(&mut self) {
        self.begin_launch(false);
    }

    /// Returns the buffer of an access that comes too early. `waited` says whether the thread has waited for the
    /// launches ahead.
    pub fn too_early(&self, address: DeviceAddress, bytes: usize, stores: bool, waited: bool) -> Option<&Buffer> {
        let buffer = &self.buffers[self.find(address)?];
        let offset = |address: u64| address.saturating_sub(buffer.base);
        let range = offset(address)..=offset(address + (bytes as u64).max(1) - 1);
        buffer.unfinished.meets(range, stores, waited).then_some(buffer)
    }
}
