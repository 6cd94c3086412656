//! Projections `x [M, K] . W [N, K]^T`, with one code path from one token to thousands.
//!
//! For one token, the time is dominated by reading the weight from memory once. For many, it is dominated by the
//! multiply-adds. The output is cut into [`Tile`]s of up to 64 tokens by some columns, which threads take in turn. The
//! sums of a few tokens and up to 64 columns stay in registers while the weight is read.
//!
//! Every element of the result is summed in order of `K`. So it is the same to the bit in every batch and with any
//! number of threads. On request, activations are rounded to bf16 before products with a bf16 weight, if the processor
//! multiplies pairs of bf16 elements.

use std::ops::Range;

use bytemuck::Pod;
use pulp::{Arch, Simd, WithSimd};

use super::panels::{PANEL, Panels, Words};
#[cfg(target_arch = "x86_64")]
use super::product::Pairs;
use super::product::{Halves, Product, Singles, WidenedPairs};
use super::threads::Threads;
use super::tiles::{Finish, Tile};

/// Columns of `K` in a block, used if a tile has more than [`Product::TOKENS`] tokens. The activations of `TOKENS`
/// tokens then stay in the first-level cache, and those of a tile and a panel in the second.
const BLOCK: usize = 768;
/// Columns of a narrow tile, used if there are fewer panels than threads. They are two of the longest vectors.
const HALF: usize = PANEL / 2;

/// A projection's operands, and the steps that finish its result.
#[derive(Clone, Copy)]
pub(super) struct Linear<'a> {
    /// `[M, inner]`
    pub x: &'a [f32],
    /// `K`, or half of it (rounded up) if activations are pairs.
    pub inner: usize,
    pub weight: &'a Panels,
    pub finish: Finish<'a>,
}

impl Linear<'_> {
    /// Divides `out [M, N]` into tiles for the threads.
    pub fn cut<'o>(&self, threads: &Threads, out: &'o mut [f32]) -> Vec<Tile<'o>> {
        let cols = self.weight.rows();
        let band = if cols >= PANEL * threads.count() { PANEL } else { HALF };
        let work = out.len() * self.inner;
        Tile::cut(out, cols, (1, band), work, threads)
    }

    /// Writes a tile of the result.
    pub fn run(&self, arch: Arch, tile: Tile<'_>) {
        match self.weight.words() {
            Words::F32(words) => arch.dispatch(Job { linear: self, product: Singles, words, tile }),
            Words::F16(words) => arch.dispatch(Job { linear: self, product: Halves, words, tile }),
            Words::Bf16Pairs(words) => arch.dispatch(Job { linear: self, product: WidenedPairs, words, tile }),
        }
    }

    /// Writes a tile of the result. `x` contains pairs of bf16 activations.
    #[cfg(target_arch = "x86_64")]
    pub fn run_pairs(&self, pairs: Pairs, tile: Tile<'_>) {
        let Words::Bf16Pairs(words) = self.weight.words() else { panic!("run_pairs needs a bf16 weight") };
        let job = Job { linear: self, product: pairs, words, tile };
        pairs.dispatch(
            #[inline(always)]
            |simd| job.with_simd(simd),
        );
    }
}

/// One tile of a projection.
struct Job<'a, P: Product> {
    linear: &'a Linear<'a>,
    product: P,
    words: &'a [P::Word],
    tile: Tile<'a>,
}

impl<P: Product> WithSimd for Job<'_, P> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (inner, cols) = (self.linear.inner, self.tile.out[0].len());
        if !self.linear.finish.add {
            self.tile.out.iter_mut().for_each(|row| row.fill(0.0));
        }
        // For few tokens a panel is read from end to end.
        let block = if self.tile.out.len() <= P::TOKENS { inner.max(1) } else { BLOCK };
        for start in (0..inner).step_by(block) {
            let end = inner.min(start + block);
            let mut c = 0;
            while c < cols {
                // Use four vectors if the sums of a whole panel fit the registers, and the tile does not begin in the
                // middle of a panel.
                let whole =
                    const { S::REGISTER_COUNT >= 32 } && (self.tile.column + c) % PANEL + 4 * S::F32_LANES <= PANEL;
                c += if whole && cols - c > 2 * S::F32_LANES {
                    self.columns::<S, 4>(simd, c, start..end)
                } else {
                    self.columns::<S, 2>(simd, c, start..end)
                };
            }
        }
        for row in &mut self.tile.out {
            self.linear.finish.apply(row, self.tile.column);
        }
    }
}

