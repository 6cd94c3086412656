//! The rows of a sequence in a step, and the blocks that its states are read from and stored in.

use cuda_std::vector::Vector;

use super::NO_BLOCK;

/// The arrays of a launch's sequences, see [the module](super).
#[derive(Clone, Copy)]
pub struct Sequences {
    pub states: *mut Vector,
    /// Vectors from one block to the next.
    pub stride: u32,
    pub tables: *const u32,
    pub table_starts: *const u32,
    pub query_starts: *const u32,
    pub contexts: *const u32,
    pub block_size: u32,
}

/// A sequence.
#[derive(Clone, Copy)]
pub struct Span {
    states: *mut Vector,
    stride: u32,
    table: *const u32,
    block_size: u32,
    /// The first row.
    pub first_row: u32,
    /// Rows.
    pub len: u32,
    /// Tokens before the first row.
    pub start: u32,
    /// The last block.
    last: u32,
    /// The block with the state before the first row, or [`NO_BLOCK`].
    pub source: u32,
}

impl Sequences {
    /// Returns the sequence with this number.
    ///
    /// # Safety
    /// The arrays have the sequence, and its block table has an entry for each of its blocks.
    #[inline(always)]
    pub unsafe fn span(self, sequence: u32) -> Span {
        let Sequences { states, stride, tables, table_starts, query_starts, contexts, block_size } = self;
        let i = sequence as usize;
        // SAFETY: the arrays have the sequence. A sequence with rows has blocks, and no block is empty.
        unsafe {
            core::hint::assert_unchecked(block_size != 0);
            let (first_row, end) = (*query_starts.add(i), *query_starts.add(i + 1));
            let len = end - first_row;
            let table = tables.add(*table_starts.add(i) as usize);
            let mut span =
                Span { states, stride, table, block_size, first_row, len, start: 0, last: 0, source: NO_BLOCK };
            if len > 0 {
                let context = *contexts.add(i);
                span.start = context - len;
                span.last = *table.add(((context - 1) / block_size) as usize);
                if span.start > 0 {
                    span.source = *table.add(((span.start - 1) / block_size) as usize);
                }
            }
            span
        }
    }
}

impl Span {
    /// Returns the number of the sequence's block with a row.
    #[inline(always)]
    pub fn index(&self, row: u32) -> u32 {
        // SAFETY: no block is empty.
        unsafe { core::hint::assert_unchecked(self.block_size != 0) };
        (self.start + row) / self.block_size
    }

    /// Returns the number of rows up to the end of the block with this number.
    #[inline(always)]
    pub fn end(&self, index: u32) -> u32 {
        let end = (index + 1) * self.block_size - self.start;
        if end < self.len { end } else { self.len }
    }

    /// Returns the block that the state after the first `end` rows is stored in, which end in the block with number
    /// `index`, or [`NO_BLOCK`].
    ///
    /// # Safety
    /// The sequence has the block.
    #[inline(always)]
    pub unsafe fn stored(&self, index: u32, end: u32) -> u32 {
        // SAFETY: the table has an entry for the block.
        let block = unsafe { *self.table.add(index as usize) };
        if block == self.last && end < self.len { NO_BLOCK } else { block }
    }

    /// Returns the address of the state in a block.
    #[inline(always)]
    pub fn state(&self, block: u32) -> *mut Vector {
        self.states.wrapping_add(block as usize * self.stride as usize)
    }
}
