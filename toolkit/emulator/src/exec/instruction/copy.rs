//! `cp.async`: a thread's copies from global to shared memory, and mbarriers that wait for them.

use super::early::check_early;
use super::global::{common_buffer, in_a_row};
use super::operand::{addresses, shared_addresses};
use super::race::{Request, check_global_read};
use super::traffic::count_global;
use crate::exec::state::block::BlockState;
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::copy::PendingCopy;
use crate::exec::state::lane_access::LaneAccess;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::memory::Memory;
use crate::program::AsyncCopy;

/// Starts a copy for each lane.
pub(crate) fn start_copy(env: &mut BlockEnv<'_>, warp: &mut Warp, copy: &AsyncCopy, mask: u32) -> Checked<()> {
    // A generic address of shared memory is accepted as well.
    let (target, source) = (shared_addresses(warp, copy.target), addresses(&warp.registers, copy.source));
    let bytes = copy.bytes as usize;
    let source_bytes = |warp: &Warp, lane: usize| match copy.source_bytes {
        Some(slot) => warp.registers.words[slot as usize][lane].min(copy.bytes),
        None => copy.bytes,
    };
    // A copy that only fills with zeros reads no memory.
    let reading = match copy.source_bytes {
        Some(_) => lanes(mask).filter(|&lane| source_bytes(warp, lane) != 0).fold(0, |all, lane| all | 1 << lane),
        None => mask,
    };
    let row = in_a_row(reading, &source, bytes);
    let common = common_buffer(env.memory, reading, &source, bytes, row);
    count_global(env.meter, env.memory, reading, &source, bytes, ((common, row), false));
    check_early(env, warp, reading, &source, (bytes, false))?;
    if let Some(buffer) =
        common.filter(|&buffer| copy.source_bytes.is_none() && is_readable(env, buffer, mask, &source, bytes))
    {
        return start_whole_copies(env, warp, copy, mask, (buffer, &source), &target);
    }
    for lane in lanes(mask) {
        let source_bytes = source_bytes(warp, lane);
        let offset = env.block.shared.locate(target[lane], bytes).map_err(|fault| fault.lane(lane))?;
        let who = LaneAccess::new(&warp.clock, lane, false);
        env.block.shared.start_copy(offset, bytes, who).map_err(|fault| fault.lane(lane))?;
        if source[lane] & (bytes as u64 - 1) != 0 {
            let message = format!("{bytes} bytes at {:#x}: not a multiple of {bytes}", source[lane]);
            return Err(Violation::new(FaultKind::Misaligned, message).lane(lane).address(source[lane]));
        }
        let (mut before, mut buffer_index) = ([0; 16], 0);
        if source_bytes != 0 {
            let count = source_bytes as usize;
            let (index, at) = match common {
                Some(index) => (index, (source[lane] - env.memory.buffers[index].base) as usize),
                None => env.memory.locate(source[lane], count).map_err(|fault| fault.lane(lane))?,
            };
            let buffer = &env.memory.buffers[index];
            if env.launch.options.check_initialised && !buffer.written.contains_range(at, count) {
                let message = format!("{count} bytes at offset {at} of `{}` that nothing wrote", buffer.name);
                let fault = Violation::new(FaultKind::Uninitialised, message).lane(lane).address(source[lane]);
                return Err(fault.buffer(&buffer.name));
            }
            (before, buffer_index) = (read(&buffer.data, at, count), index as u32);
            check_global_read(env, warp, Request::for_lane(index, lane, count, false), |_| at)?;
        }
        let (source, bytes, source_bytes, lane) = (source[lane], copy.bytes as u8, source_bytes as u8, lane as u8);
        let (target, buffer) = (offset as u32, buffer_index);
        warp.copies.push(PendingCopy { target, source, buffer, bytes, source_bytes, lane, before });
    }
    Ok(())
}

/// Returns whether a read of bytes in a buffer needs no more checks.
#[inline(always)]
fn is_readable(env: &BlockEnv<'_>, buffer: usize, mask: u32, source: &[u64; 32], bytes: usize) -> bool {
    let buffer = &env.memory.buffers[buffer];
    let is_written = |lane: usize| buffer.written.contains_small((source[lane] - buffer.base) as usize, bytes);
    buffer.history.is_empty() && (!env.launch.options.check_initialised || lanes(mask).all(is_written))
}

/// Starts copies that each read all their bytes from one buffer and need no more checks.
#[inline(always)]
fn start_whole_copies(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    copy: &AsyncCopy,
    mask: u32,
    (buffer, source): (usize, &[u64; 32]),
    target: &[u64; 32],
) -> Checked<()> {
    let (memory, bytes) = (&env.memory.buffers[buffer], copy.bytes as usize);
    // All loads of memory come first. The CPU then waits for them together.
    warp.copies.extend(lanes(mask).map(|lane| PendingCopy {
        target: target[lane] as u32,
        source: source[lane],
        buffer: buffer as u32,
        bytes: bytes as u8,
        source_bytes: bytes as u8,
        lane: lane as u8,
        before: read(&memory.data, (source[lane] - memory.base) as usize, bytes),
    }));
    let who = LaneAccess::by_lane(&warp.clock, false);
    for lane in lanes(mask) {
        let target = env.block.shared.locate(target[lane], bytes).map_err(|fault| fault.lane(lane))?;
        env.block.shared.start_copy(target, bytes, who(lane)).map_err(|fault| fault.lane(lane))?;
    }
    Ok(())
}

