//! Reading keys and values where they are in the cache, for tasks with few rows.

use pulp::Simd;

use super::{CHUNK, Chunk, Job, Scratch};
use crate::matmul::{Accumulate, COLUMNS, Columns, LANES, View};
use crate::shape::KvShape;
use crate::stored::StoredElement;

impl<E: StoredElement> Job<'_, E> {
    /// Computes a chunk's scores with keys read directly from the cache. Returns whether it did: the keys must be f32, and
    /// chunks and blocks must consist of whole vectors.
    #[inline(always)]
    pub(super) fn score_directly<S: Simd>(&self, simd: S, chunk: &Chunk, scratch: &mut Scratch) -> bool {
        let &Chunk { queries, rows, start, ref seen, .. } = chunk;
        let KvShape { head_dim, block_size, .. } = *self.params.shape;
        if self.chunk() != CHUNK || !block_size.is_multiple_of(LANES) {
            return false;
        }
        let mut columns = [View { data: &[][..], stride: block_size }; COLUMNS];
        for (i, column) in columns.iter_mut().enumerate() {
            // Scores of positions that no row sees are never read. Another vector takes their place.
            let at = (start + i * LANES).clamp(seen.start, seen.end - 1) / LANES * LANES;
            let Some(keys) = E::as_f32(self.keys(self.block(queries, at), queries.head).elements) else {
                return false;
            };
            column.data = &keys[at % block_size..];
        }
        for at in (seen.start / block_size * block_size..seen.end).step_by(block_size) {
            self.prefetch_ahead(queries, at, scratch.next, |block, head| self.keys(block, head));
        }
        simd.vectorize(Columns {
            a: View { data: &scratch.query, stride: head_dim },
            b: columns,
            c: &mut scratch.scores,
            c_stride: CHUNK,
            rows,
            inner: head_dim,
        });
        true
    }

    /// Adds the values of a chunk, weighted by each row's scores, directly from the cache. Returns whether it did: the
    /// values must be f32 and a head must fill whole vectors.
    #[inline(always)]
    pub(super) fn add_values<S: Simd>(&self, simd: S, chunk: &Chunk, scratch: &mut Scratch) -> bool {
        let &Chunk { queries, rows, start, ref seen, stride } = chunk;
        let KvShape { head_dim, block_size, .. } = *self.params.shape;
        if !head_dim.is_multiple_of(LANES) {
            return false;
        }
        let mut at = seen.start;
        while at < seen.end {
            let count = (block_size - at % block_size).min(seen.end - at);
            let Some(values) = E::as_f32(self.values(self.block(queries, at), queries.head).elements) else {
                return false;
            };
            self.prefetch_ahead(queries, at, scratch.next, |block, head| self.values(block, head));
            simd.vectorize(Accumulate {
                a: View { data: &scratch.scores[at - start..], stride },
                b: View { data: &values[at % block_size * head_dim..], stride: head_dim },
                c: &mut scratch.sums,
                c_stride: head_dim,
                rows,
                inner: 0..count,
                cols: head_dim,
            });
            at += count;
        }
        true
    }
}
