//! The shadow of shared memory: which threads read and wrote each cell of it, and which copies are in flight.

use super::async_reads::{AsyncReads, Region};
use super::lane_access::LaneAccess;
use super::shadow_cell::{Cell, Sets, add_ended_read, check_readable, check_write, note_read, put, write_is_before};
use super::shadow_fault::{MBARRIER, async_read, in_flight, race, unproxied};
use crate::fault::Checked;

/// The binary logarithm of the bytes of a page.
const PAGE_BITS: usize = 8;
/// The binary logarithm of the most bytes of a cell.
const COARSE: usize = 4;

/// The shadow of a page.
#[derive(Debug, Default)]
struct Page {
    cells: Vec<Cell>,
    /// The binary logarithm of a cell's bytes. Cells start at the largest size. An access to fewer bytes splits all
    /// cells of the page.
    shift: usize,
}

impl Page {
    /// Returns the cells between two offsets in the page. Splits the cells first if they are too large.
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
            let twin = sets.twin(&cell);
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
    async_reads: AsyncReads,
    /// The number of warps in a block, and in its cluster.
    warps: (usize, usize),
}

impl Shadow {
    /// Resets the shadow for `bytes` bytes without any accesses.
    pub fn reset(&mut self, bytes: usize, warps: (usize, usize)) {
        self.warps = warps;
        self.pages.resize_with((bytes >> PAGE_BITS) + 1, Page::default);
        for page in &mut self.pages {
            page.shift = COARSE;
            page.cells.clear();
            page.cells.resize(1 << (PAGE_BITS - COARSE), Cell::default());
        }
        self.sets.reset(warps.1);
        self.async_reads.reset(bytes);
    }

    /// Calls `action` for each cell of some bytes.
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

    /// Calls `action`, which cannot fail, for each cell of some bytes.
    #[inline(always)]
    fn all(&mut self, at: usize, bytes: usize, mut action: impl FnMut(&mut Cell, &mut Sets)) {
        // The closure never fails.
        let _ = self.each(at, bytes, |cell, sets| {
            action(cell, sets);
            Ok(())
        });
    }

    /// Returns the cell of some bytes, if they are exactly one cell.
    #[inline(always)]
    fn only_cell(&mut self, at: usize, bytes: usize) -> Option<(&mut Cell, &mut Sets)> {
        let page = &mut self.pages[at >> PAGE_BITS];
        let cell = (at & ((1 << PAGE_BITS) - 1)) >> page.shift;
        if bytes == 1 << page.shift { Some((&mut page.cells[cell], &mut self.sets)) } else { None }
    }

    /// Checks and records a read.
    #[inline(always)]
    pub fn read(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        if let Some((cell, sets)) = self.only_cell(at, bytes)
            && cell.in_flight == 0
            && write_is_before(cell, who)
        {
            note_read(cell, sets, who);
            return Ok(());
        }
        self.read_cells(at, bytes, who)
    }

    /// Checks and records a read of any cells.
    #[inline(never)]
    fn read_cells(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        let warps = self.warps;
        self.each(at, bytes, |cell, sets| {
            check_readable(cell, at, bytes, who, warps)?;
            note_read(cell, sets, who);
            Ok(())
        })
    }

    /// Checks and records a write. `same` says that it does not change the bytes, so that it does not race with another
    /// write.
    #[inline(always)]
    pub fn write(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>, same: bool) -> Checked<()> {
        let (warps, read) = (self.warps, !self.async_reads.is_empty(at));
        if read {
            self.check_landed_reads(at, bytes)?;
        }
        self.each(at, bytes, |cell, sets| {
            check_write(cell, sets, (at, bytes), who, same, warps)?;
            put(cell, sets, who.thread(), who.epoch, who.strong);
            Ok(())
        })?;
        if read {
            self.check_async_reads(at, bytes, who)?;
            self.async_reads.remove(at, bytes);
        }
        Ok(())
    }

    /// Checks the start of an asynchronous copy to some bytes, and records that it is in flight.
    #[inline(always)]
    pub fn start_copy(&mut self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        let (warps, read) = (self.warps, !self.async_reads.is_empty(at));
        if !read && let Some((cell, sets)) = self.only_cell(at, bytes) {
            check_write(cell, sets, (at, bytes), who, false, warps)?;
            cell.in_flight = who.thread() as u16 + 1;
            return Ok(());
        }
        if read {
            self.check_landed_reads(at, bytes)?;
        }
        self.each(at, bytes, |cell, sets| {
            check_write(cell, sets, (at, bytes), who, false, warps)?;
            cell.in_flight = who.thread() as u16 + 1;
            Ok(())
        })?;
        if read { self.check_async_reads(at, bytes, who) } else { Ok(()) }
    }

    /// Records the end of an asynchronous copy, as a write by a thread in an epoch.
    #[inline(always)]
    pub fn end_copy(&mut self, at: usize, bytes: usize, thread: usize, epoch: u32) {
        match self.only_cell(at, bytes) {
            Some((cell, sets)) => put(cell, sets, thread, epoch, false),
            None => self.all(at, bytes, |cell, sets| put(cell, sets, thread, epoch, false)),
        }
        if !self.async_reads.is_empty(at) {
            self.async_reads.remove(at, bytes);
        }
    }

