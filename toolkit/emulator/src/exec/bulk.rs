//! Bulk and tensor copies between global and shared memory.
//!
//! They end at the latest moment the program allows: one to shared memory when a thread asks its mbarrier for the phase that
//! lacks nothing but its bytes, one to global memory when its group is waited for.

use super::access::{addresses, lanes, shared_offset};
use super::machine::Machine;
use super::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::memory::DevicePtr;
use crate::program::{BulkCopy, BulkEnd, BulkSource};
use crate::tensor_map::{Swizzle, TensorMap};

/// Bytes that are copied as one.
const PIECE: usize = 16;

/// What a copy moves.
#[derive(Clone, Debug)]
pub(super) struct Bulk {
    /// Offset in shared memory.
    at: usize,
    swizzle: Swizzle,
    /// The bytes when the copy started, in the order of the tile.
    data: Vec<u8>,
    /// Their places in global memory: address, place in `data`, bytes. What is in none is outside of the tensor.
    parts: Vec<(DevicePtr, usize, usize)>,
}

impl Bulk {
    /// Offsets in shared memory of its pieces.
    fn pieces(&self) -> impl Iterator<Item = usize> + use<> {
        let (at, swizzle) = (self.at, self.swizzle);
        (0..self.data.len() / PIECE).map(move |piece| swizzle.apply(at + piece * PIECE))
    }
}

/// A copy to shared memory that has not ended.
#[derive(Debug)]
pub(super) struct Fill {
    bulk: Bulk,
    /// The mbarrier that is told.
    barrier: u64,
}

/// A copy to global memory that has not ended.
#[derive(Debug)]
pub(super) struct PendingStore {
    bulk: Bulk,
    lane: usize,
    /// Groups that its thread closed since, its own included.
    groups: u32,
    /// Whether it still reads shared memory.
    reads: bool,
}

/// Cuts a part at multiples of [`PIECE`]: addresses, places and bytes.
fn cut((address, place, bytes): (DevicePtr, usize, usize)) -> impl Iterator<Item = (DevicePtr, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = address + done as u64;
        let next = (PIECE - at as usize % PIECE).min(bytes - done);
        let piece = (next != 0).then_some((at, place + done, next));
        done += next;
        piece
    })
}

fn fault<T>(kind: FaultKind, message: String) -> Checked<T> {
    Err(Violation::new(kind, message))
}

impl Warp {
    /// Lanes close their groups of copies to global memory.
    pub(super) fn commit_stores(&mut self, mask: u32) {
        for store in self.stores.iter_mut().filter(|store| mask >> store.lane & 1 == 1) {
            store.groups += 1;
        }
    }
}

