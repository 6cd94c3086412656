//! Races on global memory: unordered reads and writes of data that another warp wrote in the same launch.
//!
//! Reads are not recorded. A write that should wait for a read is found in any order that puts the write first.

use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::history::{LINE, Write};
use std::sync::Arc;

/// An access of some lanes to one buffer.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// The index of the buffer.
    pub buffer: usize,
    /// The lanes.
    pub mask: u32,
    /// Bytes of each lane.
    pub bytes: usize,
    /// Whether the access is atomic, volatile or relaxed.
    pub strong: bool,
    /// Whether all 32 lanes access contiguous bytes of the buffer, in order.
    pub in_a_row: bool,
}

impl Request {
    /// Creates the request of one lane.
    pub fn for_lane(buffer: usize, lane: usize, bytes: usize, strong: bool) -> Self {
        Self { buffer, mask: 1 << lane, bytes, strong, in_a_row: false }
    }
}

/// The part of a request that is in one line of a buffer.
struct Part {
    line: usize,
    bytes: u128,
    lanes: u32,
}

/// Calls `action` for runs of lanes that access one line. `offset` gives a lane's offset in the buffer.
#[inline(always)]
fn by_line(
    request: Request,
    offset: impl Fn(usize) -> usize,
    mut action: impl FnMut(Part) -> Checked<()>,
) -> Checked<()> {
    if request.in_a_row {
        let start = offset(0);
        let (mut from, end) = (start, start + 32 * request.bytes);
        while from < end {
            let line = from / LINE;
            let to = end.min((line + 1) * LINE);
            let (first, last) = ((from - start) / request.bytes, (to - start) / request.bytes - 1);
            let bytes = u128::MAX >> (LINE - (to - from)) << (from % LINE);
            action(Part { line, bytes, lanes: u32::MAX >> (31 - (last - first)) << first })?;
            from = to;
        }
        return Ok(());
    }
    let whole = u128::MAX >> (LINE - request.bytes);
    let mut part = Part { line: 0, bytes: 0, lanes: 0 };
    for lane in lanes(request.mask) {
        let at = offset(lane);
        if at / LINE != part.line && part.lanes != 0 {
            action(std::mem::replace(&mut part, Part { line: 0, bytes: 0, lanes: 0 }))?;
        }
        part.line = at / LINE;
        part.bytes |= whole << (at % LINE);
        part.lanes |= 1 << lane;
    }
    if part.lanes == 0 { Ok(()) } else { action(part) }
}

/// Returns whether a write comes before an access of some lanes, or cannot race with it.
fn is_before(env: &BlockEnv<'_>, warp: &Warp, mask: u32, strong: bool, write: &Write) -> bool {
    let (own_block, other) = (write.block == env.block.number, usize::from(write.warp));
    if own_block && other == warp.clock.warp || strong && write.strong {
        return true;
    }
    let mut last = None;
    lanes(mask).all(|lane| {
        let view = warp.clock.view(lane);
        let seen = last.replace(view).is_some_and(|last| Arc::ptr_eq(last, view));
        seen || if own_block {
            view.knows_all(other, write.lanes, write.epoch)
        } else {
            view.knows_other(write.block, other, write.lanes, write.epoch)
        }
    })
}

/// Checks a read of a buffer for races. Its bounds are already checked.
#[inline(always)]
pub(crate) fn check_global_read(
    env: &BlockEnv<'_>,
    warp: &Warp,
    request: Request,
    offset: impl Fn(usize) -> usize,
) -> Checked<()> {
    let history = &env.memory.buffers[request.buffer].history;
    if history.is_empty() {
        return Ok(());
    }
    by_line(request, offset, |part| {
        match history.unordered(part.line, part.bytes, |write| is_before(env, warp, part.lanes, request.strong, write))
        {
            Some(write) => Err(global_race(env, request.buffer, &part, "reads", write)),
            None => Ok(()),
        }
    })
}

/// Checks a write of a buffer for races, and records it. Its bounds are already checked.
///
/// `same` gets the buffer's bytes and some lanes. It returns whether these lanes leave the bytes unchanged, which is
/// not a race.
#[inline(always)]
pub(crate) fn check_global_write(
    env: &mut BlockEnv<'_>,
    warp: &Warp,
    request: Request,
    offset: impl Fn(usize) -> usize,
    same: impl Fn(&[u8], u32) -> bool,
) -> Checked<()> {
    if !env.launch.options.check_global_races {
        return Ok(());
    }
    let (block, epoch, id) = (env.block.number, warp.clock.epoch, warp.clock.warp as u16);
    by_line(request, offset, |part| {
        let history = &env.memory.buffers[request.buffer].history;
        // A write may overwrite the result of an atomic, because the thread has then seen that the atomics are over.
        let is_before = |write: &Write| write.strong || is_before(env, warp, part.lanes, request.strong, write);
        let conflict = history.unordered(part.line, part.bytes, is_before);
        if let Some(write) = conflict
            && !same(&env.memory.buffers[request.buffer].data, part.lanes)
        {
            return Err(global_race(env, request.buffer, &part, "writes", write));
        }
        let write = Write { block, epoch, lanes: part.lanes, warp: id, strong: request.strong };
        env.memory.buffers[request.buffer].history.record(part.line, part.bytes, write);
        Ok(())
    })
}

#[cold]
fn global_race(env: &BlockEnv<'_>, buffer: usize, part: &Part, does: &str, write: Write) -> Box<Violation> {
    let buffer = &env.memory.buffers[buffer];
    let offset = part.line * LINE + part.bytes.trailing_zeros() as usize;
    let own = u64::from(write.block).checked_sub(env.launch.first_block.into());
    let (warp, rank) = (usize::from(write.warp) % env.launch.warps(), usize::from(write.warp) / env.launch.warps());
    let (whose, order) = if write.block == env.block.number && rank == env.block.rank {
        ("wrote in this launch".to_string(), "barrier")
    } else if let Some(index) = own.filter(|&index| index < env.launch.config.blocks()) {
        let block = env.launch.config.block_at(index / env.launch.config.cluster_size() as u64, rank);
        (format!("of block {block:?} wrote in this launch"), "fence and atomic")
    } else {
        ("of another launch, which was not over, wrote".to_string(), "fence and flag for the whole system")
    };
    let message = format!(
        "{does} bytes from offset {offset} of `{}` that warp {warp} {whose}, with no {order} between",
        buffer.name
    );
    let fault = Violation::new(FaultKind::GlobalRace, message).lane(part.lanes.trailing_zeros() as usize);
    fault.address(buffer.base + offset as u64).buffer(&buffer.name)
}
