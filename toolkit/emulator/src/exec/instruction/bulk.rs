//! Starts of bulk and tensor copies between global and shared memory.

use super::bulk_store::start_store;
use super::cluster::on_block;
use super::early::check_early_copy;
use super::mbarrier::mbarrier_at;
use super::operand::{addresses, shared_addresses};
use super::race::{Request, check_global_read};
use super::space::{rank_of, shared_offset};
use super::traffic::count_bulk;
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::bulk::{BulkData, BulkPart, PIECE, PendingFill};
use crate::exec::state::lane_access::LaneAccess;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::{BulkCopy, BulkEnd, BulkSource};
use crate::tensor_map::{Swizzle, TensorMap};
use crate::window::{PARAMETER_WINDOW, RANK_SHIFT, WINDOW_BITS};

fn fault<T>(kind: FaultKind, message: String) -> Checked<T> {
    Err(Violation::new(kind, message))
}

/// Starts a copy for each lane.
pub(crate) fn bulk_copy(env: &mut BlockEnv<'_>, warp: &mut Warp, copy: &BulkCopy, mask: u32) -> Checked<()> {
    let shared = shared_addresses(warp, copy.shared);
    for lane in lanes(mask) {
        if is_repeated(warp, copy, &shared, mask, lane) {
            continue;
        }
        match &copy.end {
            BulkEnd::Shared { barrier, multicast } => {
                let barrier = shared_offset(addresses(&warp.registers, *barrier)[lane]);
                fill(env, warp, copy, lane, (shared[lane], barrier, *multicast))?;
            }
            BulkEnd::Global => {
                let bulk = plan(env, warp, copy, lane, shared[lane]).map_err(|fault| fault.lane(lane))?;
                start_store(env.block, warp, lane, bulk).map_err(|fault| fault.lane(lane))?;
            }
        }
    }
    Ok(())
}

/// Starts a lane's copy to shared memory of its own block, of another block in the cluster, or of several blocks.
fn fill(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    copy: &BulkCopy,
    lane: usize,
    (shared, barrier, multicast): (u64, u64, Option<u32>),
) -> Checked<()> {
    let (own, size) = (env.block.rank, env.launch.config.cluster_size());
    let (target, notified) = if size > 1 { (rank_of(shared), rank_of(barrier)) } else { (None, None) };
    let (target, notified) = (target.unwrap_or(own), notified.unwrap_or(own));
    if target != notified {
        let message = format!("a copy to block {target} of the cluster that notifies an mbarrier of block {notified}");
        return Err(Violation::new(FaultKind::Mbarrier, message).lane(lane));
    }
    let within = |at: u64| if size > 1 { at & ((1 << RANK_SHIFT) - 1) } else { at };
    let (shared, barrier) = (within(shared), within(barrier));
    let ranks = match multicast {
        Some(slot) => warp.registers.words[slot as usize][lane] & 0xffff,
        None => 1 << target,
    };
    if ranks >> size != 0 || ranks == 0 {
        let message = format!("a copy to blocks {ranks:#06x} of a cluster of {size}");
        return Err(Violation::new(FaultKind::OutOfBounds, message).lane(lane));
    }
    // The bytes are read only once, however many blocks receive them.
    let mut planned: Option<BulkData> = None;
    for rank in lanes(ranks) {
        let bulk = on_block(env, warp, (lane, rank, false), |env, warp| {
            let bulk = match planned.take() {
                None => plan(env, warp, copy, lane, shared)?,
                Some(bulk) => {
                    env.block.shared.locate_aligned(shared, bulk.data.len(), PIECE)?;
                    bulk
                }
            };
            mbarrier_at(env.launch, env.block, warp, lane, barrier)?;
            start_fill(env, warp, lane, bulk.clone(), barrier)?;
            Ok(bulk)
        });
        planned = Some(bulk.map_err(|fault| fault.lane(lane))?);
    }
    Ok(())
}

/// Returns whether an earlier lane stores the same tile. Such lanes make only one copy together.
fn is_repeated(warp: &Warp, copy: &BulkCopy, shared: &[u64; 32], mask: u32, lane: usize) -> bool {
    let (BulkEnd::Global, BulkSource::Tile { map, coordinates }) = (&copy.end, &copy.source) else { return false };
    let maps = addresses(&warp.registers, *map);
    let same = |slot: &u32, other: usize| {
        let word = &warp.registers.words[*slot as usize];
        word[lane] == word[other]
    };
    lanes(mask).take_while(|&other| other < lane).any(|other| {
        shared[lane] == shared[other] && maps[lane] == maps[other] && coordinates.iter().all(|slot| same(slot, other))
    })
}

