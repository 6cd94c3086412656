//! Races on global memory: reads and writes of what another warp wrote in the same launch, with nothing to order them.
//!
//! Reads are not remembered: a write that should have waited for a read is seen in those orders in which it comes first.

use super::access::lanes;
use super::machine::Machine;
use super::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::history::{LINE, Write};
use std::rc::Rc;

/// The part of a request that lies in one line of a buffer.
struct Part {
    line: usize,
    bytes: u128,
    lanes: u32,
}

/// Calls `action` for runs of lanes that access one line; `offset` is a lane's place in the buffer.
#[inline(always)]
fn by_line(
    mask: u32,
    offset: impl Fn(usize) -> usize,
    bytes: usize,
    mut action: impl FnMut(Part) -> Checked<()>,
) -> Checked<()> {
    let whole = u128::MAX >> (LINE - bytes);
    let mut part = Part { line: 0, bytes: 0, lanes: 0 };
    for lane in lanes(mask) {
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

impl Machine<'_> {
    /// Whether a write comes before an access of some lanes.
    fn is_before(&self, warp: &Warp, mask: u32, strong: bool, write: &Write) -> bool {
        let (own_block, other) = (write.block == self.block.number, usize::from(write.warp));
        if own_block && other == warp.id || strong && write.strong {
            return true;
        }
        let mut last = None;
        lanes(mask).all(|lane| {
            let view = warp.clock.view(lane);
            let seen = last.replace(view).is_some_and(|last| Rc::ptr_eq(last, view));
            seen || if own_block {
                view.knows_all(other, write.lanes, write.epoch)
            } else {
                view.knows_other(write.block, other, write.lanes, write.epoch)
            }
        })
    }

    /// Checks a read of a buffer, already located.
    #[inline(always)]
    pub(super) fn check_global_read(
        &self,
        warp: &Warp,
        buffer: usize,
        (mask, bytes): (u32, usize),
        offset: impl Fn(usize) -> usize,
        strong: bool,
    ) -> Checked<()> {
        let history = &self.memory.buffers[buffer].history;
        if history.is_empty() {
            return Ok(());
        }
        by_line(mask, offset, bytes, |part| {
            match history.unordered(part.line, part.bytes, |write| self.is_before(warp, part.lanes, strong, write)) {
                Some(write) => Err(self.global_race(buffer, &part, "reads", write)),
                None => Ok(()),
            }
        })
    }

    /// Checks a write of a buffer, already located, and notes it. `same` says whether it leaves a line's bytes as they are,
    /// which is no race.
    #[inline(always)]
    pub(super) fn check_global_write(
        &mut self,
        warp: &Warp,
        buffer: usize,
        (mask, bytes): (u32, usize),
        offset: impl Fn(usize) -> usize,
        strong: bool,
        same: impl Fn(&Self, u32) -> bool,
    ) -> Checked<()> {
        if !self.options.check_global_races {
            return Ok(());
        }
        let (block, epoch, id) = (self.block.number, warp.clock.epoch, warp.id as u8);
        by_line(mask, offset, bytes, |part| {
            let history = &self.memory.buffers[buffer].history;
            // What an atomic wrote may be overwritten: whoever does has seen that the atomics are over.
            let is_before = |write: &Write| write.strong || self.is_before(warp, part.lanes, strong, write);
            let conflict = history.unordered(part.line, part.bytes, is_before);
            if let Some(write) = conflict
                && !same(self, part.lanes)
            {
                return Err(self.global_race(buffer, &part, "writes", write));
            }
            let write = Write { block, epoch, lanes: part.lanes, warp: id, strong };
            self.memory.buffers[buffer].history.record(part.line, part.bytes, write);
            Ok(())
        })
    }

    #[cold]
    fn global_race(&self, buffer: usize, part: &Part, does: &str, write: Write) -> Box<Violation> {
        let buffer = &self.memory.buffers[buffer];
        let offset = part.line * LINE + part.bytes.trailing_zeros() as usize;
        let (whose, order) = if write.block == self.block.number {
            (String::new(), "barrier")
        } else {
            (format!(" of block {:?}", self.shape.block_at(write.block.into())), "fence and atomic")
        };
        let message = format!(
            "{does} bytes from offset {offset} of `{}` that warp {}{whose} wrote in this launch, with no {order} between",
            buffer.name, write.warp
        );
        let fault = Violation::new(FaultKind::GlobalRace, message).lane(part.lanes.trailing_zeros() as usize);
        fault.address(buffer.base + offset as u64).buffer(&buffer.name)
    }
}
