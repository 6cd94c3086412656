//! A warp's arithmetic: the queries of up to 16 rows against tile after tile of keys and values, on the tensor cores.
//!
//! With `r = lane / 4` and `c = 2 (lane % 4)`, see [`mma`](cuda_std::ptx::mma) for the fragments:
//!
//! - scores = Q K^T, rows x tokens: a tile of K as it lies in memory is B, two of them side by side. 8 rows or 16 cost
//!   the same. The lane receives tokens `c`, `c + 1` and `8 + c`, `9 + c` of rows `r` and `8 + r`.
//! - out = V^T P^T, elements x rows: the scores that a lane holds are at the places that it must hold of B, so that
//!   weights are rounded to 16 bits where they are. V^T is A, read by transposing loads. Its product costs one `mma`
//!   for 8 rows, not for 16.
//!
//! So lanes exchange nothing as long as the largest score does not grow. Nor need scores be taken relative to the
//! largest: any reference serves that is not so far below it that weights overflow. It is raised only when it is more
//! than [a slack](KvElement::SLACK) too low, which happens about once a stream.
//!
//! Where the cache has 8 bits, codes become 16-bit numbers as they are loaded. Scores are multiplied with the scales of
//! their keys, and weights, once they are summed, with those of their values.

#![allow(
    clippy::needless_range_loop,
    reason = "an index is the same thing in several arrays, and a constant when unrolled"
)]

use core::marker::PhantomData;

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, WARP_SIZE};

use super::plan::TILE;
use super::rows::{RowSight, StreamRows};
use crate::attention::squares::{Squares, scales};
use crate::element::Element;
use crate::kv_element::KvElement;

/// Most steps of 16 elements in a head.
const STEPS: usize = 16;

/// `H` rows (8 or 16) of `D` elements, and their partial results so far. Arrays are as long as the largest instance
/// needs; the other instances do not use the rest, and the compiler drops it.
pub struct QueryHeads<T, const D: u32, const H: u32> {
    /// Queries, fragments of A: rows by elements.
    query: [[u32; 4]; STEPS],
    /// The reference of rows `r` and `8 + r`: in powers of two, and the same in the four lanes that have the row.
    max: [f32; 2],
    /// The lane's own share of the sum of weights.
    sum: [f32; 2],
    /// The weighted sum of values: elements by rows.
    out: [[[f32; 4]; 2]; STEPS],
    element: PhantomData<T>,
}

impl<T: KvElement, const D: u32, const H: u32> QueryHeads<T, D, H> {
    const STEPS: usize = D as usize / 16;
    const TILES: usize = H as usize / 8;

    /// Loads the queries of the rows from tokens that are `stride` elements apart; those missing are zeros.
    ///
    /// # Safety
    /// `query` has the rows, and they are aligned to 4 bytes.
    #[inline(always)]
    pub unsafe fn load(query: *const u16, stride: u32, rows: StreamRows) -> Self {
        let (row, column) = (warp::lane_id() / 4, 2 * (warp::lane_id() % 4));
        let mut heads = QueryHeads {
            query: [[0; 4]; STEPS],
            max: [f32::MIN; 2],
            sum: [0.0; 2],
            out: [[[0.0; 4]; 2]; STEPS],
            element: PhantomData,
        };
        for n in 0..Self::TILES {
            let row = 8 * n as u32 + row;
            if row < rows.count {
                // SAFETY: the row is below `count`, and `column + 9` is below 16, so that every pair is within the row.
                unsafe {
                    let from = query.add(rows.element::<D>(row, stride) + column as usize).cast::<u32>();
                    for step in 0..Self::STEPS {
                        heads.query[step][n] = *from.add(8 * step);
                        heads.query[step][n + 2] = *from.add(8 * step + 4);
                    }
                }
            }
        }
        heads
    }

    /// Attends to tile `number` of the plan. `scale` includes log2(e).
    ///
    /// # Safety
    /// `tile` is its offset in shared memory, and the tile is visible to the warp; all lanes of the warp call
    /// this together.
    #[inline(always)]
    pub unsafe fn take(&mut self, tile: u32, number: u32, sight: RowSight, scale: f32) {
        let mut scores = [[0.0; 4]; 2];
        let values_at = tile + TILE * D * 16 / T::FORMAT.vector_elements();
        // SAFETY: the squares are in the tile's K; all lanes take part.
        unsafe {
            let mut keys = Squares::<T>::along_elements(tile, D / 16, TILE, false);
            for step in 0..Self::STEPS {
                let [low, high] = keys.of_tokens(step as u32);
                scores[0] = T::Element::mma(self.query[step], low, scores[0]);
                scores[1] = T::Element::mma(self.query[step], high, scores[1]);
            }
        }
        let mut value_scales = [[T::VALUE_GAIN; 2]; 2];
        if T::FORMAT.is_coded() {
            // SAFETY: the scales are behind the tile's V; all lanes take part.
            let [keys_low, keys_high, values_low, values_high] = unsafe { scales(2 * values_at - tile) };
            for i in 0..4 {
                scores[0][i] *= keys_low[i % 2];
                scores[1][i] *= keys_high[i % 2];
            }
            value_scales = [values_low, values_high].map(|pair| pair.map(|scale| scale * T::VALUE_GAIN));
        }
        if !sight.is_whole(number) {
            Self::hide(&mut scores, number, sight);
        }
        // SAFETY: all lanes take part; the squares are in the tile's V.
        unsafe {
            let weights = self.weigh(scores, scale * T::KEY_FACTOR, value_scales);
            let mut values = Squares::<T>::along_elements(values_at, D / 16, TILE, false);
            for step in 0..Self::STEPS {
                let [[a, b], [c, d]] = values.of_elements(step as u32);
                for n in 0..Self::TILES {
                    self.out[step][n] = T::Element::mma([a, b, c, d], weights[n], self.out[step][n]);
                }
            }
        }
    }

