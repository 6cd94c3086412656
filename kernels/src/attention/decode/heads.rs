//! A warp's arithmetic on the tensor cores: the queries of up to 16 rows against one tile of keys and values after
//! another.
//!
//! With `r = lane / 4` and `c = 2 (lane % 4)`, see [`mma`](cuda_std::ptx::mma) for the fragments:
//!
//! - scores = Q K^T, rows x tokens. B is two neighbouring squares of K, in memory order. 8 rows cost as much as 16. The
//!   lane receives tokens `c`, `c + 1` and `8 + c`, `9 + c` of rows `r` and `8 + r`.
//! - out = V^T P^T, elements x rows. The lane's scores are already in the positions that B needs, so they are turned
//!   into weights and rounded to 16 bits in place. A is V^T, read by transposing loads. This product costs one `mma`
//!   per 8 rows.
//!
//! So lanes exchange no data as long as the largest score does not grow. Scores need not even be relative to the
//! largest score. Any reference works if it is not so low that weights overflow. It is raised only when it is more than
//! [a slack](KvElement::SLACK) too low, which happens about once per stream.
//!
//! With an 8-bit cache, codes become 16-bit numbers as they are loaded. Scores are multiplied by the scales of their
//! keys. Weights are multiplied by the scales of their values after they are added to the sum.

#![allow(
    clippy::needless_range_loop,
    reason = "each index is used in several arrays and becomes a constant when the loop is unrolled"
)]

use core::marker::PhantomData;

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::ptx::ldmatrix;
use cuda_std::shared::shared_offset;
use cuda_std::warp::{FULL_MASK, WARP_SIZE};

use super::plan::TILE;
use super::rows::{RowSight, StreamRows};
use crate::attention::softcap::Softcap;
use crate::attention::squares::{Squares, scales};
use crate::element::Element;
use crate::kv_element::KvElement;

/// Maximum number of steps of 16 elements in a head.
const STEPS: usize = 32;

/// Maximum number of steps of queries in registers.
const QUERY_STEPS: usize = 16;

/// Returns the bytes from one row of queries in shared memory to the next. Eight rows touch every bank once.
const fn query_pitch(head_size: u32) -> u32 {
    2 * head_size + 16
}

/// Returns the bytes of shared memory for a warp's queries. They stay in registers, except from 512 elements on, where
/// only eight rows have kernels.
pub const fn query_bytes(head_size: u32) -> u32 {
    if head_size as usize > 16 * QUERY_STEPS { 8 * query_pitch(head_size) } else { 0 }
}

/// `H` rows (8 or 16) of `D` elements, with their partial results.
///
/// Arrays are sized for the largest instance. Other instances do not use the rest, and the compiler drops it.
pub struct QueryHeads<T, const D: u32, const H: u32> {
    /// Queries as fragments of A: rows by elements. Unused if they are in shared memory.
    query: [[u32; 4]; QUERY_STEPS],
    /// The shared-memory offset that this lane gives `ldmatrix` for the first two steps of queries. Unused if they are
    /// in registers.
    place: u32,
    /// The reference of rows `r` and `8 + r`, in powers of two. The four lanes that share a row have the same value.
    max: [f32; 2],
    /// This lane's share of the sum of weights.
    sum: [f32; 2],
    /// The weighted sum of values: elements by rows.
    out: [[[f32; 4]; 2]; STEPS],
    element: PhantomData<T>,
}

impl<T: KvElement, const D: u32, const H: u32> QueryHeads<T, D, H> {
    const STEPS: usize = D as usize / 16;
    const TILES: usize = H as usize / 8;

