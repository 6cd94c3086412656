//! Attention over keys that contain their values. The scores of a chunk are computed transposed, as keys times queries,
//! because blocks have the layout of values.
//!
//! Many query heads share a key. They are divided among several tasks.

use pulp::Simd;

use super::{Chunk, Job, ROWS, Scratch};
use crate::matmul::{Accumulate, LANES, View};
use crate::stored::StoredElement;

/// Returns the number of tasks that `group` query heads are divided among: at least `wanted`, and as many as give a task
/// the usual number of rows. Rows of a task fill vectors.
pub(crate) fn parts(group: usize, wanted: usize) -> usize {
    let fills = |parts: &usize| *parts == 1 || group.is_multiple_of(parts * LANES);
    let (mut fitting, most) = ((1..=group).filter(fills), (1..=group).rev().find(fills));
    fitting.find(|parts| *parts >= wanted && group / parts <= ROWS).or(most).unwrap_or(1)
}

impl<E: StoredElement> Job<'_, E> {
    /// Computes a chunk's scores from its loaded values, which are the keys.
    #[inline(always)]
    pub(super) fn score_latent<S: Simd>(&self, simd: S, chunk: &Chunk, scratch: &mut Scratch) {
        let (head_dim, inner) = (self.params.shape.head_dim, chunk.inner());
        let (dim, width) = (head_dim.next_multiple_of(LANES), chunk.rows.next_multiple_of(LANES));
        scratch.transposed.clear();
        scratch.transposed.resize(inner.len() * width, 0.0);
        simd.vectorize(Accumulate {
            a: View { data: &scratch.values[inner.start * dim..], stride: dim },
            b: View { data: &scratch.query, stride: width },
            c: &mut scratch.transposed,
            c_stride: width,
            rows: inner.len(),
            inner: 0..head_dim,
            cols: width,
        });
        for (i, scores) in inner.zip(scratch.transposed.chunks_exact(width)) {
            for (row, score) in scores[..chunk.rows].iter().enumerate() {
                scratch.scores[row * chunk.stride + i] = *score;
            }
        }
        if E::SCALED {
            let [keys, values] = &mut scratch.scales;
            keys.copy_from_slice(values);
        }
    }
}
