//! The shadow of shared memory: which threads read and wrote each cell of it, and which copies are in flight.

use super::lane_access::LaneAccess;
use crate::fault::{Checked, FaultKind, Violation};

/// Stands in the place of a thread for an mbarrier that lives in the cell.
const MBARRIER: u16 = u16::MAX;

/// Reads by lanes of one warp in one epoch. Epoch 0 means that there were none.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    epoch: u32,
    mask: u32,
    warp: u16,
}

/// The shadow of a few bytes: the last write, and the reads since then that come before no other read.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    write_epoch: u32,
    writer: u16,
    strong_write: bool,
    strong_reads: bool,
    /// The thread whose asynchronous copy will write the cell, counted from one, or [`MBARRIER`]. 0 means neither.
    in_flight: u16,
    /// Asynchronous reads of the cell that have not ended.
    async_reads: u16,
    reads: Reads,
    /// Reads by several warps that nothing orders: the index of their set in the list of sets, counted from one. 0 means that
    /// `reads` has all.
    more: u32,
}

/// The shadow of shared memory.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    cells: Vec<Cell>,
    /// The binary logarithm of a cell's bytes. Cells have four bytes, until an access to fewer bytes splits all cells.
    shift: u32,
    /// Sets of reads, by warp.
    sets: Vec<Box<[Reads]>>,
    /// The warps of a block, and of its cluster.
    warps: (usize, usize),
    /// Sets that no cell uses, counted from one.
    free_sets: Vec<u32>,
}

impl Shadow {
    /// Makes it the shadow of so many bytes that nothing has accessed.
    pub fn reset(&mut self, bytes: usize, warps: (usize, usize)) {
        self.warps = warps;
        self.shift = 2;
        self.cells.clear();
        self.cells.resize(bytes / 4 + 1, Cell::default());
        self.sets.clear();
        self.free_sets.clear();
    }

    /// Splits cells until they are small enough for an access.
    #[inline(always)]
    fn refine(&mut self, bytes: usize) {
        while bytes < 1 << self.shift {
            self.shift -= 1;
            let mut finer = Vec::with_capacity(self.cells.len() * 2);
            for cell in std::mem::take(&mut self.cells) {
                finer.push(cell);
                let mut twin = cell;
                if cell.more != 0 {
                    self.sets.push(self.sets[cell.more as usize - 1].clone());
                    twin.more = self.sets.len() as u32;
                }
                finer.push(twin);
            }
            self.cells = finer;
        }
    }

    /// Checks and notes a read.
    #[inline(always)]
    pub fn read(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        self.refine(bytes);
        for index in at >> self.shift..(at + bytes) >> self.shift {
            check_readable(&self.cells[index], at, bytes, who, self.warps)?;
            self.note_read(index, who);
        }
        Ok(())
    }

    /// Checks and notes a write. `same` says that it leaves the bytes as they are, which is no race with another write.
    #[inline(always)]
    pub fn write(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>, same: bool) -> Checked<()> {
        self.refine(bytes);
        for index in at >> self.shift..(at + bytes) >> self.shift {
            self.check_write(index, at, bytes, who, same)?;
            self.put(index, who.thread(), who.epoch, who.strong);
        }
        Ok(())
    }

    /// Checks a write.
    fn check_write(&self, index: usize, at: usize, bytes: usize, who: LaneAccess<'_>, same: bool) -> Checked<()> {
        let cell = &self.cells[index];
        if cell.in_flight != 0 {
            return Err(in_flight(cell.in_flight, at, "writes", self.warps));
        }
        if cell.async_reads != 0 {
            return Err(async_read(at));
        }
        if !same && !write_is_before(cell, who) {
            return Err(race(at, bytes, (who.thread(), "writes"), (cell.writer.into(), "wrote"), self.warps));
        }
        if who.strong && cell.strong_reads {
            return Ok(());
        }
        let single = [cell.reads];
        let sets = if cell.more != 0 { &self.sets[cell.more as usize - 1][..] } else { &single[..] };
        for &reads in sets {
            if reads.epoch != 0 && !reads_are_before(reads, who) {
                let own = if usize::from(reads.warp) == who.warp { 1 << who.lane } else { 0 };
                let other = usize::from(reads.warp) * 32 + (reads.mask & !own).trailing_zeros() as usize;
                return Err(race(at, bytes, (who.thread(), "writes"), (other, "read"), self.warps));
            }
        }
        Ok(())
    }

    /// Notes a read.
    #[inline(always)]
    fn note_read(&mut self, index: usize, who: LaneAccess<'_>) {
        let cell = &mut self.cells[index];
        let reads = &mut cell.reads;
        let none = reads.epoch == 0 && cell.more == 0;
        cell.strong_reads = who.strong && (none || cell.strong_reads);
        if cell.more != 0 {
            add_read(&mut self.sets[cell.more as usize - 1], who);
        } else if usize::from(reads.warp) == who.warp && reads.epoch == who.epoch {
            reads.mask |= 1 << who.lane;
        } else if none || reads_are_before(*reads, who) {
            *reads = Reads { epoch: who.epoch, mask: 1 << who.lane, warp: who.warp as u16 };
        } else {
            let mut set = vec![Reads::default(); self.warps.1].into_boxed_slice();
            set[usize::from(reads.warp)] = *reads;
            add_read(&mut set, who);
            cell.more = match self.free_sets.pop() {
                Some(free) => {
                    self.sets[free as usize - 1] = set;
                    free
                }
                None => {
                    self.sets.push(set);
                    self.sets.len() as u32
                }
            };
        }
    }

