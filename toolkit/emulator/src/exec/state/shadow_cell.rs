//! A cell of the shadow of shared memory: the last write of its bytes, and the reads since then.

use super::lane_access::LaneAccess;
use super::shadow_fault::{in_flight, race};
use crate::fault::Checked;

/// Reads by lanes of one warp in one epoch. Epoch 0 means no reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reads {
    epoch: u32,
    mask: u32,
    warp: u16,
}

/// The shadow of a few bytes: the last write, and the reads since then that no later read replaces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub write_epoch: u32,
    pub writer: u16,
    strong_write: bool,
    strong_reads: bool,
    /// The thread whose asynchronous copy will write the cell, counted from one, or [`MBARRIER`]. 0 means neither.
    pub in_flight: u16,
    /// Reads of up to two warps. Factors of matrices are mostly read by two. The second entry is empty if the first one
    /// is.
    reads: [Reads; 2],
    /// The index of the set with the unordered reads of more than two warps, counted from one. 0 means that `reads` has
    /// all reads.
    more: u32,
}

impl Reads {
    /// Creates the reads of one lane.
    #[inline(always)]
    fn new(who: LaneAccess<'_>) -> Self {
        Self { epoch: who.epoch, mask: 1 << who.lane, warp: who.warp as u16 }
    }

    /// Returns whether these are reads by a warp.
    #[inline(always)]
    fn are_by(self, warp: usize) -> bool {
        self.epoch != 0 && usize::from(self.warp) == warp
    }

    /// Adds a read by the same warp.
    #[inline(always)]
    fn add(&mut self, who: LaneAccess<'_>) {
        if self.epoch != who.epoch && (self.epoch == 0 || reads_are_before(*self, who)) {
            *self = Self::new(who);
        } else {
            // The older epoch counts for both. This may hide a race, but never reports a false one.
            self.mask |= 1 << who.lane;
        }
    }
}

/// Sets of reads by several warps.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// The reads of each warp, one set after the other.
    list: Vec<Reads>,
    /// Unused sets, counted from one.
    free: Vec<u32>,
    /// The number of warps in the cluster.
    warps: usize,
}

impl Sets {
    /// Removes all sets. New sets have `warps` warps.
    pub fn reset(&mut self, warps: usize) {
        self.list.clear();
        self.free.clear();
        self.warps = warps;
    }

    /// Returns a copy of a cell. If its reads are in a set, the copy gets its own set.
    pub fn twin(&mut self, cell: &Cell) -> Cell {
        let mut twin = *cell;
        if cell.more != 0 {
            self.add(&mut twin);
            let (from, to) = (cell.more as usize - 1, twin.more as usize - 1);
            self.list.copy_within(from * self.warps..(from + 1) * self.warps, to * self.warps);
        }
        twin
    }

    /// Returns the reads of a cell that has a set.
    #[inline(always)]
    fn get(&mut self, cell: &Cell) -> &mut [Reads] {
        &mut self.list[(cell.more as usize - 1) * self.warps..][..self.warps]
    }

    /// Moves the reads of a cell to a new set.
    fn spill(&mut self, cell: &mut Cell) -> &mut [Reads] {
        let reads = std::mem::take(&mut cell.reads);
        let set = self.add(cell);
        reads.into_iter().filter(|reads| reads.epoch != 0).for_each(|reads| set[usize::from(reads.warp)] = reads);
        set
    }

    /// Gives a cell an empty set.
    fn add(&mut self, cell: &mut Cell) -> &mut [Reads] {
        cell.more = self.free.pop().unwrap_or_else(|| {
            self.list.resize(self.list.len() + self.warps, Reads::default());
            (self.list.len() / self.warps) as u32
        });
        let set = self.get(cell);
        set.fill(Reads::default());
        set
    }
}

/// Checks a write to a cell.
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
    let reads = if cell.more != 0 { &*sets.get(cell) } else { &cell.reads[..] };
    for &reads in reads {
        if reads.epoch != 0 && !reads_are_before(reads, who) {
            let own = if usize::from(reads.warp) == who.warp { 1 << who.lane } else { 0 };
            let other = usize::from(reads.warp) * 32 + (reads.mask & !own).trailing_zeros() as usize;
            return Err(race(at, bytes, (who.thread(), "writes"), (other, "read"), warps));
        }
    }
    Ok(())
}

