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

/// Sets of reads by several warps.
#[derive(Debug, Default)]
struct Sets {
    /// Sets of reads, by warp.
    list: Vec<Box<[Reads]>>,
    /// Sets that no cell uses, counted from one.
    free: Vec<u32>,
}

impl Sets {
    /// The reads of a cell that has a set.
    fn of(&mut self, cell: &Cell) -> &mut [Reads] {
        &mut self.list[cell.more as usize - 1]
    }

    /// Adds a set, and gives its number.
    fn add(&mut self, set: Box<[Reads]>) -> u32 {
        if let Some(free) = self.free.pop() {
            self.list[free as usize - 1] = set;
            return free;
        }
        self.list.push(set);
        self.list.len() as u32
    }
}

/// The binary logarithm of a page's bytes.
const PAGE_BITS: usize = 8;
/// The binary logarithm of the most bytes of a cell.
const COARSE: usize = 4;

/// The shadow of a page.
#[derive(Debug, Default)]
struct Page {
    cells: Vec<Cell>,
    /// The binary logarithm of a cell's bytes. Cells are as large as they can be, until an access to fewer bytes splits all of
    /// the page.
    shift: usize,
}

impl Page {
    /// The cells of the bytes from one place in the page to another.
    #[inline(always)]
    fn cells(&mut self, sets: &mut Sets, from: usize, to: usize) -> &mut [Cell] {
        while (from | to) & ((1 << self.shift) - 1) != 0 {
            self.split(sets);
        }
        &mut self.cells[from >> self.shift..to >> self.shift]
    }

    /// Splits all cells in two.
    #[cold]
    fn split(&mut self, sets: &mut Sets) {
        self.shift -= 1;
        let mut finer = Vec::with_capacity(self.cells.len() * 2);
        for cell in std::mem::take(&mut self.cells) {
            let mut twin = cell;
            if cell.more != 0 {
                let set = sets.of(&cell).into();
                twin.more = sets.add(set);
            }
            finer.extend([cell, twin]);
        }
        self.cells = finer;
    }
}

/// The shadow of shared memory.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    pages: Vec<Page>,
    sets: Sets,
    /// The warps of a block, and of its cluster.
    warps: (usize, usize),
}

impl Shadow {
    /// Makes it the shadow of so many bytes that nothing has accessed.
    pub fn reset(&mut self, bytes: usize, warps: (usize, usize)) {
        self.warps = warps;
        self.pages.resize_with((bytes >> PAGE_BITS) + 1, Page::default);
        for page in &mut self.pages {
            page.shift = COARSE;
            page.cells.clear();
            page.cells.resize(1 << (PAGE_BITS - COARSE), Cell::default());
        }
        self.sets.list.clear();
        self.sets.free.clear();
    }

    /// Does something with each cell of some bytes.
    #[inline(always)]
    fn each(
        &mut self,
        at: usize,
        bytes: usize,
        mut action: impl FnMut(&mut Cell, &mut Sets) -> Checked<()>,
    ) -> Checked<()> {
        let (mut from, end) = (at, at + bytes);
        while from < end {
            let page = from >> PAGE_BITS;
            let (start, to) = (page << PAGE_BITS, end.min((page + 1) << PAGE_BITS));
            let cells = self.pages[page].cells(&mut self.sets, from - start, to - start);
            for cell in cells {
                action(cell, &mut self.sets)?;
            }
            from = to;
        }
        Ok(())
    }

    /// The same where nothing can go wrong.
    #[inline(always)]
    fn all(&mut self, at: usize, bytes: usize, mut action: impl FnMut(&mut Cell, &mut Sets)) {
        // It never fails.
        let _ = self.each(at, bytes, |cell, sets| {
            action(cell, sets);
            Ok(())
        });
    }

    /// Checks and notes a read.
    #[inline(always)]
    pub fn read(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        let warps = self.warps;
        self.each(at, bytes, |cell, sets| {
            check_readable(cell, at, bytes, who, warps)?;
            note_read(cell, sets, who, warps);
            Ok(())
        })
    }

    /// Checks and notes a write. `same` says that it leaves the bytes as they are, which is no race with another write.
    #[inline(always)]
    pub fn write(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>, same: bool) -> Checked<()> {
        let warps = self.warps;
        self.each(at, bytes, |cell, sets| {
            check_write(cell, sets, (at, bytes), who, same, warps)?;
            put(cell, sets, who.thread(), who.epoch, who.strong);
            Ok(())
        })
    }

    /// Checks the start of an asynchronous copy to here, and notes that it is in flight.
    pub fn start_copy(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        let warps = self.warps;
        self.each(at, bytes, |cell, sets| {
            check_write(cell, sets, (at, bytes), who, false, warps)?;
            cell.in_flight = who.thread() as u16 + 1;
            Ok(())
        })
    }

    /// Notes the end of an asynchronous copy, as a write by a thread in an epoch.
    pub fn end_copy(&mut self, at: usize, bytes: usize, thread: usize, epoch: u32) {
        self.all(at, bytes, |cell, sets| put(cell, sets, thread, epoch, false));
    }

    /// Checks that bytes which hold nothing are not the target of a copy in flight.
    #[cold]
    pub fn check_landed(&mut self, at: usize, bytes: usize) -> Checked<()> {
        let warps = self.warps;
        self.each(at, bytes, |cell, _| match cell.in_flight {
            0 => Ok(()),
            flying => Err(in_flight(flying, at, "reads", warps)),
        })
    }

    /// Checks the start of an asynchronous read, and notes it.
    pub fn start_async_read(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        let warps = self.warps;
        self.each(at, bytes, |cell, _| {
            check_readable(cell, at, bytes, who, warps)?;
            if cell.write_epoch != 0 && !who.view.is_proxied(cell.writer.into(), cell.write_epoch) {
                return Err(unproxied(at, cell.writer, warps));
            }
            cell.async_reads += 1;
            Ok(())
        })
    }

    /// Notes the end of an asynchronous read, as a read.
    pub fn end_async_read(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) {
        let warps = self.warps;
        self.all(at, bytes, |cell, sets| {
            cell.async_reads -= 1;
            note_read(cell, sets, who, warps);
        });
    }

    /// Notes that an mbarrier lives here, or no longer does.
    pub fn set_mbarrier(&mut self, at: usize, exists: bool) {
        let mark = if exists { MBARRIER } else { 0 };
        self.all(at, 8, |cell, _| cell.in_flight = mark);
    }
}

/// Checks a write.
#[inline(always)]
fn check_write(
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
    if cell.async_reads != 0 {
        return Err(async_read(at));
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
fn note_read(cell: &mut Cell, sets: &mut Sets, who: LaneAccess<'_>, warps: (usize, usize)) {
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
        let mut set = vec![Reads::default(); warps.1].into_boxed_slice();
        set[usize::from(reads.warp)] = *reads;
        add_read(&mut set, who);
        cell.more = sets.add(set);
    }
}

/// Notes a write.
#[inline(always)]
fn put(cell: &mut Cell, sets: &mut Sets, thread: usize, epoch: u32, strong: bool) {
    if cell.more != 0 {
        sets.free.push(cell.more);
    }
    *cell = Cell { write_epoch: epoch, writer: thread as u16, strong_write: strong, ..Cell::default() };
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
