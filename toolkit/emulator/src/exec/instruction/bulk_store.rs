//! Bulk copies from shared to global memory. They end at the latest moment that the program allows: when their group is
//! waited for.

use super::cluster::check_visitors;
use super::race::{Request, check_global_write};
use crate::exec::state::block::BlockState;
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::bulk::{BulkData, BulkPart, PIECE, PendingStore};
use crate::exec::state::lane_access::LaneAccess;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};

/// Starts a copy from shared to global memory.
pub(crate) fn start_store(block: &mut BlockState, warp: &mut Warp, lane: usize, mut bulk: BulkData) -> Checked<()> {
    let pieces = bulk.pieces();
    // Bytes outside the tensor are read but never stored, so they may be unwritten.
    for part in &bulk.parts {
        let places = part.place..part.place + part.bytes;
        let unwritten =
            places.map(|place| bulk.swizzle.apply(bulk.at + place)).find(|&at| !block.shared.is_written(at, 1));
        if let Some(at) = unwritten {
            let message = format!("copies unwritten offset {at:#x} of shared memory to global memory");
            return Err(Violation::new(FaultKind::Uninitialised, message).address(at as u64).buffer("shared memory"));
        }
    }
    let reads = block.shared.start_async_reads(pieces.clone(), LaneAccess::new(&warp.clock, lane, false), true)?;
    for (at, piece) in pieces.zip(bulk.data.chunks_exact_mut(PIECE)) {
        piece.copy_from_slice(&block.shared.data[at..at + PIECE]);
    }
    warp.stores.push(PendingStore { bulk, lane, groups: 0, reads });
    Ok(())
}

/// Closes the groups of copies that some lanes have started.
pub(crate) fn commit_stores(warp: &mut Warp, mask: u32) {
    for store in warp.stores.iter_mut().filter(|store| mask >> store.lane & 1 == 1) {
        store.groups += 1;
    }
}

/// Ends all groups of copies of some lanes except the latest `pending`. With `read`, ends only their reads of shared
/// memory.
pub(crate) fn wait_stores(env: &mut BlockEnv<'_>, warp: &mut Warp, mask: u32, pending: u32, read: bool) -> Checked<()> {
    let stores = std::mem::take(&mut warp.stores);
    for mut store in stores {
        if mask >> store.lane & 1 == 0 || store.groups <= pending {
            warp.stores.push(store);
            continue;
        }
        let reads = std::mem::take(&mut store.reads);
        env.block.shared.end_async_reads(&reads, LaneAccess::new(&warp.clock, store.lane, false));
        if read {
            warp.stores.push(store);
        } else {
            end_store(env, warp, &store).map_err(|fault| fault.lane(store.lane))?;
        }
    }
    Ok(())
}

/// Ends a copy, whose bytes arrive in global memory.
fn end_store(env: &mut BlockEnv<'_>, warp: &Warp, store: &PendingStore) -> Checked<()> {
    for BulkPart { address, place, bytes } in store.bulk.parts.iter().copied().flat_map(BulkPart::cut) {
        let (index, offset) = env.memory.locate(address, bytes)?;
        let data = &store.bulk.data[place..place + bytes];
        let request = Request::for_lane(index, store.lane, bytes, false);
        check_global_write(env, warp, request, |_| offset, |old, _| old[offset..offset + bytes] == *data)?;
        env.memory.note_stored(index, address, bytes);
        let buffer = &mut env.memory.buffers[index];
        buffer.written.insert_range(offset, bytes);
        buffer.data[offset..offset + bytes].copy_from_slice(data);
    }
    Ok(())
}

/// Ends the copies of a block that ends. No copy may still need its shared memory. Copies to global memory complete.
pub(crate) fn end_block(env: &mut BlockEnv<'_>, warps: &mut [Warp]) -> Checked<()> {
    let reads =
        warps.iter().any(|warp| warp.stores.iter().any(|store| !store.reads.is_empty()) || !warp.products.is_empty());
    if reads || !env.block.fills.is_empty() {
        let message = "the block ends while an asynchronous copy or product still uses its shared memory";
        return Err(Violation::new(FaultKind::AsyncRegion, message));
    }
    check_visitors(env, warps)?;
    for warp in warps {
        for store in std::mem::take(&mut warp.stores) {
            end_store(env, warp, &store)?;
        }
    }
    Ok(())
}
