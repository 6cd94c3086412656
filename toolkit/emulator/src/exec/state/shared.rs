//! Shared memory of a block: its bytes, which of them were written, and the shadow that finds races.

use super::async_reads::{BLOCK, Region};
use super::lane_access::LaneAccess;
use super::shadow::Shadow;
use crate::bits::Bits;
use crate::fault::{Checked, FaultKind, Violation};

/// The shared memory of a block.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    /// Its bytes.
    pub data: Vec<u8>,
    /// The bytes that something wrote.
    written: Bits,
    shadow: Shadow,
    check_races: bool,
    check_initialised: bool,
    /// Whether reads of what nothing wrote are noted, in the place of faults.
    poison: bool,
    /// Whether there was one since it was last asked.
    unwritten: bool,
}

#[cold]
fn fault<T>(kind: FaultKind, at: u64, message: String) -> Checked<T> {
    Err(Violation::new(kind, message).address(at).buffer("shared memory"))
}

impl SharedMemory {
    /// Empty shared memory.
    pub fn new(check_races: bool, check_initialised: bool, poison: bool) -> Self {
        Self { check_races, check_initialised, poison, ..Self::default() }
    }

    /// Makes it ready for another block, with so many bytes that nothing has written. `warps` are those of the block and of
    /// its cluster.
    pub fn reset(&mut self, bytes: usize, warps: (usize, usize)) {
        self.data.clear();
        self.data.resize(bytes, 0xcd);
        self.written = Bits::new(bytes);
        self.shadow.reset(bytes, warps);
    }

    /// Checks that bytes lie within shared memory, at a multiple of `align`, a power of two. Returns their offset.
    #[inline(always)]
    pub fn locate_aligned(&self, address: u64, bytes: usize, align: usize) -> Checked<usize> {
        let size = self.data.len() as u64;
        if address.saturating_add(bytes as u64) > size {
            let message = format!("{bytes} bytes at offset {address:#x} of shared memory, which has {size} bytes");
            return fault(FaultKind::OutOfBounds, address, message);
        }
        if address & (align as u64 - 1) != 0 {
            let message = format!("{bytes} bytes at offset {address:#x} of shared memory, not a multiple of {align}");
            return fault(FaultKind::Misaligned, address, message);
        }
        Ok(address as usize)
    }

    /// The same for an access, which must lie at a multiple of its size.
    #[inline(always)]
    pub fn locate(&self, address: u64, bytes: usize) -> Checked<usize> {
        self.locate_aligned(address, bytes, bytes)
    }

    /// Checks and notes a read of bytes that were located before.
    #[inline(always)]
    pub fn read(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        if self.check_initialised && !self.written.contains_small(at, bytes) {
            self.shadow.check_landed(at, bytes)?;
            if self.poison {
                self.unwritten = true;
                return if self.check_races { self.shadow.read(at, bytes, who) } else { Ok(()) };
            }
            let message = format!(
                "{bytes} bytes at offset {at:#x} of shared memory that nothing wrote yet: is a barrier missing before this, or a first value?"
            );
            return fault(FaultKind::Uninitialised, at as u64, message);
        }
        if self.check_races { self.shadow.read(at, bytes, who) } else { Ok(()) }
    }

    /// Whether bytes were read that nothing wrote, since this was last asked.
    #[inline(always)]
    pub fn take_unwritten(&mut self) -> bool {
        std::mem::take(&mut self.unwritten)
    }

    /// Whether something wrote all of these bytes.
    pub fn is_written(&self, at: usize, bytes: usize) -> bool {
        !self.check_initialised || self.written.contains_range(at, bytes)
    }

    /// Takes bytes as if nothing had written them: what was written is poison.
    pub fn forget(&mut self, at: usize, bytes: usize) {
        (at..at + bytes).for_each(|byte| self.written.remove(byte));
    }

    /// Checks and notes a write of bytes that were located before. `same` says that it leaves the bytes as they are, which is no race with another write.
    #[inline(always)]
    pub fn write(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>, same: bool) -> Checked<()> {
        self.written.insert_small(at, bytes);
        if self.check_races { self.shadow.write(at, bytes, who, same) } else { Ok(()) }
    }

    /// Starts an asynchronous copy to here. Until it ends nothing else may read or write the bytes.
    #[inline(always)]
    pub fn start_copy(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        if self.check_races { self.shadow.start_copy(at, bytes, who) } else { Ok(()) }
    }

    /// Ends an asynchronous copy of up to sixteen bytes, as a write by a thread in an epoch.
    #[inline(always)]
    pub fn end_copy(&mut self, at: usize, data: &[u8], thread: usize, epoch: u32) {
        if self.check_races {
            self.shadow.end_copy(at, data.len(), thread, epoch);
        }
        self.written.insert_range(at, data.len());
        let target = &mut self.data[at..at + data.len()];
        match (target.as_mut_array::<16>(), data.as_array::<16>()) {
            (Some(target), Some(data)) => *target = *data,
            _ => self.data[at..at + data.len()].copy_from_slice(data),
        }
    }

    /// Starts asynchronous reads of pieces of 16 bytes. Until they end nothing may write the bytes. `only_poison` says that the
    /// caller looks itself for what nothing wrote, where that is poison. What ordinary stores wrote must have been made
    /// visible to the asynchronous proxy before.
    pub fn start_async_reads(
        &mut self,
        pieces: impl Iterator<Item = usize> + Clone,
        who: LaneAccess<'_>,
        only_poison: bool,
    ) -> Checked<Vec<Region>> {
        let regions = Region::of_pieces(pieces.clone());
        if regions.iter().any(|&region| self.check_async_read(region, who, only_poison).is_err()) {
            // The fault is that of the first piece in their order.
            pieces.into_iter().try_for_each(|at| self.check_async_read(Region::of_piece(at), who, only_poison))?;
        }
        if self.check_races {
            regions.iter().for_each(|&region| self.shadow.start_async_read(region, who.thread()));
        }
        Ok(regions)
    }

    /// Checks the start of asynchronous reads.
    fn check_async_read(&mut self, region: Region, who: LaneAccess<'_>, only_poison: bool) -> Checked<()> {
        let start = region.block * BLOCK;
        let is_whole = start + BLOCK <= self.data.len();
        if !is_whole {
            region.offsets().try_for_each(|at| self.locate(at as u64, 16).map(drop))?;
        }
        if self.check_initialised
            && !(only_poison && self.poison)
            && !(is_whole && self.written.contains_range(start, BLOCK))
            && let Some(at) = region.offsets().find(|&at| !self.written.contains_range(at, 16))
        {
            let message = format!("reads 16 bytes at offset {at:#x} of shared memory that nothing wrote");
            return fault(FaultKind::Uninitialised, at as u64, message);
        }
        if self.check_races { self.shadow.check_async_read(region, who) } else { Ok(()) }
    }

    /// Ends asynchronous reads, as reads.
    pub fn end_async_reads(&mut self, regions: &[Region], who: LaneAccess<'_>) {
        if self.check_races {
            regions.iter().for_each(|&region| self.shadow.end_async_read(region, who.thread(), who.epoch));
        }
    }

    /// Notes that an mbarrier lives here, or no longer does. Ordinary accesses to an mbarrier are faults.
    pub fn set_mbarrier(&mut self, at: usize, exists: bool) {
        self.written.insert_range(at, 8);
        if self.check_races {
            self.shadow.set_mbarrier(at, exists);
        }
    }
}