/// Reads up to sixteen bytes of a buffer, followed by zeros.
#[inline(always)]
fn read(data: &[u8], at: usize, count: usize) -> [u8; 16] {
    let data = &data[at..at + count];
    if let Some(whole) = data.as_array() {
        return *whole;
    }
    let mut bytes = [0; 16];
    bytes[..count].copy_from_slice(data);
    bytes
}

/// Closes the current group of copies.
pub(crate) fn commit_copies(warp: &mut Warp) {
    let group = std::mem::take(&mut warp.copies);
    warp.groups.push_back(group);
    warp.closed_groups += 1;
}

/// Ends all groups of copies except the latest `pending`. `None` also ends the copies that are in no group yet.
///
/// Copies end no earlier than this, so that a missing wait shows.
pub(crate) fn wait_copies(env: &mut BlockEnv<'_>, warp: &mut Warp, pending: Option<u32>) -> Checked<()> {
    if pending.is_none() {
        commit_copies(warp);
    }
    let ended = warp.closed_groups.saturating_sub(pending.unwrap_or(0).into());
    for index in 0..env.block.arrivals.len() {
        if env.block.arrivals[index].warp == warp.id {
            end_tracked(env.block, env.memory, index, |group| group < ended)?;
        }
    }
    while warp.groups.len() > pending.unwrap_or(0) as usize {
        let mut group = warp.groups.pop_front().unwrap_or_default();
        for copy in group.drain(..) {
            let writer = (warp.clock.warp * 32 + usize::from(copy.lane), warp.clock.epoch);
            end_copy(env.block, env.memory, copy, writer)?;
        }
        // The next group reuses this group's memory.
        if warp.copies.capacity() == 0 {
            warp.copies = group;
        }
    }
    Ok(())
}

/// Ends a copy, which counts as a write by a thread in an epoch.
fn end_copy(block: &mut BlockState, memory: &Memory, copy: PendingCopy, (thread, epoch): (usize, u32)) -> Checked<()> {
    let mut data = [0; 16];
    let (count, lane) = (copy.source_bytes as usize, usize::from(copy.lane));
    if count != 0 {
        // Usually the source is still in the buffer from the start of the copy.
        let (index, at) = match memory.offset_in(copy.buffer as usize, copy.source, count) {
            Some(at) => (copy.buffer as usize, at),
            None => memory.locate(copy.source, count).map_err(|fault| fault.lane(lane))?,
        };
        data = read(&memory.buffers[index].data, at, count);
        if data != copy.before {
            let name = &memory.buffers[index].name;
            let message = format!(
                "{count} bytes at offset {at} of `{name}` were written while an asynchronous copy still read them"
            );
            let fault = Violation::new(FaultKind::AsyncRegion, message).lane(lane).address(copy.source);
            return Err(fault.buffer(name));
        }
    }
    block.shared.end_copy(copy.target as usize, &data[..copy.bytes.into()], thread, epoch);
    Ok(())
}

/// Ends the copies of an arrival whose groups `ends` accepts. Also ends such copies of earlier arrivals by the same
/// thread.
fn end_tracked(block: &mut BlockState, memory: &Memory, index: usize, ends: impl Fn(u64) -> bool) -> Checked<()> {
    let thread = block.arrivals[index].writer.0;
    for earlier in 0..=index {
        if block.arrivals[earlier].writer.0 != thread {
            continue;
        }
        let writer = block.arrivals[earlier].writer;
        let copies: Vec<_> = block.arrivals[earlier].copies.extract_if(.., |(group, _)| ends(*group)).collect();
        copies.into_iter().try_for_each(|(_, copy)| end_copy(block, memory, copy, writer))?;
    }
    Ok(())
}

/// Performs arrivals that wait for copies, if the mbarrier's phase lacks no other arrivals. It may lack bytes.
pub(crate) fn end_arrivals(block: &mut BlockState, memory: &Memory, clocks: usize, at: u64) -> Checked<()> {
    let waiting = block.arrivals.iter().filter(|arrival| arrival.barrier == at).count();
    let Some(barrier) = block.mbarriers.get(&at) else { return Ok(()) };
    let phase = barrier.phase;
    if waiting == 0 || barrier.pending as usize > waiting {
        return Ok(());
    }
    while let Some(index) = block.arrivals.iter().position(|arrival| arrival.barrier == at) {
        end_tracked(block, memory, index, |_| true)?;
        let Some(barrier) = block.mbarriers.get_mut(&at).filter(|barrier| barrier.phase == phase) else { break };
        if barrier.pending == 0 {
            break;
        }
        barrier.pending -= 1;
        barrier.step(clocks);
        block.events += 1;
        block.arrivals.remove(index);
    }
    Ok(())
}