/// Records a read of a cell.
#[inline(always)]
pub(super) fn note_read(cell: &mut Cell, sets: &mut Sets, who: LaneAccess<'_>) {
    let none = cell.reads[0].epoch == 0 && cell.more == 0;
    cell.strong_reads = who.strong && (none || cell.strong_reads);
    if none {
        cell.reads[0] = Reads::new(who);
    } else if cell.more != 0 {
        sets.get(cell)[who.warp].add(who);
    } else if cell.reads[0].are_by(who.warp) {
        cell.reads[0].add(who);
    } else if cell.reads[1].are_by(who.warp) {
        cell.reads[1].add(who);
    } else if reads_are_before(cell.reads[0], who) {
        cell.reads[0] = Reads::new(who);
    } else if cell.reads[1].epoch == 0 || reads_are_before(cell.reads[1], who) {
        cell.reads[1] = Reads::new(who);
    } else {
        sets.spill(cell)[who.warp].add(who);
    }
}

/// Records a read that ended some time ago.
pub(super) fn add_ended_read(cell: &mut Cell, sets: &mut Sets, thread: usize, epoch: u32) {
    let (warp, mask) = (thread / 32, 1 << (thread % 32));
    cell.strong_reads = false;
    let place = cell.reads.iter().position(|reads| reads.epoch == 0 || reads.are_by(warp));
    let reads = match place {
        _ if cell.more != 0 => &mut sets.get(cell)[warp],
        Some(place) => &mut cell.reads[place],
        None => &mut sets.spill(cell)[warp],
    };
    // The older epoch counts for both, as in `Reads::add`.
    let epoch = if reads.epoch == 0 { epoch } else { epoch.min(reads.epoch) };
    *reads = Reads { epoch, mask: reads.mask | mask, warp: warp as u16 };
}

/// Records a write to a cell.
#[inline(always)]
pub(super) fn put(cell: &mut Cell, sets: &mut Sets, thread: usize, epoch: u32, strong: bool) {
    if cell.more != 0 {
        sets.free.push(cell.more);
    }
    *cell = Cell { write_epoch: epoch, writer: thread as u16, strong_write: strong, ..Cell::default() };
}

/// Checks that no copy still writes a cell, and that the last write comes before the read.
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
fn reads_are_before(reads: Reads, who: LaneAccess<'_>) -> bool {
    let own = if usize::from(reads.warp) == who.warp { 1 << who.lane } else { 0 };
    let others = reads.mask & !own;
    others == 0 || who.view.knows_all(reads.warp.into(), others, reads.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::state::clock::{Gathering, View, WarpClock};
    use std::sync::Arc;

    fn by(warp: usize, view: &View) -> LaneAccess<'_> {
        LaneAccess { warp, lane: 3, epoch: 1, view, strong: false }
    }

    #[test]
    fn a_write_waits_for_the_reads_of_each_warp() {
        let nothing = Arc::new(View::new(6));
        for readers in 1..=4 {
            let (mut cell, mut sets) = (Cell::default(), Sets::default());
            sets.reset(5);
            (0..readers).chain(0..readers).for_each(|warp| note_read(&mut cell, &mut sets, by(warp, &nothing)));
            assert_eq!(cell.more != 0, readers > 2);
            let twin = sets.twin(&cell);
            for missing in 0..=readers {
                let mut gathered = Gathering::default();
                for warp in (0..readers).filter(|&warp| warp != missing) {
                    gathered.add(&mut WarpClock::new(warp, &nothing), 6, u32::MAX);
                }
                let view = gathered.take(6);
                for cell in [cell, twin] {
                    let result = check_write(&cell, &mut sets, (0, 16), by(4, &view), false, (5, 5));
                    assert_eq!(result.is_ok(), missing == readers, "{readers} readers without {missing}");
                }
            }
        }
    }
}
