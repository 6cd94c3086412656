//! Projections with weights in bf16 by the tiles of AMX.
//!
//! An f32 number has 24 bits, which are three terms of 8: three bf16 numbers, whose sum it is. So the terms of activations
//! are rows of a matrix in bf16, a token's next to each other; tiles multiply it, and a token's result is the sum of those
//! of its rows, about as exact as a sum of products in f32. Where activations are to be rounded, a token is one row.
//!
//! Rows lie in blocks of sixteen, as tiles read them: a line with [`DEPTH`] columns of each row, and then the next columns.
//! The last block has fewer rows. Sixteen tokens begin with a block.

#![allow(clippy::needless_range_loop)] // closures might not be compiled for the instruction set

use std::cell::RefCell;

use pulp::Arch;

use super::Cpu;
use super::amx::{Amx, DEPTH, ROWS, Sums};
use super::linear::Linear;
use super::math::compiled;
use super::pages::Line;
use super::panels::{PANEL, Words};
use super::product::rounded;
use super::tensor::CpuTensor;
use super::tiles::Tile;

/// Terms of a number.
const TERMS: usize = 3;
/// Chunks of [`DEPTH`] columns of `K` at a time, where there are several blocks: those of a panel stay in the first-level
/// cache.
const CHUNKS: usize = 4;

thread_local! {
    static SUMS: RefCell<Vec<Sums>> = RefCell::default();
}

/// Activations as rows of bf16.
struct Rows {
    /// Rows of a token: [`TERMS`], or one.
    terms: usize,
    chunks: usize,
    lines: CpuTensor,
}

impl Cpu {
    /// Computes a projection with a weight in bf16 into `out [M, N]`; see [`Linear::run`].
    pub(super) fn multiply_tiles(&self, amx: Amx, rounded: bool, linear: Linear<'_>, out: &mut [f32]) {
        if out.is_empty() {
            return;
        }
        let Words::Bf16Pairs(words) = linear.weight.words() else { panic!("only a weight in bf16 meets tiles") };
        let rows = Rows::new(self, linear.x, linear.inner, if rounded { 1 } else { TERMS });
        let cols = linear.weight.rows();
        // A product of tiles takes a tenth of those by vectors.
        let work = out.len() * linear.inner * rows.terms / 10;
        let tiles = Tile::cut(out, cols, (ROWS, PANEL), work, &self.threads);
        self.threads.each(tiles.into_iter(), |mut tile| {
            SUMS.with_borrow_mut(|sums| rows.multiply(amx, self.arch, (words, linear.finish.add), &mut tile, sums));
            compiled(
                self.arch,
                #[inline(always)]
                || {
                    for row in &mut tile.out {
                        linear.finish.apply(row, tile.column);
                    }
                },
            );
        });
    }
}

impl Rows {
    fn new(backend: &Cpu, x: &[f32], cols: usize, terms: usize) -> Self {
        let (tokens, chunks) = (x.len() / cols, cols.div_ceil(DEPTH));
        // A tile has sixteen rows, of which the last block's may lie in what follows it.
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

    /// Adds the products of a tile's tokens with its columns to it, or replaces what it holds.
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

/// Puts the sums of tokens' rows where they belong: the columns from `start` on.
#[inline(always)]
fn finish(sums: &[Sums], terms: usize, start: usize, add: bool, out: &mut [&mut [f32]]) {
    for (token, out) in out.iter_mut().enumerate() {
        let mut total = [0.0; PANEL];
        // The least ones come last.
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

/// Writes up to sixteen tokens' rows into the lines of their blocks.
///
/// Closures in loops over elements might not be compiled for the instruction set.
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

/// Takes the first 8 bits of a number away from it, as a bf16 number.
#[inline(always)]
fn take_term(x: &mut f32) -> u16 {
    let bits = x.to_bits();
    let first = bits >> 16;
    let term = f32::from_bits(first << 16);
    // What is no number stays none, if the bits that say so are among the lower ones; nothing is left of infinity.
    let first = if x.is_nan() { first | 0x40 } else { first };
    *x = if x.is_finite() { *x - term } else { 0.0 };
    first as u16
}
