//! Loads and stores of global memory.

use super::access::{gather, lanes, scatter};
use super::machine::Machine;
use super::traffic;
use super::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::memory::DevicePtr;
use crate::program;

/// Whether all 32 lanes access one stretch of memory, in order.
#[inline(always)]
fn in_a_row(mask: u32, at: &[u64; 32], bytes: usize) -> bool {
    let mut gaps = 0;
    for lane in 0..32 {
        gaps |= at[lane] ^ at[0].wrapping_add((lane * bytes) as u64);
    }
    mask == u32::MAX && gaps == 0
}

/// The bytes that a lane stores.
fn stored(warp: &Warp, access: &program::Access, lane: usize) -> [u8; 32] {
    let mut data = [0; 32];
    gather(warp, access, lane, &mut data[..access.bytes()]);
    data
}

impl Machine<'_> {
    /// The buffer that holds all of a request, when one does and all addresses are aligned: its index.
    #[inline(always)]
    fn common_buffer(&self, mask: u32, at: &[u64; 32], bytes: usize) -> Option<usize> {
        let (mut low, mut high, mut any) = (u64::MAX, 0, 0);
        for lane in 0..32 {
            let active = mask >> lane & 1 == 1;
            low = low.min(if active { at[lane] } else { u64::MAX });
            high = high.max(if active { at[lane] } else { 0 });
            any |= if active { at[lane] } else { 0 };
        }
        let index = self.memory.find(low)?;
        let buffer = &self.memory.buffers[index];
        let end = buffer.base + buffer.data.len() as u64;
        let fits = low >= buffer.base && high <= end.wrapping_sub(bytes as u64) && bytes as u64 <= end - buffer.base;
        (fits && any & (bytes as u64 - 1) == 0 && buffer.live).then_some(index)
    }

    /// Buffer and offset of one lane's access, checked.
    pub(super) fn global(&self, address: DevicePtr, bytes: usize, lane: usize, read: bool) -> Checked<(usize, usize)> {
        let (index, offset) = self.memory.locate(address, bytes).map_err(|fault| fault.lane(lane))?;
        let buffer = &self.memory.buffers[index];
        let fault =
            |kind, message: String| Err(Violation::new(kind, message).lane(lane).address(address).buffer(&buffer.name));
        if !address.is_multiple_of(bytes as u64) {
            let message =
                format!("{bytes} bytes at {address:#x}, offset {offset} of `{}`: no multiple of {bytes}", buffer.name);
            return fault(FaultKind::Misaligned, message);
        }
        if read && self.options.check_initialised && !buffer.written.contains_range(offset, bytes) {
            let message = format!("{bytes} bytes at offset {offset} of `{}` that nothing wrote", buffer.name);
            return fault(FaultKind::Uninitialised, message);
        }
        Ok((index, offset))
    }

    pub(super) fn load_global(
        &mut self,
        warp: &mut Warp,
        access: &program::Access,
        mask: u32,
        at: &[u64; 32],
    ) -> Checked<()> {
        let bytes = access.bytes();
        self.count_global(mask, at, bytes);
        if let Some(index) = self.common_buffer(mask, at, bytes) {
            let buffer = &self.memory.buffers[index];
            let offset = |lane: usize| (at[lane] - buffer.base) as usize;
            let check = self.options.check_initialised;
            let bad = check
                && if in_a_row(mask, at, bytes) {
                    !buffer.written.contains_range(offset(0), 32 * bytes)
                } else {
                    lanes(mask).any(|lane| !buffer.written.contains_small(offset(lane), bytes))
                };
            if !bad {
                let who = (mask, bytes);
                self.check_global_read(warp, index, who, offset, access.order.is_some())?;
                if access.size == 4 && mask == u32::MAX {
                    for (part, register) in access.registers.iter().enumerate().filter(|(_, r)| r.bits == 32) {
                        let target = &mut warp.registers.words[register.slot as usize];
                        for lane in 0..32 {
                            let at = offset(lane) + 4 * part;
                            let data = &buffer.data[at..at + 4];
                            target[lane] = u32::from_le_bytes([data[0], data[1], data[2], data[3]]);
                        }
                    }
                    if access.registers.iter().all(|register| matches!(register.bits, 0 | 32)) {
                        return Ok(());
                    }
                }
                for lane in lanes(mask) {
                    let at = offset(lane);
                    scatter(warp, access, lane, &buffer.data[at..at + bytes]);
                }
                return Ok(());
            }
        }
        for lane in lanes(mask) {
            let (index, offset) = self.global(at[lane], bytes, lane, true)?;
            self.check_global_read(warp, index, (1 << lane, bytes), |_| offset, access.order.is_some())?;
            scatter(warp, access, lane, &self.memory.buffers[index].data[offset..offset + bytes]);
        }
        Ok(())
    }

    pub(super) fn store_global(
        &mut self,
        warp: &mut Warp,
        access: &program::Access,
        mask: u32,
        at: &[u64; 32],
    ) -> Checked<()> {
        let bytes = access.bytes();
        self.count_global(mask, at, bytes);
        let strong = access.order.is_some();
        if let Some(index) = self.common_buffer(mask, at, bytes) {
            let base = self.memory.buffers[index].base;
            let offset = |lane: usize| (at[lane] - base) as usize;
            self.check_global_write(warp, index, (mask, bytes), offset, strong, |machine, mask| {
                let old = &machine.memory.buffers[index].data;
                lanes(mask).all(|lane| stored(warp, access, lane)[..bytes] == old[offset(lane)..offset(lane) + bytes])
            })?;
            let buffer = &mut self.memory.buffers[index];
            if in_a_row(mask, at, bytes) {
                let start = offset(0);
                buffer.written.insert_range(start, 32 * bytes);
                for (lane, data) in buffer.data[start..start + 32 * bytes].chunks_exact_mut(bytes).enumerate() {
                    gather(warp, access, lane, data);
                }
            } else {
                for lane in lanes(mask) {
                    buffer.written.insert_small(offset(lane), bytes);
                    gather(warp, access, lane, &mut buffer.data[offset(lane)..offset(lane) + bytes]);
                }
            }
            return Ok(());
        }
        for lane in lanes(mask) {
            let (index, offset) = self.global(at[lane], bytes, lane, false)?;
            let data = stored(warp, access, lane);
            self.check_global_write(
                warp,
                index,
                (1 << lane, bytes),
                |_| offset,
                strong,
                |machine, _| machine.memory.buffers[index].data[offset..offset + bytes] == data[..bytes],
            )?;
            let buffer = &mut self.memory.buffers[index];
            buffer.written.insert_small(offset, bytes);
            buffer.data[offset..offset + bytes].copy_from_slice(&data[..bytes]);
        }
        Ok(())
    }

    /// Counts the sectors of a request, and notes them as touched.
    #[inline(always)]
    pub(super) fn count_global(&mut self, mask: u32, at: &[u64; 32], bytes: usize) {
        let sectors = traffic::sectors(mask, at, bytes);
        let counts = &mut self.stats[self.pc];
        let asked = u64::from(mask.count_ones()) * bytes as u64;
        counts.global_bytes += asked;
        counts.sectors += sectors.len as u64;
        counts.ideal_sectors += asked.div_ceil(32).min(sectors.len as u64);
        let mut last = None;
        for &sector in &sectors.list[..sectors.len] {
            last = self.memory.touch(sector, last);
        }
    }
}
