//! Bulk and tensor copies in flight.

use super::async_reads::Region;
use crate::fault::Checked;
use crate::memory::{DeviceAddress, Memory};
use crate::tensor_map::Swizzle;

/// Bytes of shared memory that are copied as one piece.
pub(crate) const PIECE: usize = 16;

/// Bytes of a copy that are contiguous in global memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BulkPart {
    /// Their address in global memory.
    pub address: DeviceAddress,
    /// Their offset in the copy's data.
    pub place: usize,
    /// The number of bytes.
    pub bytes: usize,
}

impl BulkPart {
    /// Splits the part at addresses that are multiples of [`PIECE`].
    pub fn cut(self) -> impl Iterator<Item = BulkPart> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let address = self.address + done as u64;
            let bytes = (PIECE - address as usize % PIECE).min(self.bytes - done);
            let piece = (bytes != 0).then_some(BulkPart { address, place: self.place + done, bytes });
            done += bytes;
            piece
        })
    }
}

/// The data that a copy moves.
#[derive(Clone, Debug)]
pub(crate) struct BulkData {
    /// The offset in shared memory.
    pub at: usize,
    /// The permutation of the bytes there.
    pub swizzle: Swizzle,
    /// The bytes when the copy started, in the order of the tile.
    pub data: Vec<u8>,
    /// The parts in global memory. Bytes that are in no part are outside the tensor.
    pub parts: Vec<BulkPart>,
}

impl BulkData {
    /// Returns the offsets of its pieces in shared memory.
    pub fn pieces(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (at, swizzle) = (self.at, self.swizzle);
        (0..self.data.len() / PIECE).map(move |piece| swizzle.apply(at + piece * PIECE))
    }

    /// Copies the current bytes of its parts in global memory to `data`.
    pub fn read_global(&self, memory: &Memory, data: &mut [u8]) -> Checked<()> {
        for &BulkPart { address, place, bytes } in &self.parts {
            let (index, offset) = memory.locate(address, bytes)?;
            data[place..place + bytes].copy_from_slice(&memory.buffers[index].data[offset..offset + bytes]);
        }
        Ok(())
    }
}

/// A copy to shared memory that is in flight.
#[derive(Debug)]
pub(crate) struct PendingFill {
    /// The data that it moves.
    pub bulk: BulkData,
    /// The offset of the mbarrier to notify when it ends.
    pub barrier: u64,
}

/// A copy to global memory that is in flight.
#[derive(Debug)]
pub(crate) struct PendingStore {
    /// The data that it moves.
    pub bulk: BulkData,
    /// The lane that started it.
    pub lane: usize,
    /// Groups that its thread has closed since it started, its own included.
    pub groups: u32,
    /// Regions of shared memory that it still reads.
    pub reads: Vec<Region>,
}
