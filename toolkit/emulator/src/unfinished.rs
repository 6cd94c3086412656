//! What launches did to memory that need not be over when a dependent launch begins.
//!
//! Launches run one after the other here. But what the ones ahead of a dependent launch touched is kept until its threads have
//! waited, as if it were still to come: on a GPU an access before that would be right or wrong by chance. It is known by sectors.

use crate::bits::Bits;
use crate::memory::{Buffer, DeviceAddress, Memory};

/// Bits of an address within a sector.
const SECTOR_BITS: u32 = 5;

/// Sectors of a buffer that launches accessed.
#[derive(Clone, Debug, Default)]
struct Accessed {
    touched: Bits,
    stored: Bits,
}

/// What launches did to a buffer that need not be over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unfinished {
    /// By all launches that need not be over before a thread has waited.
    before_wait: Accessed,
    /// By those that need not be over even then: a launch between them and this one never waited.
    after_wait: Accessed,
    /// Sectors that the current launch stored to before its memory was last copied.
    pub stored: Bits,
}

impl Memory {
    /// Begins a launch. What launches did before it is forgotten, but for what need not be over when a dependent one begins.
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
        self.forget_launches();
    }

    /// Forgets what launches did: all of them are over, whatever the next launch is.
    pub fn end_launches(&mut self) {
        self.begin_launch(false);
    }

    /// The buffer of an access that comes too early: launches that need not be over have stored there, or touched what it stores
    /// to. `waited` says whether the thread has waited for the launch ahead.
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
