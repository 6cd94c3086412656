//! Copies of global memory for blocks that run ahead of earlier ones.

use crate::history::LINE;
use crate::memory::{Buffer, Memory};

/// Bytes of a sector.
const SECTOR: usize = 32;

impl Memory {
    /// Returns the size of all buffers together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.data.len() as u64).sum()
    }

    /// Returns copies of this memory with empty access records.
    ///
    /// Each copy records the sectors that blocks touch and store to there. From now on this memory records the stores
    /// made here since the fork, which [`Memory::conflicts`] needs.
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

    /// Returns whether blocks on a copy touched a sector that other blocks stored to here since the fork.
    pub fn conflicts(&self, fork: &Memory) -> bool {
        self.buffers.iter().zip(&fork.buffers).any(|(here, there)| there.used && here.stored.meets(&there.touched))
    }

    /// Merges the stores from a copy that does not conflict.
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

/// Merges one sector at an offset: its bytes, which of them were written, and their writers.
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