impl<P: Product> Job<'_, P> {
    /// Adds the products of a block of `K` to `V` vectors of columns for all tokens. Returns the number of columns.
    #[inline(always)]
    fn columns<S: Simd, const V: usize>(&mut self, simd: S, column: usize, block: Range<usize>) -> usize {
        let at = self.tile.column + column;
        let lines = self.linear.weight.row_words();
        let first = (at / PANEL * lines + block.start / P::DEPTH) * PANEL + at % PANEL;
        let words = &self.words[first..];
        let mut token = 0;
        while token < self.tile.out.len() {
            // Divide the tokens evenly: 8 tokens become 4 and 4 rather than 6 and 2.
            let left = self.tile.out.len() - token;
            let count = left.div_ceil(left.div_ceil(P::TOKENS));
            match count {
                1 => self.tokens::<S, V, 1>(simd, words, (token, column), block.clone()),
                2 => self.tokens::<S, V, 2>(simd, words, (token, column), block.clone()),
                3 => self.tokens::<S, V, 3>(simd, words, (token, column), block.clone()),
                4 => self.tokens::<S, V, 4>(simd, words, (token, column), block.clone()),
                5 => self.tokens::<S, V, 5>(simd, words, (token, column), block.clone()),
                _ if const { P::TOKENS >= 6 } => self.tokens::<S, V, 6>(simd, words, (token, column), block.clone()),
                _ => unreachable!("count is at most TOKENS"),
            }
            token += count;
        }
        V * S::F32_LANES
    }

    #[inline(always)]
    fn tokens<S: Simd, const V: usize, const T: usize>(
        &mut self,
        simd: S,
        words: &[P::Word],
        (token, column): (usize, usize),
        block: Range<usize>,
    ) {
        let Linear { x, inner, .. } = *self.linear;
        let row = self.tile.row + token;
        let x = std::array::from_fn(|t| &x[(row + t) * inner..][block.clone()]);
        let out = &mut self.tile.out[token..token + T];
        let mut sums = [[simd.splat_f32s(0.0); V]; T];
        for (sums, out) in sums.iter_mut().zip(&*out) {
            load(sums, &out[column..]);
        }
        add_products(simd, self.product, words, x, &mut sums);
        for (sums, out) in sums.iter().zip(out) {
            store(sums, &mut out[column..]);
        }
    }
}

/// Fills `sums` from `from`. If `from` is shorter, the remaining lanes keep their values.
#[inline(always)]
fn load<F: Pod, const V: usize>(sums: &mut [F; V], from: &[f32]) {
    let sums: &mut [f32] = bytemuck::cast_slice_mut(sums);
    match from.get(..sums.len()) {
        Some(from) => sums.copy_from_slice(from),
        None => sums[..from.len()].copy_from_slice(from),
    }
}

/// Writes `sums` to `to`. If `to` is shorter, the remaining lanes are dropped.
#[inline(always)]
fn store<F: Pod, const V: usize>(sums: &[F; V], to: &mut [f32]) {
    let sums: &[f32] = bytemuck::cast_slice(sums);
    match to.get_mut(..sums.len()) {
        Some(to) => to.copy_from_slice(sums),
        None => to.copy_from_slice(&sums[..to.len()]),
    }
}

/// Adds the products of `words` and `x`, in order of `k`: `sums[t][..] += words[k][..] * x[t][k]`. All slices of `x`
/// have the same length.
#[inline(always)]
fn add_products<S: Simd, P: Product, const V: usize, const T: usize>(
    simd: S,
    product: P,
    words: &[P::Word],
    x: [&[f32]; T],
    sums: &mut [[S::f32s; V]; T],
) {
    let (len, lanes) = (x[0].len(), S::F32_LANES);
    assert!(x.iter().all(|x| x.len() == len));
    let lines = len.div_ceil(P::DEPTH);
    assert!(lines == 0 || (lines - 1) * PANEL + V * lanes <= words.len());
    for line in 0..lines {
        for depth in 0..P::DEPTH {
            let k = line * P::DEPTH + depth;
            if P::DEPTH > 1 && k == len {
                break;
            }
            let at = |v: usize| line * PANEL + v % V * lanes;
            // Not `from_fn`: its closure is not always inlined. It would then be compiled for the baseline instruction
            // set, and each operation in it would be a call.
            let mut w = [simd.splat_f32s(0.0); V];
            for (v, w) in w.iter_mut().enumerate() {
                // SAFETY: `line` is less than `lines`, and the assertion above shows that even the last line has enough
                // words.
                *w = unsafe { vector(simd, product, words, at(v), depth) };
            }
            for t in 0..T {
                // SAFETY: `k` is less than the length of each of these slices.
                let x = simd.splat_f32s(unsafe { *x[t].get_unchecked(k) });
                for v in 0..V {
                    sums[t][v] = product.mul_add(simd, w[v], x, sums[t][v]);
                }
            }
        }
    }
}

/// Loads a vector of words from index `at` on (see [`Product::load`]).
///
/// With checked indices the compiler keeps copies of all sums for the panics, and the loop takes twice as long.
///
/// # Safety
/// `words` must have a vector's number of words from `at` on.
#[inline(always)]
unsafe fn vector<S: Simd, P: Product>(simd: S, product: P, words: &[P::Word], at: usize, depth: usize) -> S::f32s {
    // SAFETY: the caller ensures that the words exist.
    product.load(simd, unsafe { words.get_unchecked(at..at + S::F32_LANES) }, depth)
}