    /// Checks that unwritten bytes are not the target of a copy in flight.
    #[cold]
    pub fn check_landed(&mut self, at: usize, bytes: usize) -> Checked<()> {
        let warps = self.warps;
        self.each(at, bytes, |cell, _| match cell.in_flight {
            0 => Ok(()),
            flying => Err(in_flight(flying, at, "reads", warps)),
        })
    }

    /// Checks the start of asynchronous reads.
    pub fn check_async_read(&mut self, region: Region, who: LaneAccess<'_>) -> Checked<()> {
        let warps = self.warps;
        // Most cells have the same writer and epoch as the one before.
        let mut last = (0, 0);
        let mut check = |cell: &Cell, at: usize| {
            if cell.in_flight == 0 && (cell.writer, cell.write_epoch) == last {
                return Ok(());
            }
            check_readable(cell, at, 16, who, warps)?;
            if cell.write_epoch != 0 && !who.view.is_proxied(cell.writer.into(), cell.write_epoch) {
                return Err(unproxied(at, cell.writer, warps));
            }
            last = (cell.writer, cell.write_epoch);
            Ok(())
        };
        for at in region.offsets() {
            if let Some((cell, _)) = self.only_cell(at, 16) {
                check(cell, at)?;
            } else {
                self.each(at, 16, |cell, _| check(cell, at))?;
            }
        }
        Ok(())
    }

    /// Records the start of asynchronous reads.
    pub fn start_async_read(&mut self, region: Region, thread: usize) {
        self.async_reads.start(region, thread);
    }

    /// Records the end of asynchronous reads, as reads by a thread in an epoch.
    pub fn end_async_read(&mut self, region: Region, thread: usize, epoch: u32) {
        self.async_reads.end(region, thread, epoch);
    }

    /// Checks before a write that all asynchronous reads of some bytes have ended. If the write covers only part of a
    /// cell, these reads become ordinary ones.
    #[cold]
    fn check_landed_reads(&mut self, at: usize, bytes: usize) -> Checked<()> {
        if self.async_reads.touching(at, bytes).any(|read| read.in_flight != 0) {
            return Err(async_read(at));
        }
        if !(at | bytes).is_multiple_of(16) {
            let reads: Vec<_> = self.async_reads.touching(at, bytes).collect();
            let (from, to) = (at / 16 * 16, (at + bytes).next_multiple_of(16));
            for read in reads {
                self.all(from, to - from, |cell, sets| add_ended_read(cell, sets, read.thread, read.epoch));
            }
            self.async_reads.remove(at, bytes);
        }
        Ok(())
    }

    /// Checks that a write comes after all asynchronous reads of some bytes.
    #[cold]
    fn check_async_reads(&self, at: usize, bytes: usize, who: LaneAccess<'_>) -> Checked<()> {
        let is_before = |thread, epoch| thread == who.thread() || who.view.knows(thread, epoch);
        match self.async_reads.touching(at, bytes).find(|read| !is_before(read.thread, read.epoch)) {
            Some(read) => Err(race(at, bytes, (who.thread(), "writes"), (read.thread, "read"), self.warps)),
            None => Ok(()),
        }
    }

    /// Records that an mbarrier is stored here, or no longer is.
    pub fn set_mbarrier(&mut self, at: usize, exists: bool) {
        let mark = if exists { MBARRIER } else { 0 };
        self.all(at, 8, |cell, _| cell.in_flight = mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::state::clock::{Gathering, View, WarpClock};
    use crate::fault::FaultKind;
    use std::sync::Arc;

    #[test]
    fn writes_come_after_asynchronous_reads() {
        let (unordered, mut all) = (Arc::new(View::new(3)), Gathering::default());
        all.add(&mut WarpClock::new(0, &unordered), 3, u32::MAX);
        let ordered = all.take(3);
        let by = |lane: usize, view| LaneAccess { warp: 1, lane, epoch: 1, view, strong: false };
        let kind = |result: Checked<()>| result.map_err(|violation| violation.kind);
        for (at, bytes) in [(16, 16), (20, 4)] {
            let mut shadow = Shadow::default();
            shadow.reset(1024, (2, 2));
            let region = Region { block: 0, cells: 6 };
            shadow.start_async_read(region, 0);
            assert_eq!(kind(shadow.write(at, bytes, by(0, &ordered), false)), Err(FaultKind::AsyncRegion));
            shadow.end_async_read(region, 0, 1);
            assert_eq!(kind(shadow.write(at, bytes, by(0, &unordered), false)), Err(FaultKind::SharedRace));
            assert_eq!(kind(shadow.start_copy(32, 16, by(1, &unordered))), Err(FaultKind::SharedRace));
            let mut shadow = Shadow::default();
            shadow.reset(1024, (2, 2));
            shadow.start_async_read(region, 0);
            shadow.end_async_read(region, 0, 1);
            assert_eq!(kind(shadow.write(at, bytes, by(0, &ordered), false)), Ok(()));
            // Nobody has read the bytes written there since. The other bytes of the region were read.
            assert_eq!(kind(shadow.write(at, bytes, by(1, &unordered), true)), Ok(()));
            assert_eq!(kind(shadow.write(at + bytes, 4, by(1, &unordered), true)), Err(FaultKind::SharedRace));
            assert_eq!(kind(shadow.start_copy(32, 16, by(1, &ordered))), Ok(()));
        }
    }
}
