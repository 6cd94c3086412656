//! A cell of the shadow of shared memory: the last write of its bytes, and the reads since then.

use super::lane_access::LaneAccess;
use super::shadow_fault::{in_flight, race};
use crate::fault::Checked;

/// Reads by lanes of one warp in one epoch. Epoch 0 means that there were none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reads {
    epoch: u32,
    mask: u32,
    warp: u16,
}

/// The shadow of a few bytes: the last write, and the reads since then that come before no other read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub write_epoch: u32,
    pub writer: u16,
    strong_write: bool,
    strong_reads: bool,
    /// The thread whose asynchronous copy will write the cell, counted from one, or [`MBARRIER`]. 0 means neither.
    pub in_flight: u16,
    reads: Reads,
    /// Reads by several warps that nothing orders: the index of their set in the list of sets, counted from one. 0 means that
    /// `reads` has all.
    more: u32,
}

/// Sets of reads by several warps.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// The reads of each warp, set after set.
    list: Vec<Reads>,
    /// Sets that no cell uses, counted from one.
    free: Vec<u32>,
    /// The warps of the cluster.
    warps: usize,
}

impl Sets {
    /// Forgets all sets; new ones are of so many warps.
    pub fn reset(&mut self, warps: usize) {
        self.list.clear();
        self.free.clear();
        self.warps = warps;
    }

    /// A cell with the same reads, and a set of its own if they are in one.
    pub fn twin(&mut self, cell: &Cell) -> Cell {
        let mut twin = *cell;
        if cell.more != 0 {
            self.add(&mut twin);
            let (from, to) = (cell.more as usize - 1, twin.more as usize - 1);
            self.list.copy_within(from * self.warps..(from + 1) * self.warps, to * self.warps);
        }
        twin
    }

    /// The reads of a cell that has a set.
    #[inline(always)]
    fn of(&mut self, cell: &Cell) -> &mut [Reads] {
        &mut self.list[(cell.more as usize - 1) * self.warps..][..self.warps]
    }

    /// Gives a cell an empty set.
    fn add(&mut self, cell: &mut Cell) -> &mut [Reads] {
        cell.more = self.free.pop().unwrap_or_else(|| {
            self.list.resize(self.list.len() + self.warps, Reads::default());
            (self.list.len() / self.warps) as u32
        });
        let set = self.of(cell);
        set.fill(Reads::default());
        set
    }
}

/// Checks a write.
#[inline(always)]
pub(super) fn check_write(
    cell: &Cell,
    sets: &mut Sets,
    (at, bytes): (usize, usize),
    who: LaneAccess<'_>,
    same: bool,
    warps: (usize, usize),
) -> Checked<()> {
    if cell.in_flight != 0 {
        return Err(in_flight(cell.in_flight, at, "writes", warps));
    }
    if !same && !write_is_before(cell, who) {
        return Err(race(at, bytes, (who.thread(), "writes"), (cell.writer.into(), "wrote"), warps));
    }
    if who.strong && cell.strong_reads {
        return Ok(());
    }
    let single = [cell.reads];
    let reads = if cell.more != 0 { &*sets.of(cell) } else { &single[..] };
    for &reads in reads {
        if reads.epoch != 0 && !reads_are_before(reads, who) {
            let own = if usize::from(reads.warp) == who.warp { 1 << who.lane } else { 0 };
            let other = usize::from(reads.warp) * 32 + (reads.mask & !own).trailing_zeros() as usize;
            return Err(race(at, bytes, (who.thread(), "writes"), (other, "read"), warps));
        }
    }
    Ok(())
}

/// Notes a read.
#[inline(always)]
pub(super) fn note_read(cell: &mut Cell, sets: &mut Sets, who: LaneAccess<'_>) {
    let reads = &mut cell.reads;
    let none = reads.epoch == 0 && cell.more == 0;
    cell.strong_reads = who.strong && (none || cell.strong_reads);
    if cell.more != 0 {
        add_read(sets.of(cell), who);
    } else if usize::from(reads.warp) == who.warp && reads.epoch == who.epoch {
        reads.mask |= 1 << who.lane;
    } else if none || reads_are_before(*reads, who) {
        *reads = Reads { epoch: who.epoch, mask: 1 << who.lane, warp: who.warp as u16 };
    } else {
        let (first, set) = (*reads, sets.add(cell));
        set[usize::from(first.warp)] = first;
        add_read(set, who);
    }
}

/// Notes a read that has ended some time ago.
pub(super) fn add_ended_read(cell: &mut Cell, sets: &mut Sets, thread: usize, epoch: u32) {
    let (warp, mask) = (thread / 32, 1 << (thread % 32));
    let first = cell.reads;
    cell.strong_reads = false;
    let reads = if cell.more != 0 {
        &mut sets.of(cell)[warp]
    } else if first.epoch == 0 || usize::from(first.warp) == warp {
        &mut cell.reads
    } else {
        let set = sets.add(cell);
        set[usize::from(first.warp)] = first;
        &mut set[warp]
    };
    // The older epoch stands for both, as in `add_read`.
    let epoch = if reads.epoch == 0 { epoch } else { epoch.min(reads.epoch) };
    *reads = Reads { epoch, mask: reads.mask | mask, warp: warp as u16 };
}

/// Notes a write.
#[inline(always)]
pub(super) fn put(cell: &mut Cell, sets: &mut Sets, thread: usize, epoch: u32, strong: bool) {
    if cell.more != 0 {
        sets.free.push(cell.more);
    }
    *cell = Cell { write_epoch: epoch, writer: thread as u16, strong_write: strong, ..Cell::default() };
}

/// Checks that nothing still writes a cell, and that the last write comes before the read.
#[inline(always)]
pub(super) fn check_readable(
    cell: &Cell,
    at: usize,
    bytes: usize,
    who: LaneAccess<'_>,
    warps: (usize, usize),
) -> Checked<()> {
    if cell.in_flight != 0 {
        return Err(in_flight(cell.in_flight, at, "reads", warps));
    }
    if !write_is_before(cell, who) {
        return Err(race(at, bytes, (who.thread(), "reads"), (cell.writer.into(), "wrote"), warps));
    }
    Ok(())
}

#[inline(always)]
pub(super) fn write_is_before(cell: &Cell, who: LaneAccess<'_>) -> bool {
    cell.write_epoch == 0
        || usize::from(cell.writer) == who.thread()
        || who.view.knows(cell.writer.into(), cell.write_epoch)
        || (who.strong && cell.strong_write)
}

#[inline(always)]
pub(super) fn reads_are_before(reads: Reads, who: LaneAccess<'_>) -> bool {
    let own = if usize::from(reads.warp) == who.warp { 1 << who.lane } else { 0 };
    let others = reads.mask & !own;
    others == 0 || who.view.knows_all(reads.warp.into(), others, reads.epoch)
}

pub(super) fn add_read(set: &mut [Reads], who: LaneAccess<'_>) {
    let reads = &mut set[who.warp];
    if reads.epoch == who.epoch {
        reads.mask |= 1 << who.lane;
    } else if reads.epoch == 0 || reads_are_before(*reads, who) {
        *reads = Reads { epoch: who.epoch, mask: 1 << who.lane, warp: who.warp as u16 };
    } else {
        // The older epoch stands for both. That may hide a race, but never reports one that is none.
        reads.mask |= 1 << who.lane;
    }
}
