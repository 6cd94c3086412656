//! The recurrence of some columns of a head's matrix, for the new tokens of a sequence.

use checkpoint::config::RecurrentKind;
use pulp::{Simd, WithSimd};

use super::{Job, TILE};

/// Independent partial sums. An addition then need not wait for the previous one.
const SUMS: usize = 4;

/// Some columns of a head, for one sequence.
pub(super) struct Columns<'a> {
    /// The row of the sequence's first new token.
    pub first_row: usize,
    /// The first column among the columns of all heads.
    pub first: usize,
    /// `[tokens][columns]`: the results.
    pub out: &'a mut [f32],
    /// The number of new tokens before each state, and the columns' part of the state, `[tiles][key_dim][TILE]`.
    pub states: Vec<(usize, &'a mut [f32])>,
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
        let size = job.weight.shape.key_dim * TILE;
        let width = states.first().map_or(0, |(_, state)| state.len() / size * TILE);
        let mut from = 0;
        for i in 0..states.len() {
            let (done, left) = states.split_at_mut(i);
            let (end, state) = &mut left[0];
            if let Some((_, earlier)) = done.last() {
                state.copy_from_slice(earlier);
            }
            for (tile, state) in state.chunks_exact_mut(size).enumerate() {
                for token in from..*end {
                    let out = &mut out[token * width + tile * TILE..][..TILE];
                    job.token(simd, *first_row + token, *first + tile * TILE, state, out);
                }
            }
            from = *end;
        }
    }
}

impl Job<'_> {
    /// Takes a token through the tile that begins at column `first`: `S = decay * S + key * added`, and the result is
    /// `query . S`. In a delta net `added` is the token's rate times the difference between its value and the value that the
    /// decayed state has for its key.
    #[inline(always)]
    fn token<S: Simd>(&self, simd: S, row: usize, first: usize, state: &mut [f32], out: &mut [f32]) {
        let shape = &self.weight.shape;
        let (head, channels) = (first / shape.value_dim, shape.channels());
        let mixed = &self.mixed[row * channels..][..channels];
        let [query, key, values] = self.columns(head);
        let (query, key) = (&mixed[query..][..shape.key_dim], &mixed[key..][..shape.key_dim]);
        let (query, key) = (query.as_chunks::<SUMS>().0, key.as_chunks::<SUMS>().0);
        let rates = &self.rates[row * 2 * shape.heads..];
        let (decay, factor) = (simd.splat_f32s(rates[head]), simd.splat_f32s(rates[shape.heads + head]));
        let width = TILE / S::F32_LANES;
        let values = S::as_simd_f32s(&mixed[values + first..][..TILE]).0;
        let (state, out) = (S::as_mut_simd_f32s(state).0, S::as_mut_simd_f32s(out).0);
        let zero = [simd.splat_f32s(0.0); SUMS];
        for (v, value) in values.iter().enumerate() {
            let mut added = *value;
            if shape.kind == RecurrentKind::DeltaNet {
                let mut sums = zero;
                for (rows, key) in state.chunks_exact(SUMS * width).zip(key) {
                    for (i, sum) in sums.iter_mut().enumerate() {
                        *sum = simd.mul_add_e_f32s(simd.splat_f32s(key[i]), rows[i * width + v], *sum);
                    }
                }
                added = simd.sub_f32s(added, simd.mul_f32s(decay, total(simd, sums)));
            }
            added = simd.mul_f32s(added, factor);
            let mut sums = zero;
            for ((rows, key), query) in state.chunks_exact_mut(SUMS * width).zip(key).zip(query) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let kept = simd.mul_f32s(decay, rows[i * width + v]);
                    let new = simd.mul_add_e_f32s(simd.splat_f32s(key[i]), added, kept);
                    rows[i * width + v] = new;
                    *sum = simd.mul_add_e_f32s(simd.splat_f32s(query[i]), new, *sum);
                }
            }
            let mut result = total(simd, sums);
            if let Some(skip) = &self.weight.skip {
                result = simd.mul_add_e_f32s(simd.splat_f32s(skip[head]), *value, result);
            }
            out[v] = result;
        }
    }
}

#[inline(always)]
fn total<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; SUMS]) -> S::f32s {
    simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d))
}
