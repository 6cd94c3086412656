//! Accesses of earlier launches that may not have ended when a dependent launch begins.
//!
//! The emulator runs launches one after the other. But it keeps the accesses of the launches ahead of a dependent one
//! until its threads have waited, as if they were still to come. On a GPU, an earlier access would be right or wrong by
//! chance. The records have the resolution of a sector.

use crate::bits::Bits;
use crate::memory::{Buffer, DeviceAddress, Memory};

/// Bits of an address within a sector.
const SECTOR_BITS: u32 = 5;

/// The sectors of a buffer that launches accessed.
#[derive(Clone, Debug, Default)]
struct Accessed {
    touched: Bits,
    stored: Bits,
}

/// The accesses of launches to a buffer that may not have ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unfinished {
    /// By all launches that may not have ended before a thread has waited.
    before_wait: Accessed,
    /// By launches that may not have ended even after the wait, because a launch in between never waited.
    after_wait: Accessed,
    /// Sectors that the current launch stored to before its memory was last forked.
    pub stored: Bits,
}

impl Memory {
    /// Begins a launch and clears the access records. Accesses that may not have ended when a dependent launch begins
    /// are kept.
    pub fn begin_launch(&mut self, dependent: bool) {
        for buffer in self.buffers.iter_mut().filter(|buffer| buffer.live) {
            let Unfinished { before_wait, after_wait, stored } = &mut buffer.unfinished;
            if !dependent {
                *before_wait = Accessed::default();
                *after_wait = Accessed::default();
            } else {
                if !self.last_waited {
                    after_wait.clone_from(before_wait);
                }
                if buffer.used {
                    before_wait.touched.join(&buffer.touched);
                    before_wait.stored.join(&buffer.stored);
                    before_wait.stored.join(stored);
                }
            }
            *stored = Bits::default();
        }
        self.last_waited = !dependent;
        self.clear_accesses();
    }

    /// Clears all access records. All launches have ended, even from the point of view of a dependent launch.
    pub fn end_launches(&mut self) {
        self.begin_launch(false);
    }

    /// Returns the buffer of an access that comes too early.
    ///
    /// It is too early if a launch that may not have ended stored to the same sectors, or touched sectors that the
    /// access stores to. `waited` says whether the thread has waited for the launches ahead.
    pub fn too_early(&self, address: DeviceAddress, bytes: usize, stores: bool, waited: bool) -> Option<&Buffer> {
        let buffer = &self.buffers[self.find(address)?];
        let sector = |address: u64| (address.saturating_sub(buffer.base) >> SECTOR_BITS) as usize;
        let (first, last) = (sector(address), sector(address + (bytes as u64).max(1) - 1));
        let Unfinished { before_wait, after_wait, .. } = &buffer.unfinished;
        let accessed = if waited { after_wait } else { before_wait };
        let sectors = if stores { &accessed.touched } else { &accessed.stored };
        sectors.meets_range(first, last - first + 1).then_some(buffer)
    }
}
