//! A projection's weight, stored in panels of 64 rows, in the inner loop's order.
//!
//! In a file, the `K` elements of one row are contiguous. Reading four rows at a time would be four streams of a few
//! kilobytes each. These are too short for the hardware prefetcher, and would reach half the memory bandwidth. In a
//! panel, the elements of 64 rows are contiguous for each column of `K`. A projection then reads one stream from end to
//! end. Each vector has elements of as many outputs, so no sum crosses its lanes.

use bytemuck::Pod;
use half::f16;

use super::pages::{Line, Lines, Pages};
use super::threads::Threads;
use checkpoint::Result;
use checkpoint::tensor::{Elements, HostTensor};

/// Rows of the weight in a panel, which are columns of the output.
pub(super) const PANEL: usize = 64;
/// Columns of `K` copied at a time: a cache line of f32.
const BLOCK: usize = 16;

/// The type of a word, which is the content of one lane of a panel.
#[derive(Clone, Copy)]
enum Word {
    F32,
    F16,
    /// Elements of two columns of `K`, the first in the lower half. An odd last column is paired with zero.
    Bf16Pair,
}

impl Word {
    /// Columns of `K` per word.
    const fn columns(self) -> usize {
        if matches!(self, Word::Bf16Pair) { 2 } else { 1 }
    }

    /// Words per row of the weight, for `cols` columns of `K`.
    const fn words(self, cols: usize) -> usize {
        match self {
            Word::F32 | Word::F16 => cols,
            // Zeros pad the last tile of AMX (see `terms`).
            Word::Bf16Pair => cols.div_ceil(2).next_multiple_of(16),
        }
    }

    /// Cache lines per panel, for `cols` columns of `K`.
    const fn lines(self, cols: usize) -> usize {
        let bytes = if matches!(self, Word::F16) { size_of::<f16>() } else { size_of::<f32>() };
        self.words(cols) * PANEL * bytes / size_of::<Line>()
    }
}

/// A matrix `[N, K]` in panels. The last panel is padded with rows of zeros.
pub(super) struct Panels {
    rows: usize,
    cols: usize,
    word: Word,
    lines: Lines,
}

/// The words of all panels, concatenated. A panel has [`Panels::row_words`] lines of [`PANEL`] words, one line per
/// column of `K` or per two columns.
pub(super) enum Words<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16Pairs(&'a [u32]),
}

impl Panels {
    /// Copies a matrix into panels.
    ///
    /// # Errors
    /// If the system has no memory for them.
    ///
    /// # Panics
    /// If `tensor` is quantised or not a matrix.
    pub fn new(tensor: &HostTensor, threads: &Threads, pages: &Pages) -> Result<Self> {
        let &[rows, cols] = tensor.shape() else { panic!("panels need a matrix") };
        let word = match tensor.elements() {
            Elements::F32(_) => Word::F32,
            Elements::F16(_) => Word::F16,
            Elements::Bf16(_) => Word::Bf16Pair,
        };
        let lines = pages.lines(rows.div_ceil(PANEL) * word.lines(cols))?;
        let mut panels = Panels { rows, cols, word, lines };
        match tensor.elements() {
            Elements::F32(v) => panels.fill(v, threads, |to: &mut f32, from, _| *to = from),
            Elements::F16(v) => panels.fill(v, threads, |to: &mut f16, from, _| *to = from),
            Elements::Bf16(v) => panels.fill(v, threads, |to: &mut u32, from, k| {
                *to |= u32::from(from.to_bits()) << (k % 2 * 16);
            }),
        }
        Ok(panels)
    }

    /// Calls `put` with the word that contains each element, the element, and its column.
    fn fill<E: Copy + Sync, W: Pod>(
        &mut self,
        elements: &[E],
        threads: &Threads,
        put: impl Fn(&mut W, E, usize) + Sync,
    ) {
        let (cols, columns) = (self.cols, self.word.columns());
        if cols == 0 {
            return;
        }
        let panels = self.lines.chunks_mut(self.word.lines(cols)).zip(elements.chunks(PANEL * cols));
        threads.each(panels, |(lines, elements)| {
            let words: &mut [W] = bytemuck::cast_slice_mut(lines);
            for start in (0..cols).step_by(BLOCK) {
                let block = start..cols.min(start + BLOCK);
                for (row, elements) in elements.chunks_exact(cols).enumerate() {
                    for (k, &element) in block.clone().zip(&elements[block.clone()]) {
                        put(&mut words[k / columns * PANEL + row], element, k);
                    }
                }
            }
        });
    }

    /// `N`
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// `K`
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Words per row, including padding.
    pub fn row_words(&self) -> usize {
        self.word.words(self.cols)
    }

    pub fn words(&self) -> Words<'_> {
        match self.word {
            Word::F32 => Words::F32(bytemuck::cast_slice(&self.lines)),
            Word::F16 => Words::F16(bytemuck::cast_slice(&self.lines)),
            Word::Bf16Pair => Words::Bf16Pairs(bytemuck::cast_slice(&self.lines)),
        }
    }
}