impl Machine<'_> {
    pub(super) fn bulk_copy(&mut self, warp: &mut Warp, copy: &BulkCopy, mask: u32) -> Checked<()> {
        let shared = addresses(warp, copy.shared).map(shared_offset);
        for lane in lanes(mask) {
            let bulk = self.plan(warp, &copy.source, lane, shared[lane]).map_err(|fault| fault.lane(lane))?;
            match &copy.end {
                BulkEnd::Shared { barrier } => {
                    let barrier = shared_offset(addresses(warp, *barrier)[lane]);
                    self.mbarrier_at(warp, lane, barrier)?;
                    self.start_fill(warp, lane, bulk, barrier).map_err(|fault| fault.lane(lane))?;
                }
                BulkEnd::Global => self.start_store(warp, lane, bulk).map_err(|fault| fault.lane(lane))?,
            }
        }
        Ok(())
    }

    /// What a lane's copy moves, with places checked and nothing read.
    fn plan(&mut self, warp: &Warp, source: &BulkSource, lane: usize, shared: u64) -> Checked<Bulk> {
        let (swizzle, bytes, parts) = match source {
            BulkSource::Bytes { global, size } => {
                let (address, size) =
                    (addresses(warp, *global)[lane], warp.registers.words[*size as usize][lane] as usize);
                if !address.is_multiple_of(16) || !size.is_multiple_of(PIECE) {
                    let message = format!("a bulk copy of {size} bytes at {address:#x}: both must be multiples of 16");
                    return fault(FaultKind::Misaligned, message);
                }
                (Swizzle::None, size, vec![(address, 0, size)])
            }
            BulkSource::Tile { map, coordinates } => {
                let address = addresses(warp, *map)[lane];
                let (buffer, offset) = self.memory.locate(address, TensorMap::BYTES)?;
                let bytes = &self.memory.buffers[buffer].data[offset..offset + TensorMap::BYTES];
                let Some(map) = TensorMap::decode(bytes).filter(|map| map.tile.len() == coordinates.len()) else {
                    let message = format!("no tensor map of {} dimensions is at {address:#x}", coordinates.len());
                    return fault(FaultKind::OutOfBounds, message);
                };
                if !address.is_multiple_of(64) {
                    return fault(FaultKind::Misaligned, format!("a tensor map at {address:#x}, no multiple of 64"));
                }
                let first: Vec<i32> =
                    coordinates.iter().map(|&slot| warp.registers.words[slot as usize][lane] as i32).collect();
                (map.swizzle, map.tile_bytes(), map.parts(&first))
            }
        };
        // A tile's pattern repeats from 128 bytes on.
        let align = if matches!(source, BulkSource::Tile { .. }) { 128 } else { PIECE };
        let at = self.block.shared.locate_aligned(shared, bytes, align)?;
        for &(address, _, bytes) in &parts {
            self.memory.locate(address, bytes)?;
            self.count_bulk(address, bytes);
        }
        Ok(Bulk { at, swizzle, data: vec![0; bytes], parts })
    }

    fn count_bulk(&mut self, address: DevicePtr, bytes: usize) {
        let (first, last) = (address / 32, (address + bytes as u64).div_ceil(32));
        let counts = &mut self.stats[self.pc];
        counts.global_bytes += bytes as u64;
        counts.sectors += last - first;
        counts.ideal_sectors += (bytes as u64).div_ceil(32);
        let mut buffer = None;
        for sector in first..last {
            buffer = self.memory.touch(sector, buffer);
        }
    }

    /// The bytes of a copy's parts in global memory now.
    fn gather_parts(&self, bulk: &Bulk, data: &mut [u8]) -> Checked<()> {
        for &(address, place, bytes) in &bulk.parts {
            let (index, offset) = self.memory.locate(address, bytes)?;
            data[place..place + bytes].copy_from_slice(&self.memory.buffers[index].data[offset..offset + bytes]);
        }
        Ok(())
    }

    fn start_fill(&mut self, warp: &Warp, lane: usize, mut bulk: Bulk, barrier: u64) -> Checked<()> {
        for &part in &bulk.parts {
            let (index, offset) = self.memory.locate(part.0, part.2)?;
            let buffer = &self.memory.buffers[index];
            if self.options.check_initialised && !buffer.written.contains_range(offset, part.2) {
                let message =
                    format!("copies {} bytes at offset {offset} of `{}` that nothing wrote", part.2, buffer.name);
                return Err(Violation::new(FaultKind::Uninitialised, message).address(part.0).buffer(&buffer.name));
            }
            if !buffer.history.is_empty() {
                for (address, _, bytes) in cut(part) {
                    let at = offset + (address - part.0) as usize;
                    self.check_global_read(warp, index, (1 << lane, bytes), |_| at, false)?;
                }
            }
        }
        let who = Self::who(warp, lane, false);
        for at in bulk.pieces() {
            self.block.shared.start_copy(at, PIECE, who)?;
        }
        let mut data = std::mem::take(&mut bulk.data);
        self.gather_parts(&bulk, &mut data)?;
        bulk.data = data;
        self.block.fills.push(Fill { bulk, barrier });
        Ok(())
    }

    /// Ends the copies that an mbarrier waits for.
    pub(super) fn end_fills(&mut self, barrier: u64) -> Checked<()> {
        let all = std::mem::take(&mut self.block.fills);
        let (ending, others) = all.into_iter().partition(|fill| fill.barrier == barrier);
        self.block.fills = others;
        let ending: Vec<Fill> = ending;
        for Fill { bulk, .. } in ending {
            let mut now = vec![0; bulk.data.len()];
            self.gather_parts(&bulk, &mut now)?;
            if let Some(place) = (0..now.len()).find(|&place| now[place] != bulk.data[place]) {
                let message = format!("byte {place} of a bulk copy's source was written while the copy was in flight");
                return fault(FaultKind::AsyncRegion, message);
            }
            let Some((thread, epoch)) = self.filled(barrier, now.len()) else { continue };
            for (at, piece) in bulk.pieces().zip(now.chunks_exact(PIECE)) {
                self.block.shared.end_copy(at, piece, thread, epoch);
            }
        }
        Ok(())
    }

    fn start_store(&mut self, warp: &mut Warp, lane: usize, mut bulk: Bulk) -> Checked<()> {
        let pieces = bulk.pieces();
        for (at, piece) in pieces.zip(bulk.data.chunks_exact_mut(PIECE)) {
            self.block.shared.start_async_read(at, PIECE, Self::who(warp, lane, false))?;
            piece.copy_from_slice(&self.block.shared.data[at..at + PIECE]);
        }
        warp.stores.push(PendingStore { bulk, lane, groups: 0, reads: true });
        Ok(())
    }

    /// Ends copies of all groups of some lanes but the latest `pending`; or only their reads of shared memory.
    pub(super) fn wait_stores(&mut self, warp: &mut Warp, mask: u32, pending: u32, read: bool) -> Checked<()> {
        let stores = std::mem::take(&mut warp.stores);
        for mut store in stores {
            if mask >> store.lane & 1 == 0 || store.groups <= pending {
                warp.stores.push(store);
                continue;
            }
            if std::mem::take(&mut store.reads) {
                for at in store.bulk.pieces() {
                    self.block.shared.end_async_read(at, PIECE, Self::who(warp, store.lane, false));
                }
            }
            if read {
                warp.stores.push(store);
            } else {
                self.end_store(warp, &store).map_err(|fault| fault.lane(store.lane))?;
            }
        }
        Ok(())
    }

    fn end_store(&mut self, warp: &Warp, store: &PendingStore) -> Checked<()> {
        for (address, place, bytes) in store.bulk.parts.iter().copied().flat_map(cut) {
            let (index, offset) = self.memory.locate(address, bytes)?;
            let data = &store.bulk.data[place..place + bytes];
            self.check_global_write(
                warp,
                index,
                (1 << store.lane, bytes),
                |_| offset,
                false,
                |machine, _| machine.memory.buffers[index].data[offset..offset + bytes] == *data,
            )?;
            let buffer = &mut self.memory.buffers[index];
            buffer.written.insert_range(offset, bytes);
            buffer.data[offset..offset + bytes].copy_from_slice(data);
        }
        Ok(())
    }

    /// The block ends: its copies must not need its shared memory any more, and those to global memory arrive.
    pub(super) fn end_block(&mut self, warps: &mut [Warp]) -> Checked<()> {
        let reads = warps.iter().any(|warp| warp.stores.iter().any(|store| store.reads) || !warp.products.is_empty());
        if reads || !self.block.fills.is_empty() {
            let message = "the block ends while an asynchronous copy or product still uses its shared memory";
            return fault(FaultKind::AsyncRegion, message.into());
        }
        for warp in warps {
            for store in std::mem::take(&mut warp.stores) {
                self.end_store(warp, &store)?;
            }
        }
        Ok(())
    }
}
