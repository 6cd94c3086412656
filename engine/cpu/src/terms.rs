//! Projections with bf16 weights, using the tiles of AMX.
//!
//! An f32 number has 24 significant bits, so it is the sum of three bf16 numbers of 8 bits each, called its terms. The
//! terms of the activations become rows of a bf16 matrix, with a token's rows next to each other. Tiles multiply this
//! matrix by the weight, and a token's result is the sum of the results of its rows. This is about as exact as summing
//! products in f32. If activations are to be rounded, each token has one row instead.
//!
//! Rows are stored in blocks of sixteen, in the order in which tiles read them. A block has one line with [`DEPTH`]
//! columns for each of its rows, then the lines for the next columns. The last block may have fewer rows. Every
//! sixteenth token begins a block.

#![allow(clippy::needless_range_loop)] // closures might not be compiled for the instruction set

use std::cell::RefCell;

use pulp::Arch;

use super::Cpu;
use super::amx::{Amx, DEPTH, ROWS, Sums};
use super::math::compiled;
use super::pages::Line;
use super::panels::{PANEL, Panels, Words};
use super::product::rounded;
use super::tensor::CpuTensor;
use super::tiles::{Finish, Tile};

/// Number of terms that an activation is split into.
const TERMS: usize = 3;
/// Chunks of [`DEPTH`] columns of `K` to multiply at a time if there are several blocks. A panel's words for these
/// chunks stay in the first-level cache.
const CHUNKS: usize = 4;

thread_local! {
    static SUMS: RefCell<Vec<Sums>> = RefCell::default();
}

/// Activations as rows of bf16.
pub(super) struct Rows {
    /// Rows per token: [`TERMS`], or one if activations are rounded.
    terms: usize,
    chunks: usize,
    lines: CpuTensor,
}

impl Rows {
    /// Splits activations `x` of `cols` columns into terms, or rounds them.
    pub fn new(backend: &Cpu, x: &[f32], cols: usize, rounded: bool) -> Self {
        let terms = if rounded { 1 } else { TERMS };
        let (tokens, chunks) = (x.len() / cols, cols.div_ceil(DEPTH));
        // Loads always read sixteen rows. For the last block they may read past its end, into these extra lines.
        let mut lines = backend.pool.tensor(tokens * terms * chunks + ROWS, size_of::<Line>() / size_of::<f32>());
        {
            let lines: &mut [Line] = bytemuck::cast_slice_mut(lines.as_mut_slice());
            let tasks = lines.chunks_mut(ROWS * terms * chunks).zip(x.chunks(ROWS * cols));
            backend.threads.each(tasks, |(lines, x)| {
                compiled(
                    backend.arch,
                    #[inline(always)]
                    || split(x, cols, terms, lines),
                );
            });
        }
        Rows { terms, chunks, lines }
    }