    /// Notes a write.
    #[inline(always)]
    fn put(&mut self, index: usize, thread: usize, epoch: u32, strong: bool) {
        let cell = &mut self.cells[index];
        if cell.more != 0 {
            self.free_sets.push(cell.more);
        }
        *cell = Cell { write_epoch: epoch, writer: thread as u16, strong_write: strong, ..Cell::default() };
    }

    /// The cells of some bytes.
    fn cells(&mut self, at: usize, bytes: usize) -> &mut [Cell] {
        &mut self.cells[at >> self.shift..(at + bytes) >> self.shift]
    }

    /// Checks the start of an asynchronous copy to here, and notes that it is in flight.
    pub fn start_copy(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        for index in at >> self.shift..(at + bytes) >> self.shift {
            self.check_write(index, at, bytes, who, false)?;
            self.cells[index].in_flight = who.thread() as u16 + 1;
        }
        Ok(())
    }

    /// Notes the end of an asynchronous copy, as a write by a thread in an epoch.
    pub fn end_copy(&mut self, at: usize, bytes: usize, thread: usize, epoch: u32) {
        for index in at >> self.shift..(at + bytes) >> self.shift {
            self.put(index, thread, epoch, false);
        }
    }

    /// Checks that bytes which hold nothing are not the target of a copy in flight.
    #[cold]
    pub fn check_landed(&mut self, at: usize, bytes: usize) -> Checked<()> {
        let warps = self.warps;
        let flying = self.cells(at, bytes).iter().find(|cell| cell.in_flight != 0);
        flying.map_or(Ok(()), |cell| Err(in_flight(cell.in_flight, at, "reads", warps)))
    }

    /// Checks the start of an asynchronous read, and notes it.
    pub fn start_async_read(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        for index in at >> self.shift..(at + bytes) >> self.shift {
            let cell = &mut self.cells[index];
            check_readable(cell, at, bytes, who, self.warps)?;
            if cell.write_epoch != 0 && !who.view.is_proxied(cell.writer.into(), cell.write_epoch) {
                return Err(unproxied(at, cell.writer, self.warps));
            }
            cell.async_reads += 1;
        }
        Ok(())
    }

    /// Notes the end of an asynchronous read, as a read.
    pub fn end_async_read(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) {
        for index in at >> self.shift..(at + bytes) >> self.shift {
            self.cells[index].async_reads -= 1;
            self.note_read(index, who);
        }
    }

    /// Notes that an mbarrier lives here, or no longer does.
    pub fn set_mbarrier(&mut self, at: usize, exists: bool) {
        let mark = if exists { MBARRIER } else { 0 };
        self.cells(at, 8).iter_mut().for_each(|cell| cell.in_flight = mark);
    }
}

/// Checks that nothing still writes a cell, and that the last write comes before the read.
#[inline(always)]
fn check_readable(cell: &Cell, at: usize, bytes: usize, who: LaneAccess<'_>, warps: (usize, usize)) -> Checked<()> {
    if cell.in_flight != 0 {
        return Err(in_flight(cell.in_flight, at, "reads", warps));
    }
    if !write_is_before(cell, who) {
        return Err(race(at, bytes, (who.thread(), "reads"), (cell.writer.into(), "wrote"), warps));
    }
    Ok(())
}

#[inline(always)]
fn write_is_before(cell: &Cell, who: LaneAccess<'_>) -> bool {
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

fn add_read(set: &mut [Reads], who: LaneAccess<'_>) {
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

/// A thread, in words. `warps` are those of a block and of its cluster.
fn name(thread: usize, (block, cluster): (usize, usize)) -> String {
    let threads = block * 32;
    if cluster > block {
        format!("thread {} of block {} of the cluster", thread % threads, thread / threads)
    } else {
        format!("thread {thread}")
    }
}

#[cold]
fn race(
    at: usize,
    bytes: usize,
    (thread, does): (usize, &str),
    (other, did): (usize, &str),
    warps: (usize, usize),
) -> Box<Violation> {
    let (thread, other) = (name(thread, warps), name(other, warps));
    let message = format!(
        "{thread} {does} {bytes} bytes at offset {at:#x} of shared memory that {other} {did}, with no barrier between"
    );
    Violation::new(FaultKind::SharedRace, message).address(at as u64).buffer("shared memory")
}

#[cold]
fn in_flight(thread: u16, at: usize, does: &str, warps: (usize, usize)) -> Box<Violation> {
    if thread == MBARRIER {
        let message = format!("{does} offset {at:#x} of shared memory, where an mbarrier lives");
        return Violation::new(FaultKind::Mbarrier, message).address(at as u64).buffer("shared memory");
    }
    let message = format!(
        "{does} offset {at:#x} of shared memory while the asynchronous copy of {} still writes it: a wait is missing",
        name(usize::from(thread) - 1, warps)
    );
    Violation::new(FaultKind::AsyncRegion, message).address(at as u64).buffer("shared memory")
}

#[cold]
fn async_read(at: usize) -> Box<Violation> {
    let message = format!(
        "writes offset {at:#x} of shared memory while an asynchronous copy or product still reads it: a wait is missing"
    );
    Violation::new(FaultKind::AsyncRegion, message).address(at as u64).buffer("shared memory")
}

#[cold]
fn unproxied(at: usize, writer: u16, warps: (usize, usize)) -> Box<Violation> {
    let writer = name(writer.into(), warps);
    let message = format!(
        "an asynchronous copy or product reads offset {at:#x} of shared memory, which {writer} wrote, with no `fence.proxy.async` between"
    );
    Violation::new(FaultKind::MissingProxyFence, message).address(at as u64).buffer("shared memory")
}
