//! The weight of a projection as its inner loop reads it: in panels of 64 rows.
//!
//! In a file the `K` elements of one row follow each other. Four rows at a time are then four streams of a few kilobytes
//! each, too short for the processor to fetch ahead: it reads them at half of what memory can deliver. In a panel the
//! elements of 64 rows for one column of `K` lie side by side, so that a projection reads one stream from end to end, and a
//! vector has elements of as many outputs: no sum goes across a vector.

use bytemuck::Pod;
use half::f16;

use super::pages::{Line, Lines, Pages};
use super::threads::Threads;
use checkpoint::Result;
use checkpoint::tensor::{Elements, HostTensor};

/// Rows of the weight side by side: columns of the output.
pub(super) const PANEL: usize = 64;
/// Columns of `K` whose elements are copied at a time: a cache line of f32.
const BLOCK: usize = 16;

/// What lies in a lane of a panel.
#[derive(Clone, Copy)]
enum Word {
    F32,
    F16,
    /// Elements of two columns of `K`, the first one in the lower half. An odd last one has a zero beside it.
    Bf16Pair,
}

impl Word {
    /// Columns of `K` whose elements it has.
    const fn columns(self) -> usize {
        if matches!(self, Word::Bf16Pair) { 2 } else { 1 }
    }

    /// Words of a row of the weight, for so many columns of `K`.
    const fn words(self, cols: usize) -> usize {
        match self {
            Word::F32 | Word::F16 => cols,
            // Whole tiles (see `terms`): zeros fill the last one up.
            Word::Bf16Pair => cols.div_ceil(2).next_multiple_of(16),
        }
    }

    /// Lines of a panel with so many columns of `K`.
    const fn lines(self, cols: usize) -> usize {
        let bytes = if matches!(self, Word::F16) { size_of::<f16>() } else { size_of::<f32>() };
        self.words(cols) * PANEL * bytes / size_of::<Line>()
    }
}

/// A matrix `[N, K]` in panels. Rows of zeros fill the last one up.
pub(super) struct Panels {
    rows: usize,
    cols: usize,
    word: Word,
    lines: Lines,
}

/// The words of all panels, one panel after the other, each with [`PANEL`] words for every column of `K`, or every two: see
/// [`Panels::row_words`].
pub(super) enum Words<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16Pairs(&'a [u32]),
}

impl Panels {
    /// Copies a matrix into panels.
    ///
    /// # Errors
    /// If there is no memory for them.
    ///
    /// # Panics
    /// If `tensor` is quantised, or no matrix.
    pub fn new(tensor: &HostTensor, threads: &Threads, pages: &Pages) -> Result<Self> {
        let &[rows, cols] = tensor.shape() else { panic!("only a matrix has panels") };
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

    /// Calls `put` with the word of each element, the element and its column.
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

    /// Words of a row.
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
