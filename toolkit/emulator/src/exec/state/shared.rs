//! Shared memory of a block: its bytes, which of them are written, and the shadow that finds races.

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
    /// The bytes that are written.
    written: Bits,
    shadow: Shadow,
    check_races: bool,
    check_initialised: bool,
    /// Whether reads of unwritten bytes are recorded as poison, and are not faults.
    poison: bool,
    /// Whether such a read happened since the last [`SharedMemory::take_unwritten`].
    unwritten: bool,
}

#[cold]
fn fault<T>(kind: FaultKind, at: u64, message: String) -> Checked<T> {
    Err(Violation::new(kind, message).address(at).buffer("shared memory"))
}

impl SharedMemory {
    /// Creates empty shared memory.
    pub fn new(check_races: bool, check_initialised: bool, poison: bool) -> Self {
        Self { check_races, check_initialised, poison, ..Self::default() }
    }

    /// Resets it for another block, with `bytes` unwritten bytes. `warps` has the number of warps in the block and in
    /// its cluster.
    pub fn reset(&mut self, bytes: usize, warps: (usize, usize)) {
        self.data.clear();
        self.data.resize(bytes, 0xcd);
        self.written = Bits::new(bytes);
        self.shadow.reset(bytes, warps);
    }

    /// Checks that bytes are within shared memory, at a multiple of `align`, a power of two. Returns their offset.
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

    /// Checks that an access is within shared memory, at a multiple of its size. Returns its offset.
    #[inline(always)]
    pub fn locate(&self, address: u64, bytes: usize) -> Checked<usize> {
        self.locate_aligned(address, bytes, bytes)
    }

    /// Checks and records a read of located bytes.
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

    /// Returns whether unwritten bytes were read since the last call.
    #[inline(always)]
    pub fn take_unwritten(&mut self) -> bool {
        std::mem::take(&mut self.unwritten)
    }

    /// Returns whether all of these bytes are written. Without `check_initialised`, they count as written.
    pub fn is_written(&self, at: usize, bytes: usize) -> bool {
        !self.check_initialised || self.written.contains_range(at, bytes)
    }

    /// Marks bytes as unwritten again, because poison was stored there.
    pub fn mark_unwritten(&mut self, at: usize, bytes: usize) {
        (at..at + bytes).for_each(|byte| self.written.remove(byte));
    }

    /// Checks and records a write of located bytes. `same` says that it does not change the bytes, so that it does not
    /// race with another write.
    #[inline(always)]
    pub fn write(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>, same: bool) -> Checked<()> {
        self.written.insert_small(at, bytes);
        if self.check_races { self.shadow.write(at, bytes, who, same) } else { Ok(()) }
    }

    /// Starts an asynchronous copy to some bytes. Until it ends, no other access may read or write them.
    #[inline(always)]
    pub fn start_copy(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        if self.check_races { self.shadow.start_copy(at, bytes, who) } else { Ok(()) }
    }

    /// Ends an asynchronous copy of up to sixteen bytes, which counts as a write by a thread in an epoch.
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

    /// Starts asynchronous reads of 16-byte pieces. Until they end, no access may write these bytes.
    ///
    /// Data of ordinary stores must already be visible to the asynchronous proxy. `only_poison` says that the caller
    /// checks for unwritten bytes itself if they are poison.
    pub fn start_async_reads(
        &mut self,
        pieces: impl Iterator<Item = usize> + Clone,
        who: LaneAccess<'_>,
        only_poison: bool,
    ) -> Checked<Vec<Region>> {
        let regions = Region::from_pieces(pieces.clone());
        if regions.iter().any(|&region| self.check_async_read(region, who, only_poison).is_err()) {
            // Report the fault of the first piece in their order.
            pieces.into_iter().try_for_each(|at| self.check_async_read(Region::from_piece(at), who, only_poison))?;
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

    /// Ends asynchronous reads, which count as reads by `who`.
    pub fn end_async_reads(&mut self, regions: &[Region], who: LaneAccess<'_>) {
        if self.check_races {
            regions.iter().for_each(|&region| self.shadow.end_async_read(region, who.thread(), who.epoch));
        }
    }

    /// Records that an mbarrier is stored here, or no longer is. Ordinary accesses to an mbarrier are faults.
    pub fn set_mbarrier(&mut self, at: usize, exists: bool) {
        self.written.insert_range(at, 8);
        if self.check_races {
            self.shadow.set_mbarrier(at, exists);
        }
    }
}
