//! Copies of memory on which blocks run ahead of others.

use crate::history::LINE;
use crate::memory::{Buffer, Memory};

/// Bytes of a sector.
const SECTOR: usize = 32;

impl Memory {
    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.data.len() as u64).sum()
    }

    /// Copies, which know what blocks touch and store there; this memory knows from now on what blocks store here.
    pub fn fork(&mut self, count: usize) -> Vec<Memory> {
        for buffer in &mut self.buffers {
            buffer.unfinished.stored.join(&buffer.stored);
            buffer.stored.clear();
        }
        let mut fork = self.clone();
        for buffer in &mut fork.buffers {
            buffer.touched.clear();
            buffer.used = false;
        }
        vec![fork; count]
    }

    /// Whether blocks touched something on a copy that others stored here since.
    pub fn conflicts(&self, fork: &Memory) -> bool {
        self.buffers.iter().zip(&fork.buffers).any(|(here, there)| there.used && here.stored.meets(&there.touched))
    }

    /// Takes over what blocks stored on a copy that does not conflict.
    pub fn take_over(&mut self, fork: &Memory) {
        self.last_waited |= fork.last_waited;
        for (here, there) in self.buffers.iter_mut().zip(&fork.buffers).filter(|(_, there)| there.used) {
            here.used = true;
            here.touched.join(&there.touched);
            here.stored.join(&there.stored);
            there.stored.iter().for_each(|sector| take_over_sector(here, there, sector * SECTOR));
        }
    }
}

/// Takes over the sector at an offset: its bytes, which of them something wrote, and who.
fn take_over_sector(here: &mut Buffer, there: &Buffer, at: usize) {
    let end = (at + SECTOR).min(there.data.len());
    here.data[at..end].copy_from_slice(&there.data[at..end]);
    for byte in at..end {
        if there.written.contains_range(byte, 1) {
            here.written.insert(byte);
        }
    }
    let bytes = u128::from(u32::MAX) << (at % LINE);
    here.history.take_over(&there.history, at / LINE, bytes);
}
