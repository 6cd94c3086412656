//! Attention over keys that contain their values. The scores of a chunk are computed transposed, as keys times queries,
//! because blocks have the layout of values.
//!
//! Many query heads share a key. They are divided among several tasks.

use std::ops::Range;

use pulp::Simd;

use super::{Job, Queries, ROWS, Scratch};
use crate::matmul::{Accumulate, LANES, View};
use crate::stored::StoredElement;

/// Returns the number of tasks that `group` query heads are divided among: at least `wanted`, and as many as give a task
/// the usual number of rows. Rows of a task fill vectors.
pub(crate) fn parts(group: usize, wanted: usize) -> usize {
    let fills = |parts: &usize| *parts == 1 || group.is_multiple_of(parts * LANES);
    let (mut fitting, most) = ((1..=group).filter(fills), (1..=group).rev().find(fills));
    fitting.find(|parts| *parts >= wanted && group / parts <= ROWS).or(most).unwrap_or(1)
}

/// Returns the transpose of rows of `cols` elements, with columns padded to whole vectors.
pub(super) fn transposed(rows: &[f32], cols: usize) -> Vec<f32> {
    let stride = (rows.len() / cols).next_multiple_of(LANES);
    let mut to = vec![0.0; cols * stride];
    for (i, row) in rows.chunks_exact(cols).enumerate() {
        to[i..].iter_mut().step_by(stride).zip(row).for_each(|(to, from)| *to = *from);
    }
    to
}

impl<E: StoredElement> Job<'_, E> {
    /// Loads the keys of the positions `seen` as values, and computes their scores.
    #[inline(always)]
    pub(super) fn score_latent<S: Simd>(
        &self,
        simd: S,
        queries: Queries,
        seen: Range<usize>,
        start: usize,
        (rows, stride): (usize, usize),
        scratch: &mut Scratch,
    ) {
        let head_dim = self.params.shape.head_dim;
        let (dim, width) = (head_dim.next_multiple_of(LANES), rows.next_multiple_of(LANES));
        self.load_values(queries, seen.clone(), start, scratch);
        let first = seen.start - start;
        scratch.transposed.clear();
        scratch.transposed.resize(seen.len() * width, 0.0);
        simd.vectorize(Accumulate {
            a: View { data: &scratch.values[first * dim..], stride: dim },
            b: View { data: &scratch.query, stride: width },
            c: &mut scratch.transposed,
            c_stride: width,
            rows: seen.len(),
            inner: 0..head_dim,
            cols: width,
        });
        for (i, scores) in scratch.transposed.chunks_exact(width).enumerate() {
            for (row, score) in scores[..rows].iter().enumerate() {
                scratch.scores[row * stride + first + i] = *score;
            }
        }
        if E::SCALED {
            let [keys, values] = &mut scratch.scales;
            keys.copy_from_slice(values);
        }
    }
}
