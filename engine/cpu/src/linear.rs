//! Projections: `x [M, K] . W [N, K]^T`, one path from one token to thousands.
//!
//! For one token the time is that of reading the weight from memory once; for many it is that of the multiply-adds.
//! The output is cut into [`Tile`]s, of up to 64 tokens by some columns, which threads take in turn. The sums of a few
//! tokens and up to 64 columns are in registers while the weight goes by.
//!
//! Every element of the result is summed in order of `K`, whatever batch it is in and however many threads there are: so
//! it is the same, to the bit. Where that is asked for, and the processor multiplies pairs of bf16 elements, activations are rounded to that type
//! before they meet a weight of it.

use std::ops::Range;

use bytemuck::Pod;
use pulp::{Arch, Simd, WithSimd};

use super::panels::{PANEL, Panels, Words};
#[cfg(target_arch = "x86_64")]
use super::product::Pairs;
use super::product::{Halves, Product, Singles, WidenedPairs};
use super::threads::Threads;
use super::tiles::{Finish, Tile};

/// Activations of a token at a time, where there are more tokens: those of [`Product::TOKENS`] tokens stay in the first-level
/// cache, those of a tile and a panel in the second.
const BLOCK: usize = 768;
/// Columns that tiles are cut at where there are fewer panels than threads: two of the longest vectors.
const HALF: usize = PANEL / 2;

/// A projection's operands and what happens to its result.
#[derive(Clone, Copy)]
pub(super) struct Linear<'a> {
    /// `[M, inner]`
    pub x: &'a [f32],
    /// `K`, or half of it where activations are pairs.
    pub inner: usize,
    pub weight: &'a Panels,
    pub finish: Finish<'a>,
}

impl Linear<'_> {
    /// Computes into `out [M, N]`.
    pub fn run(self, arch: Arch, threads: &Threads, out: &mut [f32]) {
        match self.weight.words() {
            Words::F32(words) => self.each_tile(threads, out, Singles, words, |job| arch.dispatch(job)),
            Words::F16(words) => self.each_tile(threads, out, Halves, words, |job| arch.dispatch(job)),
            Words::Bf16Pairs(words) => self.each_tile(threads, out, WidenedPairs, words, |job| arch.dispatch(job)),
        }
    }

    /// The same with activations in pairs.
    #[cfg(target_arch = "x86_64")]
    pub fn run_pairs(self, pairs: Pairs, threads: &Threads, out: &mut [f32]) {
        let Words::Bf16Pairs(words) = self.weight.words() else { panic!("only a weight in bf16 meets pairs") };
        self.each_tile(threads, out, pairs, words, |job| {
            pairs.dispatch(
                #[inline(always)]
                |simd| job.with_simd(simd),
            );
        });
    }

    fn each_tile<'a, P: Product>(
        &'a self,
        threads: &Threads,
        out: &'a mut [f32],
        product: P,
        words: &'a [P::Word],
        run: impl Fn(Job<'a, P>) + Sync,
    ) {
        if out.is_empty() {
            return;
        }
        let cols = self.weight.rows();
        let band = if cols >= PANEL * threads.count() { PANEL } else { HALF };
        let tiles = Tile::cut(out, cols, (1, band), out.len() * self.inner, threads);
        threads.each(tiles.into_iter(), |tile| run(Job { linear: self, product, words, tile }));
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
                // Whether the sums of a whole panel fit the registers, and whether a tile begins with half of one.
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
    /// Adds the products of a block of `K` to `V` vectors of columns of all tokens, and returns how many columns these are.
    #[inline(always)]
    fn columns<S: Simd, const V: usize>(&mut self, simd: S, column: usize, block: Range<usize>) -> usize {
        let at = self.tile.column + column;
        let lines = self.linear.weight.row_words();
        let first = (at / PANEL * lines + block.start / P::DEPTH) * PANEL + at % PANEL;
        let words = &self.words[first..];
        let mut token = 0;
        while token < self.tile.out.len() {
            // As many at a time, or nearly: 8 tokens are 4 and 4 rather than 6 and 2.
            let left = self.tile.out.len() - token;
            let count = left.div_ceil(left.div_ceil(P::TOKENS));
            match count {
                1 => self.tokens::<S, V, 1>(simd, words, (token, column), block.clone()),
                2 => self.tokens::<S, V, 2>(simd, words, (token, column), block.clone()),
                3 => self.tokens::<S, V, 3>(simd, words, (token, column), block.clone()),
                4 => self.tokens::<S, V, 4>(simd, words, (token, column), block.clone()),
                5 => self.tokens::<S, V, 5>(simd, words, (token, column), block.clone()),
                _ if const { P::TOKENS >= 6 } => self.tokens::<S, V, 6>(simd, words, (token, column), block.clone()),
                _ => unreachable!("no more than TOKENS"),
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

/// Reads as many numbers as there are lanes, or all if there are fewer.
#[inline(always)]
fn load<F: Pod, const V: usize>(sums: &mut [F; V], from: &[f32]) {
    let sums: &mut [f32] = bytemuck::cast_slice_mut(sums);
    match from.get(..sums.len()) {
        Some(from) => sums.copy_from_slice(from),
        None => sums[..from.len()].copy_from_slice(from),
    }
}

/// Writes as many numbers as there are lanes, or as there is room for.
#[inline(always)]
fn store<F: Pod, const V: usize>(sums: &[F; V], to: &mut [f32]) {
    let sums: &[f32] = bytemuck::cast_slice(sums);
    match to.get_mut(..sums.len()) {
        Some(to) => to.copy_from_slice(sums),
        None => to.copy_from_slice(&sums[..to.len()]),
    }
}

/// `sums[t][..] += sum over k of words[k][..] * x[t][k]`, in order of `k`, for tokens that all have as many activations.
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
            // Not `from_fn`: its closure is not always inlined, and is then compiled for no instruction set in particular, so
            // that each operation in it is a call.
            let mut w = [simd.splat_f32s(0.0); V];
            for (v, w) in w.iter_mut().enumerate() {
                // SAFETY: the line is one of `lines`, the last of which has so many words, as asserted above.
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

/// As many words as a vector has lanes, from `at` on: see [`Product::load`].
///
/// With checked indices the compiler keeps copies of all sums for the panics, and the loop takes twice the time.
///
/// # Safety
/// There are so many words from `at` on.
#[inline(always)]
unsafe fn vector<S: Simd, P: Product>(simd: S, product: P, words: &[P::Word], at: usize, depth: usize) -> S::f32s {
    // SAFETY: there are, by this function's contract.
    product.load(simd, unsafe { words.get_unchecked(at..at + S::F32_LANES) }, depth)
}