    /// Loads the queries of the rows. Tokens are `stride` elements apart, and missing rows become zeros.
    ///
    /// # Safety
    /// `query` has the rows, aligned to 4 bytes. `room` has [`query_bytes`] in shared memory, which no other code uses
    /// until the last tile is done. All lanes of the warp call this together, with a barrier of the warp before the first
    /// tile.
    #[inline(always)]
    pub unsafe fn load(query: *const u16, stride: u32, rows: StreamRows, room: *mut u8) -> Self {
        let (row, column) = (warp::lane_id() / 4, 2 * (warp::lane_id() % 4));
        let mut heads = QueryHeads {
            query: [[0; 4]; QUERY_STEPS],
            place: shared_offset(room) + warp::lane_id() % 8 * query_pitch(D) + warp::lane_id() / 8 * 16,
            max: [f32::MIN; 2],
            sum: [0.0; 2],
            out: [[[0.0; 4]; 2]; STEPS],
            element: PhantomData,
        };
        if query_bytes(D) > 0 {
            // SAFETY: the row is below `count`, or nothing is read. The room has eight rows.
            unsafe {
                let from =
                    query.add(rows.element::<D>(row.min(rows.count - 1), stride) + column as usize).cast::<u32>();
                let to = room.add((row * query_pitch(D) + 2 * column) as usize).cast::<u32>();
                for step in 0..2 * Self::STEPS {
                    *to.add(4 * step) = if row < rows.count { *from.add(4 * step) } else { 0 };
                }
            }
            return heads;
        }
        for n in 0..Self::TILES {
            let row = 8 * n as u32 + row;
            if row < rows.count {
                // SAFETY: the row is below `count`, and `column + 9` is below 16, so every pair is within the row.
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

    /// Attends to tile `number` of the plan. `scale` includes log2(e), unless scores have a softcap.
    ///
    /// # Safety
    /// `tile` is the tile's shared-memory offset, and the tile is visible to the warp. All lanes of the warp call this
    /// together.
    #[inline(always)]
    pub unsafe fn attend(&mut self, tile: u32, number: u32, sight: RowSight, scale: f32, softcap: Option<Softcap>) {
        let mut scores = [[0.0; 4]; 2];
        let values_at = tile + TILE * D * 16 / T::FORMAT.vector_elements();
        // SAFETY: the squares are in the tile's K. All lanes take part.
        unsafe {
            let mut keys = Squares::<T>::along_elements(tile, D / 16, TILE, false);
            let mut two_steps = [0; 4];
            for step in 0..Self::STEPS {
                let [low, high] = keys.of_tokens(step as u32);
                let query = if query_bytes(D) > 0 {
                    if step % 2 == 0 {
                        two_steps = ldmatrix::load_x4_at(self.place + 32 * step as u32);
                    }
                    [two_steps[step % 2 * 2], 0, two_steps[step % 2 * 2 + 1], 0]
                } else {
                    self.query[step]
                };
                scores[0] = T::Element::mma(query, low, scores[0]);
                scores[1] = T::Element::mma(query, high, scores[1]);
            }
        }
        let mut value_scales = [[T::VALUE_GAIN; 2]; 2];
        if T::FORMAT.is_coded() {
            // SAFETY: the scales follow the tile's V. All lanes take part.
            let [keys_low, keys_high, values_low, values_high] = unsafe { scales(2 * values_at - tile) };
            for i in 0..4 {
                scores[0][i] *= keys_low[i % 2];
                scores[1][i] *= keys_high[i % 2];
            }
            value_scales = [values_low, values_high].map(|pair| pair.map(|scale| scale * T::VALUE_GAIN));
        }
        let mut scale = scale * T::KEY_FACTOR;
        if let Some(softcap) = softcap {
            for half in 0..2 {
                for i in 0..2 * Self::TILES {
                    scores[half][i] = softcap.apply(scores[half][i]);
                }
            }
            scale = softcap.outer;
        }
        if !sight.is_whole(number) {
            Self::mask(&mut scores, number, sight);
        }
        // SAFETY: all lanes take part. The squares are in the tile's V.
        unsafe {
            let weights = self.weigh(scores, scale, value_scales);
            let mut values = Squares::<T>::along_elements(values_at, D / 16, TILE, false);
            for step in 0..Self::STEPS {
                let [[a, b], [c, d]] = values.of_elements(step as u32);
                for n in 0..Self::TILES {
                    self.out[step][n] = T::Element::mma([a, b, c, d], weights[n], self.out[step][n]);
                }
            }
        }
    }

    /// Sets the scores of tokens that a row does not see to minus infinity, so that their weight is 0.
    #[inline(always)]
    fn mask(scores: &mut [[f32; 4]; 2], number: u32, sight: RowSight) {
        for half in 0..2 {
            for i in 0..2 * Self::TILES {
                let offset = 2 * (warp::lane_id() % 4) + 8 * half as u32 + i as u32 % 2;
                if !sight.sees(i / 2, number, offset) {
                    scores[half][i] = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Returns the weights of scores as fragments of B. Adds them to the sums before it multiplies them by the scales
    /// of values.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    unsafe fn weigh(&mut self, scores: [[f32; 4]; 2], scale: f32, value_scales: [[f32; 2]; 2]) -> [[u32; 2]; 2] {
        let row_scores = |n: usize| [scores[0][2 * n], scores[0][2 * n + 1], scores[1][2 * n], scores[1][2 * n + 1]];
        let (mut top, mut above) = ([0.0; 2], false);
        for n in 0..Self::TILES {
            let [a, b, c, d] = row_scores(n);
            top[n] = a.max(b).max(c.max(d)) * scale;
            above |= top[n] > self.max[n] + T::SLACK;
        }
        // SAFETY: all lanes take part and take the same branch.
        unsafe {
            if warp::warp_vote_any(FULL_MASK, above) {
                self.raise(top);
            }
        }
        let mut weights = [[0; 2]; 2];
        for n in 0..Self::TILES {
            let weight = |score| GpuFloat::mul_add(score, scale, -self.max[n]).exp2_fast();
            let [a, b, c, d] = row_scores(n);
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

    /// Raises the references to the largest scores of a tile. Each lane passes its own largest scores in `top`.
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
                // The lane's columns of `out` belong to other heads than its rows of scores.
                let even = warp::warp_shuffle_idx(FULL_MASK, factor, 4 * column, WARP_SIZE);
                let odd = warp::warp_shuffle_idx(FULL_MASK, factor, 4 * column + 4, WARP_SIZE);
                for step in 0..Self::STEPS {
                    let [a, b, c, d] = self.out[step][n];
                    self.out[step][n] = [a * even, b * odd, c * even, d * odd];
                }
            }
        }
    }

    /// Writes the partial results of the first `count` rows to shared memory, in the format of [`merge`](super::merge).
    ///
    /// # Safety
    /// `rows` has room for them. All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn store_partials(&self, rows: *mut f32, count: u32) {
        let (row, column) = (warp::lane_id() / 4, 2 * (warp::lane_id() % 4));
        let stride = D + 4;
        for n in 0..Self::TILES {
            // SAFETY: all lanes take part. Heads are below `count`, and elements below D.
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