    /// Masks the scores of tokens that their rows do not see: they become minus infinity, whose weight is 0.
    #[inline(always)]
    fn hide(scores: &mut [[f32; 4]; 2], number: u32, sight: RowSight) {
        for half in 0..2 {
            for i in 0..2 * Self::TILES {
                let offset = 2 * (warp::lane_id() % 4) + 8 * half as u32 + i as u32 % 2;
                if !sight.sees(i / 2, number, offset) {
                    scores[half][i] = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// The weights of scores, as fragments of B; they are added to the sums, and then multiplied with the scales of values.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    unsafe fn weigh(&mut self, scores: [[f32; 4]; 2], scale: f32, value_scales: [[f32; 2]; 2]) -> [[u32; 2]; 2] {
        let of_head = |n: usize| [scores[0][2 * n], scores[0][2 * n + 1], scores[1][2 * n], scores[1][2 * n + 1]];
        let (mut top, mut above) = ([0.0; 2], false);
        for n in 0..Self::TILES {
            let [a, b, c, d] = of_head(n);
            top[n] = a.max(b).max(c.max(d)) * scale;
            above |= top[n] > self.max[n] + T::SLACK;
        }
        // SAFETY: all lanes take part, and go the same way.
        unsafe {
            if warp::warp_vote_any(FULL_MASK, above) {
                self.raise(top);
            }
        }
        let mut weights = [[0; 2]; 2];
        for n in 0..Self::TILES {
            let weight = |score| GpuFloat::mul_add(score, scale, -self.max[n]).exp2_fast();
            let [a, b, c, d] = of_head(n);
            let (a, b, c, d) = (weight(a), weight(b), weight(c), weight(d));
            self.sum[n] += (a + b) + (c + d);
            let [low, high] = if T::FORMAT.is_coded() {
                let [[first, second], [third, fourth]] = value_scales;
                [[a * first, b * second], [c * third, d * fourth]]
            } else {
                [[a, b], [c, d]]
            };
            weights[n] = [low, high].map(|pair| <T::Element as Element>::Pair::from_f32(pair).to_bits());
        }
        weights
    }

    /// Raises the references to the largest scores of a tile, of which each lane has its own in `top`.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    unsafe fn raise(&mut self, top: [f32; 2]) {
        let column = warp::lane_id() % 4 * 2;
        for n in 0..Self::TILES {
            // SAFETY: all lanes take part.
            unsafe {
                let pair = top[n].max(warp::warp_shuffle_xor(FULL_MASK, top[n], 1, WARP_SIZE));
                let most = pair.max(warp::warp_shuffle_xor(FULL_MASK, pair, 2, WARP_SIZE)).max(self.max[n]);
                let factor = (self.max[n] - most).exp2_fast();
                self.max[n] = most;
                self.sum[n] *= factor;
                // The columns of `out` that the lane has are other heads than its rows of scores.
                let even = warp::warp_shuffle_idx(FULL_MASK, factor, 4 * column, WARP_SIZE);
                let odd = warp::warp_shuffle_idx(FULL_MASK, factor, 4 * column + 4, WARP_SIZE);
                for step in 0..Self::STEPS {
                    let [a, b, c, d] = self.out[step][n];
                    self.out[step][n] = [a * even, b * odd, c * even, d * odd];
                }
            }
        }
    }

    /// Writes the partial results of the first `count` rows to shared memory, as rows of
    /// [`merge`](super::merge).
    ///
    /// # Safety
    /// There is room for them at `rows`; all lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn leave(&self, rows: *mut f32, count: u32) {
        let (row, column) = (warp::lane_id() / 4, 2 * (warp::lane_id() % 4));
        let stride = D + 4;
        for n in 0..Self::TILES {
            // SAFETY: all lanes take part; heads are below `count`, elements below D.
            unsafe {
                let pair = self.sum[n] + warp::warp_shuffle_xor(FULL_MASK, self.sum[n], 1, WARP_SIZE);
                let sum = pair + warp::warp_shuffle_xor(FULL_MASK, pair, 2, WARP_SIZE);
                let head = 8 * n as u32 + row;
                if head < count && column == 0 {
                    let state = rows.add((head * stride + D) as usize).cast::<[f32; 4]>();
                    *state = [self.max[n], sum * T::SUM_GAIN, 0.0, 0.0];
                }
                for odd in 0..2 {
                    let head = 8 * n as u32 + column + odd as u32;
                    if head < count {
                        let to = rows.add((head * stride + row) as usize);
                        for step in 0..Self::STEPS {
                            *to.add(16 * step) = self.out[step][n][odd];
                            *to.add(16 * step + 8) = self.out[step][n][odd + 2];
                        }
                    }
                }
            }
        }
    }
}
