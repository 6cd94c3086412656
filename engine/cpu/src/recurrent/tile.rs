//! The recurrence of some columns of a head's matrix, for the new tokens of a sequence.

#![allow(clippy::needless_range_loop)] // closures might not be compiled for the instruction set

use std::ops::Range;

use checkpoint::config::RecurrentKind;
use pulp::{Simd, WithSimd};

use super::Job;
use super::states::advance;
use crate::pages::prefetch;

/// How many tokens ahead inputs are prefetched. A head's inputs are too far apart for the processor's own prefetcher.
const AHEAD: usize = 2;
/// Elements of a cache line.
const LINE: usize = 16;

/// Some columns of a head, for one sequence.
pub(super) struct Columns<'a> {
    /// The row of the sequence's first new token.
    pub first_row: usize,
    /// The first column among the columns of all heads.
    pub first: usize,
    /// The results of each token.
    pub out: Vec<&'a mut [f32]>,
    /// The number of new tokens before each state, and the columns' part of the state, `[tiles][key_dim][tile]`.
    pub states: Vec<(usize, &'a mut [f32])>,
}

/// Returns the columns of a tile: at most four vectors if the processor has 32 registers, otherwise two. Whole tiles make
/// up a head.
pub(super) struct Width {
    pub value_dim: usize,
}

impl WithSimd for Width {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        let most = if S::REGISTER_COUNT >= 32 { 4 } else { 2 };
        let vectors = [4, 2].into_iter().find(|&n| n <= most && self.value_dim.is_multiple_of(n * S::F32_LANES));
        vectors.unwrap_or(1) * S::F32_LANES
    }
}

pub(super) struct Run<'a, 'b, 'c> {
    pub job: &'a Job<'a>,
    pub columns: &'b mut Columns<'c>,
}

impl WithSimd for Run<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run { job, columns: Columns { first_row, first, out, states } } = self;
        let (tile, is_delta) = (job.tile, job.weight.shape.kind == RecurrentKind::DeltaNet);
        advance(
            states,
            #[inline(always)]
            |tokens, state| {
                for (i, state) in state.chunks_exact_mut(job.weight.shape.key_dim * tile).enumerate() {
                    let out = out[tokens.clone()].iter_mut().map(|row| &mut row[i * tile..][..tile]);
                    let rows = *first_row + tokens.start..*first_row + tokens.end;
                    let place = (rows, *first + i * tile);
                    match (tile / S::F32_LANES, is_delta) {
                        (1, true) => job.pass::<S, 1, true>(simd, place, state, out),
                        (2, true) => job.pass::<S, 2, true>(simd, place, state, out),
                        (4, true) => job.pass::<S, 4, true>(simd, place, state, out),
                        (1, false) => job.pass::<S, 1, false>(simd, place, state, out),
                        (2, false) => job.pass::<S, 2, false>(simd, place, state, out),
                        (4, false) => job.pass::<S, 4, false>(simd, place, state, out),
                        (count, _) => unreachable!("a tile of {count} vectors"),
                    }
                }
            },
        );
    }
}

impl Job<'_> {
    /// Takes tokens through the tile that begins at column `first`. A row of the tile has `V` vectors. For each token
    /// `S = decay * S + key * added`, and the result is `query . S`. In a delta net `added` is the token's rate times the
    /// difference between its value and the value that the decayed state has for its key. The previous token's update
    /// already sums that value, in the order of rows, so each token reads the state once.
    #[inline(always)]
    fn pass<'o, S: Simd, const V: usize, const IS_DELTA: bool>(
        &self,
        simd: S,
        (rows, first): (Range<usize>, usize),
        state: &mut [f32],
        out: impl Iterator<Item = &'o mut [f32]>,
    ) {
        let shape = &self.weight.shape;
        let head = first / shape.value_dim;
        let state = S::as_mut_simd_f32s(state).0.as_chunks_mut::<V>().0;
        let zero = [simd.splat_f32s(0.0); V];
        let mut seen = zero;
        if IS_DELTA {
            let [_, key, _] = self.inputs(rows.start, first);
            for (row, key) in state.iter().zip(key) {
                for v in 0..V {
                    seen[v] = simd.mul_add_e_f32s(simd.splat_f32s(*key), row[v], seen[v]);
                }
            }
        }
        for (row, out) in rows.clone().zip(out) {
            self.prefetch(rows.end.min(row + AHEAD + 1) - 1, first);
            let [query, key, values] = self.inputs(row, first);
            let rates = &self.rates[row * 2 * shape.heads..];
            let (decay, factor) = (simd.splat_f32s(rates[head]), simd.splat_f32s(rates[shape.heads + head]));
            let values: &[S::f32s; V] = S::as_simd_f32s(values).0.first_chunk().expect("a tile's vectors");
            let mut added = *values;
            for v in 0..V {
                if IS_DELTA {
                    added[v] = simd.sub_f32s(added[v], simd.mul_f32s(decay, seen[v]));
                }
                added[v] = simd.mul_f32s(added[v], factor);
            }
            let mut results = zero;
            seen = zero;
            // The last token's sums are not used.
            let [_, next, _] = self.inputs(rows.end.min(row + 2) - 1, first);
            for (((state, key), query), next) in state.iter_mut().zip(key).zip(query).zip(next) {
                for v in 0..V {
                    let kept = simd.mul_f32s(decay, state[v]);
                    let new = simd.mul_add_e_f32s(simd.splat_f32s(*key), added[v], kept);
                    state[v] = new;
                    results[v] = simd.mul_add_e_f32s(simd.splat_f32s(*query), new, results[v]);
                    if IS_DELTA {
                        seen[v] = simd.mul_add_e_f32s(simd.splat_f32s(*next), new, seen[v]);
                    }
                }
            }
            if let Some(skip) = &self.weight.skip {
                for v in 0..V {
                    results[v] = simd.mul_add_e_f32s(simd.splat_f32s(skip[head]), values[v], results[v]);
                }
            }
            S::as_mut_simd_f32s(out).0.copy_from_slice(&results);
        }
    }

    /// The query, the key and the tile's values of a token.
    #[inline(always)]
    fn inputs(&self, row: usize, first: usize) -> [&[f32]; 3] {
        let (key_dim, channels) = (self.weight.shape.key_dim, self.weight.shape.channels());
        let mixed = &self.mixed[row * channels..][..channels];
        let [query, key, values] = self.columns(first / self.weight.shape.value_dim);
        [&mixed[query..][..key_dim], &mixed[key..][..key_dim], &mixed[values + first..][..self.tile]]
    }

    #[inline(always)]
    fn prefetch(&self, row: usize, first: usize) {
        for part in self.inputs(row, first) {
            part.chunks(LINE).for_each(|line| prefetch(line.as_ptr()));
        }
    }
}
