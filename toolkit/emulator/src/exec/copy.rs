//! `cp.async`: a thread's copies from global to shared memory.

use super::access::{addresses, lanes, shared_offset};
use super::machine::Machine;
use super::warp::{PendingCopy, Warp};
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::AsyncCopy;

impl Machine<'_> {
    pub(super) fn start_copy(&mut self, warp: &mut Warp, copy: &AsyncCopy, mask: u32) -> Checked<()> {
        // A generic address of shared memory is accepted as well.
        let (target, source) = (addresses(warp, copy.target).map(shared_offset), addresses(warp, copy.source));
        let bytes = copy.bytes as usize;
        let source_bytes = |warp: &Warp, lane: usize| match copy.source_bytes {
            Some(slot) => warp.registers.words[slot as usize][lane].min(copy.bytes),
            None => copy.bytes,
        };
        // What only fills with zeros reads no memory.
        let reading = lanes(mask).filter(|&lane| source_bytes(warp, lane) != 0).fold(0, |all, lane| all | 1 << lane);
        self.count_global(reading, &source, bytes);
        for lane in lanes(mask) {
            let source_bytes = source_bytes(warp, lane);
            let offset = self.block.shared.locate(target[lane], bytes).map_err(|fault| fault.lane(lane))?;
            let who = Self::who(warp, lane, false);
            self.block.shared.start_copy(offset, bytes, who).map_err(|fault| fault.lane(lane))?;
            if !source[lane].is_multiple_of(bytes as u64) {
                let message = format!("{bytes} bytes at {:#x}: no multiple of {bytes}", source[lane]);
                return Err(Violation::new(FaultKind::Misaligned, message).lane(lane).address(source[lane]));
            }
            let mut before = [0; 16];
            if source_bytes != 0 {
                let count = source_bytes as usize;
                let (index, at) = self.memory.locate(source[lane], count).map_err(|fault| fault.lane(lane))?;
                let buffer = &self.memory.buffers[index];
                if self.options.check_initialised && !buffer.written.contains_range(at, count) {
                    let message = format!("{count} bytes at offset {at} of `{}` that nothing wrote", buffer.name);
                    let fault = Violation::new(FaultKind::Uninitialised, message).lane(lane).address(source[lane]);
                    return Err(fault.buffer(&buffer.name));
                }
                before[..count].copy_from_slice(&buffer.data[at..at + count]);
                self.check_global_read(warp, index, (1 << lane, count), |_| at, false)?;
            }
            let (source, bytes, lane) = (source[lane], copy.bytes, lane as u8);
            warp.copies.push(PendingCopy { target: offset, source, bytes, source_bytes, lane, before });
        }
        Ok(())
    }

    /// Ends copies, no earlier than a wait demands: one that is missing shows as stale data.
    pub(super) fn wait_copies(&mut self, warp: &mut Warp, pending: Option<u32>) -> Checked<()> {
        if pending.is_none() {
            let group = std::mem::take(&mut warp.copies);
            warp.groups.push_back(group);
        }
        while warp.groups.len() > pending.unwrap_or(0) as usize {
            for copy in warp.groups.pop_front().unwrap_or_default() {
                let mut data = [0; 16];
                let (count, lane) = (copy.source_bytes as usize, usize::from(copy.lane));
                if count != 0 {
                    let (index, at) = self.memory.locate(copy.source, count).map_err(|fault| fault.lane(lane))?;
                    data[..count].copy_from_slice(&self.memory.buffers[index].data[at..at + count]);
                    if data != copy.before {
                        let name = &self.memory.buffers[index].name;
                        let message = format!(
                            "{count} bytes at offset {at} of `{name}` were written while an asynchronous copy still read them"
                        );
                        let fault = Violation::new(FaultKind::AsyncRegion, message).lane(lane).address(copy.source);
                        return Err(fault.buffer(name));
                    }
                }
                let data = &data[..copy.bytes as usize];
                self.block.shared.end_copy(copy.target, data, warp.id * 32 + lane, warp.clock.epoch);
            }
        }
        Ok(())
    }
}
