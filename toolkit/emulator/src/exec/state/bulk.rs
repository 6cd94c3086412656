//! Bulk and tensor copies that have not ended.

use super::async_reads::Region;
use crate::fault::Checked;
use crate::memory::{DeviceAddress, Memory};
use crate::tensor_map::Swizzle;

/// Bytes of shared memory that are copied as one piece.
pub(crate) const PIECE: usize = 16;

/// Bytes of a copy that lie side by side in global memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BulkPart {
    /// Their address in global memory.
    pub address: DeviceAddress,
    /// Their place in the copy's data.
    pub place: usize,
    /// How many they are.
    pub bytes: usize,
}

impl BulkPart {
    /// Cuts the part at addresses that are multiples of [`PIECE`].
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

/// What a copy moves.
#[derive(Clone, Debug)]
pub(crate) struct BulkData {
    /// The offset in shared memory.
    pub at: usize,
    /// How the bytes are arranged there.
    pub swizzle: Swizzle,
    /// The bytes when the copy started, in the order of the tile.
    pub data: Vec<u8>,
    /// Where the bytes are in global memory. Bytes that are in no part lie outside of the tensor.
    pub parts: Vec<BulkPart>,
}

impl BulkData {
    /// The offsets in shared memory of its pieces.
    pub fn pieces(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (at, swizzle) = (self.at, self.swizzle);
        (0..self.data.len() / PIECE).map(move |piece| swizzle.apply(at + piece * PIECE))
    }

    /// Copies the bytes that its parts of global memory hold now to `data`.
    pub fn read_global(&self, memory: &Memory, data: &mut [u8]) -> Checked<()> {
        for &BulkPart { address, place, bytes } in &self.parts {
            let (index, offset) = memory.locate(address, bytes)?;
            data[place..place + bytes].copy_from_slice(&memory.buffers[index].data[offset..offset + bytes]);
        }
        Ok(())
    }
}

/// A copy to shared memory that has not ended.
#[derive(Debug)]
pub(crate) struct PendingFill {
    /// What it moves.
    pub bulk: BulkData,
    /// The offset of the mbarrier that is told when it ends.
    pub barrier: u64,
}

/// A copy to global memory that has not ended.
#[derive(Debug)]
pub(crate) struct PendingStore {
    /// What it moves.
    pub bulk: BulkData,
    /// The lane that started it.
    pub lane: usize,
    /// Groups that its thread has closed since, its own included.
    pub groups: u32,
    /// What it still reads of shared memory.
    pub reads: Vec<Region>,
}
