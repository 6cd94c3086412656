//! Attention over keys that contain their values. The scores of a chunk are computed transposed, as keys times queries,
//! because blocks have the layout of values.

use pulp::Simd;

use super::{Chunk, Job, Scratch};
use crate::matmul::{Accumulate, LANES, View};
use crate::stored::StoredElement;

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
