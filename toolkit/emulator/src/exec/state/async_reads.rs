//! Reads of shared memory by asynchronous copies and products: their bytes, their threads, and whether they have
//! ended.
//!
//! Such reads cover many bytes at once. They are recorded as one set of cells per block of memory, and not in each cell
//! of the shadow.

/// The binary logarithm of a cell's bytes. A cell is a 16-byte piece, which is the least that copies and products read.
const CELL_BITS: usize = 4;
/// The binary logarithm of a block's cells.
const BLOCK_BITS: usize = 6;
/// Bytes of a block.
pub(crate) const BLOCK: usize = 1 << (CELL_BITS + BLOCK_BITS);

/// Cells of one block of shared memory. Bit `n` is the cell that begins at byte `16 * n` of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// The index of the block.
    pub block: usize,
    /// Its cells, as a mask.
    pub cells: u64,
}

impl Region {
    /// Returns the region of one piece, whose offset in shared memory is a multiple of 16.
    pub fn from_piece(at: usize) -> Self {
        Self { block: at / BLOCK, cells: 1 << (at / 16 % 64) }
    }

    /// Returns the cells that some bytes of one block touch.
    fn touched(at: usize, bytes: usize) -> Self {
        let (first, last) = (at % BLOCK / 16, (at % BLOCK + bytes - 1) / 16);
        Self { block: at / BLOCK, cells: (u64::MAX << first) & (u64::MAX >> (63 - last.min(63))) }
    }

    /// Returns the regions of several pieces, one region per block.
    pub fn from_pieces(pieces: impl Iterator<Item = usize>) -> Vec<Self> {
        let mut regions: Vec<Self> = Vec::new();
        let mut add = |new: Self| match regions.iter_mut().rev().find(|region| region.block == new.block) {
            Some(region) => region.cells |= new.cells,
            None => regions.push(new),
        };
        // Most pieces are in the same block as the one before.
        let mut last: Option<Self> = None;
        pieces.for_each(|at| {
            let piece = Self::from_piece(at);
            match &mut last {
                Some(last) if last.block == piece.block => last.cells |= piece.cells,
                last => last.replace(piece).into_iter().for_each(&mut add),
            }
        });
        last.into_iter().for_each(add);
        regions
    }

    /// Returns the offsets of its cells in shared memory.
    #[inline(always)]
    pub fn offsets(self) -> impl Iterator<Item = usize> {
        let mut rest = self.cells;
        std::iter::from_fn(move || {
            let cell = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (cell < 64).then_some(self.block * BLOCK + cell * 16)
        })
    }
}

/// Reads of some cells of a block by one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncRead {
    cells: u64,
    /// The index of the thread in its cluster of blocks.
    pub thread: usize,
    /// The number of reads in flight.
    pub in_flight: u32,
    /// The epoch when the last finished read ended.
    pub epoch: u32,
}

/// The asynchronous reads since the last writes.
#[derive(Debug, Default)]
pub(crate) struct AsyncReads {
    /// The reads of each block.
    blocks: Vec<Vec<AsyncRead>>,
}

impl AsyncReads {
    /// Removes all reads, and makes room for `bytes` bytes of shared memory.
    pub fn reset(&mut self, bytes: usize) {
        self.blocks.iter_mut().for_each(Vec::clear);
        self.blocks.resize(bytes / BLOCK + 1, Vec::new());
    }

    /// Returns the entry of a thread's reads of exactly these cells.
    fn entry(&mut self, region: Region, thread: usize) -> &mut AsyncRead {
        let reads = &mut self.blocks[region.block];
        let existing = reads.iter().position(|read| read.cells == region.cells && read.thread == thread);
        let index = existing.unwrap_or_else(|| {
            reads.push(AsyncRead { cells: region.cells, thread, in_flight: 0, epoch: 0 });
            reads.len() - 1
        });
        &mut reads[index]
    }

    /// Records the start of a read.
    pub fn start(&mut self, region: Region, thread: usize) {
        self.entry(region, thread).in_flight += 1;
    }

    /// Records the end of a read.
    pub fn end(&mut self, region: Region, thread: usize, epoch: u32) {
        let read = self.entry(region, thread);
        (read.in_flight, read.epoch) = (read.in_flight.saturating_sub(1), epoch);
    }

    /// Returns whether the block of an offset has no reads.
    #[inline(always)]
    pub fn is_empty(&self, at: usize) -> bool {
        self.blocks[at / BLOCK].is_empty()
    }

    /// Returns the reads that touch some bytes of one block.
    pub fn touching(&self, at: usize, bytes: usize) -> impl Iterator<Item = AsyncRead> {
        let touched = Region::touched(at, bytes);
        self.blocks[touched.block].iter().copied().filter(move |read| read.cells & touched.cells != 0)
    }

    /// Removes all cells that some bytes of one block touch from the reads.
    pub fn remove(&mut self, at: usize, bytes: usize) {
        let touched = Region::touched(at, bytes);
        self.blocks[touched.block].retain_mut(|read| {
            read.cells &= !touched.cells;
            read.cells != 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_block_are_one_region() {
        let regions = Region::from_pieces([0x400, 0x7f0, 0x3f0, 0x410].into_iter());
        assert_eq!(regions, [Region { block: 1, cells: 1 << 63 | 3 }, Region { block: 0, cells: 1 << 63 }]);
        assert_eq!(regions[0].offsets().collect::<Vec<_>>(), [0x400, 0x410, 0x7f0]);
        assert_eq!(Region::touched(0x7f8, 8), Region { block: 1, cells: 1 << 63 });
        assert_eq!(Region::touched(0x41c, 8), Region { block: 1, cells: 6 });
    }

    #[test]
    fn reads_last_until_their_cells_are_written() {
        let mut reads = AsyncReads::default();
        reads.reset(BLOCK);
        let region = Region { block: 0, cells: 3 };
        reads.start(region, 5);
        reads.start(region, 5);
        reads.end(region, 5, 7);
        let found = |reads: &AsyncReads, at| reads.touching(at, 4).map(|read| (read.in_flight, read.epoch)).next();
        assert_eq!([found(&reads, 28), found(&reads, 32)], [Some((1, 7)), None]);
        reads.end(region, 5, 8);
        reads.remove(0, 16);
        assert_eq!([found(&reads, 0), found(&reads, 16)], [None, Some((0, 8))]);
        reads.remove(16, 16);
        assert!(reads.is_empty(0));
    }
}
