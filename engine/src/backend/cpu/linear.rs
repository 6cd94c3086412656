//! Projections: `x [M, K] . W [N, K]^T`, one path from one token to thousands.
//!
//! For one token the time is that of reading the weight from memory once; for many it is that of the multiply-adds.
//! The output is cut into [`Tile`]s, of up to 64 tokens by some columns, which threads take in turn. Within a tile,
//! four rows of the weight at a time meet all tokens while they lie in the first-level cache; the tokens' activations lie
//! in the second. A weight of 16 bits is widened to f32 on the way: in registers for few tokens, else into that cache.
//!
//! Every element of the result is the sum over blocks of [`BLOCK`] products along `K`, each block summed by
//! `dot::tile`: an order that depends on `K` alone. So a token's result is the same, to the bit, whatever batch it is
//! in and however many threads there are.

use std::cell::RefCell;

use pulp::{Arch, Simd, WithSimd};

use super::dot::{ROWS, rows_by_tokens};
use super::element::Element;
use super::matmul::View;
use super::threads::Threads;
use super::tiles::{Finish, Tile};

/// Products summed at a time: four rows of the weight and six of activations of this length fit the first-level cache.
const BLOCK: usize = 768;
/// Most tokens for which a weight is widened in registers, as often as there are tiles of tokens. For more it is widened
/// once, into the first-level cache.
const FEW_TOKENS: usize = 6;
/// Bytes of activations that stay in the second-level cache beside the weight that streams through.
const CACHED: usize = 256 << 10;

/// A projection's operands and what happens to its result.
pub(super) struct Linear<'a, E> {
    /// `[M, K]`
    pub x: &'a [f32],
    /// `[N, K]`
    pub weight: &'a [E],
    pub finish: Finish<'a>,
    /// `K`
    pub inner: usize,
}

impl<E: Element> Linear<'_, E> {
    /// Computes into `out [M, cols]`.
    pub fn run(&self, arch: Arch, threads: &Threads, out: &mut [f32], cols: usize) {
        if out.is_empty() {
            return;
        }
        let work = out.len() * self.inner;
        let tiles = Tile::cut(out, cols, ROWS, work, threads);
        threads.each(tiles.into_iter(), |tile| {
            // Outside of `dispatch`: closures within it would not be compiled for its instruction set.
            WIDENED.with_borrow_mut(|widened| arch.dispatch(Job { linear: self, tile, widened }));
        });
    }
}

/// Adds the dot products of `rows` rows of the weight with all tokens, each of `len` products, to the columns of `out` from
/// `column` on.
#[inline(always)]
fn dots<S: Simd, E: Element>(
    simd: S,
    w: View<'_, E>,
    x: View<'_>,
    (rows, len): (usize, usize),
    out: &mut [&mut [f32]],
    column: usize,
) {
    if rows == ROWS {
        rows_by_tokens::<S, E, ROWS>(simd, w, x, len, out, column);
        return;
    }
    for r in 0..rows {
        rows_by_tokens::<S, E, 1>(simd, View { data: w.row(r), ..w }, x, len, out, column + r);
    }
}

struct Job<'a, 'b, E> {
    linear: &'a Linear<'a, E>,
    tile: Tile<'b>,
    /// The thread's buffer for the rows of the weight that it computes with.
    widened: &'a mut Vec<f32>,
}

thread_local! {
    static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl<E: Element> WithSimd for Job<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Job { linear, tile: Tile { row, column, mut out }, widened } = self;
        let inner = linear.inner;
        let x = &linear.x[row * inner..][..out.len() * inner];
        let cols = out[0].len();
        if !linear.finish.add {
            out.iter_mut().for_each(|row| row.fill(0.0));
        }
        // With few tokens each row of the weight is read from end to end; with many, only as much of `K` at a time as
        // keeps their activations in cache.
        let slab = if size_of_val(x) <= CACHED { inner.max(1) } else { BLOCK };
        // One cache line more than needed, so that the rows can begin at a multiple of a vector.
        widened.resize(ROWS * BLOCK + 16, 0.0);
        let skip = widened.as_ptr().align_offset(64).min(16);
        let widened = &mut widened[skip..];
        for start in (0..inner).step_by(slab) {
            for c in (0..cols).step_by(ROWS) {
                let rows = ROWS.min(cols - c);
                for k in (start..inner.min(start + slab)).step_by(BLOCK) {
                    let len = BLOCK.min(inner.min(start + slab) - k);
                    let weight = &linear.weight[(column + c) * inner + k..];
                    let x = View { data: &x[k..], stride: inner };
                    if out.len() <= FEW_TOKENS || E::as_f32(weight).is_some() {
                        let weight = View { data: weight, stride: inner };
                        dots(simd, weight, x, (rows, len), &mut out, c);
                    } else {
                        for r in 0..rows {
                            E::widen(&weight[r * inner..][..len], &mut widened[r * BLOCK..][..len]);
                        }
                        let weight = View { data: &*widened, stride: BLOCK };
                        dots(simd, weight, x, (rows, len), &mut out, c);
                    }
                }
            }
        }
        for row in out {
            linear.finish.apply(row, column);
        }
    }
}