    /// Divides the output of a projection to `cols` columns into tiles for the threads.
    pub fn cut<'o>(&self, backend: &Cpu, cols: usize, out: &'o mut [f32]) -> Vec<Tile<'o>> {
        // Multiplying with tiles takes a tenth of the time of multiplying with vectors.
        let work = out.len() * self.chunks * DEPTH * self.terms / 10;
        Tile::cut(out, cols, (ROWS, PANEL), work, &backend.threads)
    }

    /// Writes a tile of the projection with a bf16 weight, like [`Linear::run`](super::linear::Linear::run).
    pub fn run(&self, backend: &Cpu, amx: Amx, (weight, finish): (&Panels, Finish<'_>), mut tile: Tile<'_>) {
        let Words::Bf16Pairs(words) = weight.words() else { panic!("tiles need a bf16 weight") };
        SUMS.with_borrow_mut(|sums| self.multiply(amx, backend.arch, (words, finish.add), &mut tile, sums));
        compiled(
            backend.arch,
            #[inline(always)]
            || {
                for row in &mut tile.out {
                    finish.apply(row, tile.column);
                }
            },
        );
    }

    /// Computes the products of a tile's tokens with the weight's columns. Adds them to the output if `add` is set, and
    /// replaces it otherwise.
    fn multiply(&self, amx: Amx, arch: Arch, (words, add): (&[u32], bool), tile: &mut Tile<'_>, sums: &mut Vec<Sums>) {
        let lines: &[Line] = bytemuck::cast_slice(self.lines.as_slice());
        let (terms, chunks) = (self.terms, self.chunks);
        let lines = &lines[tile.row * terms * chunks..];
        let rows = tile.out.len() * terms;
        let blocks = rows.div_ceil(ROWS);
        let at_a_time = if blocks == 1 { chunks } else { CHUNKS };
        if sums.len() < blocks {
            sums.resize(blocks, Sums([[0.0; PANEL]; ROWS]));
        }
        let tiles = amx.tiles();
        for start in (0..tile.out[0].len()).step_by(PANEL) {
            let panel = &words[(tile.column + start) * chunks * (DEPTH / 2)..];
            for first in (0..chunks).step_by(at_a_time) {
                let count = at_a_time.min(chunks - first);
                let words = &panel[first * (DEPTH / 2) * PANEL..];
                for (block, sums) in sums[..blocks].iter_mut().enumerate() {
                    let height = ROWS.min(rows - block * ROWS);
                    let lines = &lines[block * ROWS * chunks + first * height..];
                    tiles.add_products(count, height, lines, words, first == 0, sums);
                }
            }
            compiled(
                arch,
                #[inline(always)]
                || finish(sums, terms, start, add, &mut tile.out),
            );
        }
    }
}

/// Writes each token's total, the sum of its rows, to the output columns from `start` on.
#[inline(always)]
fn finish(sums: &[Sums], terms: usize, start: usize, add: bool, out: &mut [&mut [f32]]) {
    for (token, out) in out.iter_mut().enumerate() {
        let mut total = [0.0; PANEL];
        // The smallest terms are added last.
        for row in token * terms..(token + 1) * terms {
            let row = &sums[row / ROWS].0[row % ROWS];
            for i in 0..PANEL {
                total[i] += row[i];
            }
        }
        let out = &mut out[start..];
        let width = out.len().min(PANEL);
        let out = &mut out[..width];
        for (out, total) in out.iter_mut().zip(total) {
            *out = if add { *out + total } else { total };
        }
    }
}

/// Splits up to sixteen tokens into rows and writes them into the lines of their blocks.
///
/// The loops over elements use no closures, because closures might not be compiled for the instruction set.
#[inline(always)]
fn split(x: &[f32], cols: usize, terms: usize, lines: &mut [Line]) {
    let chunks = cols.div_ceil(DEPTH);
    let rows = x.len() / cols * terms;
    for (token, x) in x.chunks_exact(cols).enumerate() {
        for (chunk, x) in x.chunks(DEPTH).enumerate() {
            let mut rest = [0.0; DEPTH];
            if let Some(x) = x.first_chunk() {
                rest = *x;
            } else {
                rest[..x.len()].copy_from_slice(x);
            }
            for term in 0..terms {
                let row = token * terms + term;
                let (block, within) = (row / ROWS, row % ROWS);
                let height = ROWS.min(rows - block * ROWS);
                let mut halves = [0u16; DEPTH];
                for i in 0..DEPTH {
                    halves[i] = if terms == 1 { rounded(rest[i]) as u16 } else { take_term(&mut rest[i]) };
                }
                lines[block * ROWS * chunks + chunk * height + within] = Line(bytemuck::must_cast(halves));
            }
        }
    }
}

/// Splits off the first 8 significant bits of a number as a bf16 number. `x` becomes the remainder.
#[inline(always)]
fn take_term(x: &mut f32) -> u16 {
    let bits = x.to_bits();
    let first = bits >> 16;
    let term = f32::from_bits(first << 16);
    // NaN stays NaN even if only its lower bits are set. Infinity leaves no remainder.
    let first = if x.is_nan() { first | 0x40 } else { first };
    *x = if x.is_finite() { *x - term } else { 0.0 };
    first as u16
}