/// Returns the bytes of a tensor map, in global memory or in the kernel's parameters.
fn map_bytes<'a>(env: &'a BlockEnv<'_>, address: u64) -> Checked<&'a [u8]> {
    if address >> WINDOW_BITS == PARAMETER_WINDOW >> WINDOW_BITS {
        let offset = (address - PARAMETER_WINDOW) as usize;
        let found = env.launch.parameters.get(offset..offset + TensorMap::BYTES);
        return found.ok_or_else(|| {
            let message = format!("a tensor map at offset {offset} of the kernel's parameters, beyond their end");
            Violation::new(FaultKind::OutOfBounds, message)
        });
    }
    let (buffer, offset) = env.memory.locate(address, TensorMap::BYTES)?;
    Ok(&env.memory.buffers[buffer].data[offset..offset + TensorMap::BYTES])
}

/// Plans a lane's copy and checks its addresses. Reads no bytes yet.
fn plan(env: &mut BlockEnv<'_>, warp: &Warp, copy: &BulkCopy, lane: usize, shared: u64) -> Checked<BulkData> {
    let source = &copy.source;
    let (swizzle, bytes, parts) = match source {
        BulkSource::Bytes { global, size } => {
            let (address, size) =
                (addresses(&warp.registers, *global)[lane], warp.registers.words[*size as usize][lane] as usize);
            if !address.is_multiple_of(16) || !size.is_multiple_of(PIECE) {
                let message = format!("a bulk copy of {size} bytes at {address:#x}: both must be multiples of 16");
                return fault(FaultKind::Misaligned, message);
            }
            (Swizzle::None, size, vec![BulkPart { address, place: 0, bytes: size }])
        }
        BulkSource::Tile { map, coordinates } => {
            let address = addresses(&warp.registers, *map)[lane];
            let bytes = map_bytes(env, address)?;
            let Some(map) = TensorMap::decode(bytes).filter(|map| map.tile.len() == coordinates.len()) else {
                let message = format!("there is no tensor map of {} dimensions at {address:#x}", coordinates.len());
                return fault(FaultKind::OutOfBounds, message);
            };
            if !address.is_multiple_of(64) {
                return fault(FaultKind::Misaligned, format!("a tensor map at {address:#x}, not a multiple of 64"));
            }
            let first: Vec<i32> =
                coordinates.iter().map(|&slot| warp.registers.words[slot as usize][lane] as i32).collect();
            let part = |(address, place, bytes)| BulkPart { address, place, bytes };
            (map.swizzle, map.tile_bytes(), map.parts(&first).into_iter().map(part).collect())
        }
    };
    // Tiles in shared memory must be aligned to 128 bytes.
    let align = if matches!(source, BulkSource::Tile { .. }) { 128 } else { PIECE };
    let at = env.block.shared.locate_aligned(shared, bytes, align)?;
    for &BulkPart { address, bytes, .. } in &parts {
        env.memory.locate(address, bytes)?;
        count_bulk(env.meter, env.memory, address, bytes);
        check_early_copy(env, warp, lane, address, (bytes, matches!(copy.end, BulkEnd::Global)))?;
    }
    Ok(BulkData { at, swizzle, data: vec![0; bytes], parts })
}

/// Starts a copy to shared memory, which notifies an mbarrier when it ends.
fn start_fill(env: &mut BlockEnv<'_>, warp: &Warp, lane: usize, mut bulk: BulkData, barrier: u64) -> Checked<()> {
    for &part in &bulk.parts {
        let (index, offset) = env.memory.locate(part.address, part.bytes)?;
        let buffer = &env.memory.buffers[index];
        if env.launch.options.check_initialised && !buffer.written.contains_range(offset, part.bytes) {
            let message =
                format!("copies {} bytes at offset {offset} of `{}` that nothing wrote", part.bytes, buffer.name);
            return Err(Violation::new(FaultKind::Uninitialised, message).address(part.address).buffer(&buffer.name));
        }
        if !buffer.history.is_empty() {
            for piece in part.cut() {
                let at = offset + (piece.address - part.address) as usize;
                let request = Request::for_lane(index, lane, piece.bytes, false);
                check_global_read(env, warp, request, |_| at)?;
            }
        }
    }
    let who = LaneAccess::new(&warp.clock, lane, false);
    for at in bulk.pieces() {
        env.block.shared.start_copy(at, PIECE, who)?;
    }
    let mut data = std::mem::take(&mut bulk.data);
    bulk.read_global(env.memory, &mut data)?;
    bulk.data = data;
    env.block.fills.push(PendingFill { bulk, barrier });
    Ok(())
}
