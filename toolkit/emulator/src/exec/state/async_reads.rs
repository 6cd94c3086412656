//! Reads of shared memory by asynchronous copies and products: of which bytes, by whom, and whether they have ended.
//!
//! They read much at once. So they are noted as a set of cells for each block of memory, and not in each cell of the shadow.

/// The binary logarithm of a cell's bytes: those of a piece, which is what copies and products read at least.
const CELL_BITS: usize = 4;
/// The binary logarithm of a block's cells.
const BLOCK_BITS: usize = 6;
/// Bytes of a block.
pub(crate) const BLOCK: usize = 1 << (CELL_BITS + BLOCK_BITS);

/// Cells of one block of shared memory: bit `n` stands for the one that begins at byte `16 * n` of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// The index of the block.
    pub block: usize,
    /// Its cells.
    pub cells: u64,
}

impl Region {
    /// The region that has one piece, whose offset in shared memory is a multiple of 16.
    pub fn of_piece(at: usize) -> Self {
        Self { block: at / BLOCK, cells: 1 << (at / 16 % 64) }
    }

    /// The cells that some bytes of one block touch.
    fn touched(at: usize, bytes: usize) -> Self {
        let (first, last) = (at % BLOCK / 16, (at % BLOCK + bytes - 1) / 16);
        Self { block: at / BLOCK, cells: (u64::MAX << first) & (u64::MAX >> (63 - last.min(63))) }
    }

    /// The regions that have these pieces.
    pub fn of_pieces(pieces: impl Iterator<Item = usize>) -> Vec<Self> {
        let mut regions: Vec<Self> = Vec::new();
        let mut add = |new: Self| match regions.iter_mut().rev().find(|region| region.block == new.block) {
            Some(region) => region.cells |= new.cells,
            None => regions.push(new),
        };
        // Most pieces lie in the block of the one before.
        let mut last: Option<Self> = None;
        pieces.for_each(|at| {
            let piece = Self::of_piece(at);
            match &mut last {
                Some(last) if last.block == piece.block => last.cells |= piece.cells,
                last => last.replace(piece).into_iter().for_each(&mut add),
            }
        });
        last.into_iter().for_each(add);
        regions
    }

    /// The offsets of its cells in shared memory.
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
    /// How many of the reads have not ended.
    pub flying: u32,
    /// The epoch in which the last one of the others ended.
    pub epoch: u32,
}

/// The asynchronous reads since the last writes.
#[derive(Debug, Default)]
pub(crate) struct AsyncReads {
    /// By block.
    blocks: Vec<Vec<AsyncRead>>,
}

impl AsyncReads {
    /// Makes them those of so many bytes that nothing has read.
    pub fn reset(&mut self, bytes: usize) {
        self.blocks.iter_mut().for_each(Vec::clear);
        self.blocks.resize(bytes / BLOCK + 1, Vec::new());
    }

    /// The reads by a thread of just these cells.
    fn of(&mut self, region: Region, thread: usize) -> &mut AsyncRead {
        let reads = &mut self.blocks[region.block];
        let known = reads.iter().position(|read| read.cells == region.cells && read.thread == thread);
        let index = known.unwrap_or_else(|| {
            reads.push(AsyncRead { cells: region.cells, thread, flying: 0, epoch: 0 });
            reads.len() - 1
        });
        &mut reads[index]
    }

    /// Notes the start of a read.
    pub fn start(&mut self, region: Region, thread: usize) {
        self.of(region, thread).flying += 1;
    }

    /// Notes the end of a read.
    pub fn end(&mut self, region: Region, thread: usize, epoch: u32) {
        let read = self.of(region, thread);
        (read.flying, read.epoch) = (read.flying.saturating_sub(1), epoch);
    }

    /// Whether there is no read in the block of an offset.
    #[inline(always)]
    pub fn is_empty(&self, at: usize) -> bool {
        self.blocks[at / BLOCK].is_empty()
    }

    /// The reads that touch some bytes of one block.
    pub fn touching(&self, at: usize, bytes: usize) -> impl Iterator<Item = AsyncRead> {
        let touched = Region::touched(at, bytes);
        self.blocks[touched.block].iter().copied().filter(move |read| read.cells & touched.cells != 0)
    }

    /// Forgets the reads of all cells that some bytes of one block touch.
    pub fn forget(&mut self, at: usize, bytes: usize) {
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
        let regions = Region::of_pieces([0x400, 0x7f0, 0x3f0, 0x410].into_iter());
        assert_eq!(regions, [Region { block: 1, cells: 1 << 63 | 3 }, Region { block: 0, cells: 1 << 63 }]);
        assert_eq!(regions[0].offsets().collect::<Vec<_>>(), [0x400, 0x410, 0x7f0]);
        assert_eq!(Region::touched(0x7f8, 8), Region { block: 1, cells: 1 << 63 });
        assert_eq!(Region::touched(0x41c, 8), Region { block: 1, cells: 6 });
    }

    #[test]
    fn reads_are_known_until_their_cells_are_written() {
        let mut reads = AsyncReads::default();
        reads.reset(BLOCK);
        let region = Region { block: 0, cells: 3 };
        reads.start(region, 5);
        reads.start(region, 5);
        reads.end(region, 5, 7);
        let found = |reads: &AsyncReads, at| reads.touching(at, 4).map(|read| (read.flying, read.epoch)).next();
        assert_eq!([found(&reads, 28), found(&reads, 32)], [Some((1, 7)), None]);
        reads.end(region, 5, 8);
        reads.forget(0, 16);
        assert_eq!([found(&reads, 0), found(&reads, 16)], [None, Some((0, 8))]);
        reads.forget(16, 16);
        assert!(reads.is_empty(0));
    }
}
