//! Reading keys and values from the cache: directly, or through buffers that widen them.

use std::ops::Range;

use pulp::Simd;

use super::{CHUNK, Job, LINE, Queries, Scratch};
use crate::matmul::{Accumulate, COLUMNS, Columns, LANES, View};
use crate::pages::prefetch;
use crate::shape::KvShape;
use crate::stored::{HeadPart, StoredElement, scale};

impl<'a, E: StoredElement> Job<'a, E> {
    /// Returns the block that contains position `at`.
    #[inline(always)]
    pub(super) fn block(&self, queries: Queries, at: usize) -> usize {
        self.params.tables[queries.span.table + at / self.params.shape.block_size] as usize
    }

    /// Prefetches a head's keys or values, as selected by `part`, from the block one chunk after position `at`. After
    /// the sequence's last block it prefetches the first blocks of the thread's next task.
    ///
    /// The next block can be anywhere in memory, and the processor itself prefetches only within a page. One chunk
    /// ahead is early enough for a block to arrive from memory.
    #[inline(always)]
    pub(super) fn prefetch_ahead(
        &self,
        mut queries: Queries,
        at: usize,
        next: Option<Queries>,
        part: impl FnOnce(usize, usize) -> HeadPart<'a, E>,
    ) {
        let (mut at, size) = (at + self.chunk(), self.params.shape.block_size);
        if let Some(next) = next.filter(|_| at >= queries.span.context) {
            at = self.visible(next, 0).0 / size * size + at.saturating_sub(queries.span.context.next_multiple_of(size));
            queries = next;
        }
        if at < queries.span.context {
            // Only the elements are prefetched. Scales past their last cache line arrive with the next head's elements,
            // or late.
            let elements = part(self.block(queries, at), queries.head / self.parts).elements;
            elements.chunks(LINE / size_of::<E>()).for_each(|line| prefetch(line.as_ptr()));
        }
    }

    /// Gathers the keys of the blocks that contain `seen`. Lanes of positions outside `seen` are unspecified, and their
    /// scores are never read.
    #[inline(always)]
    pub(super) fn load_keys(
        &self,
        queries: Queries,
        seen: Range<usize>,
        start: usize,
        stride: usize,
        scratch: &mut Scratch,
    ) {
        let KvShape { head_dim, block_size, .. } = *self.params.shape;
        scratch.block.resize(head_dim * block_size, 0.0);
        for at in (seen.start / block_size * block_size..seen.end).step_by(block_size) {
            self.prefetch_ahead(queries, at, scratch.next, |block, head| self.blocks.keys(block, head));
            let HeadPart { elements, scales } = self.blocks.keys(self.block(queries, at), queries.head / self.parts);
            if E::SCALED {
                widen_scales(scales, &mut scratch.scales[0][at - start..]);
            }
            let keys = E::as_f32(elements).unwrap_or_else(|| {
                E::widen(elements, &mut scratch.block);
                &scratch.block
            });
            let to = scratch.keys[at - start..].chunks_mut(stride).zip(keys.chunks_exact(block_size));
            if block_size.is_multiple_of(LANES) {
                // Copies whole vectors inline, because a call to `memcpy` would take longer.
                for (to, from) in to {
                    for (to, from) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(from.as_chunks::<LANES>().0) {
                        *to = *from;
                    }
                }
            } else {
                to.for_each(|(to, from)| to[..block_size].copy_from_slice(from));
            }
        }
    }

    /// Computes the scores of the positions `seen` with keys read directly from the cache. Returns whether it did: the keys
    /// must be f32, and chunks and blocks must consist of whole vectors.
    #[inline(always)]
    pub(super) fn set_scores<S: Simd>(
        &self,
        simd: S,
        queries: Queries,
        seen: Range<usize>,
        start: usize,
        rows: usize,
        scratch: &mut Scratch,
    ) -> bool {
        let KvShape { head_dim, block_size, .. } = *self.params.shape;
        if self.chunk() != CHUNK || !block_size.is_multiple_of(LANES) {
            return false;
        }
        let keys = |block, head| self.blocks.keys(block, head);
        let mut columns = [View { data: &[][..], stride: block_size }; COLUMNS];
        for (i, column) in columns.iter_mut().enumerate() {
            // Scores of positions that no query sees are never read. Another vector takes their place.
            let at = (start + i * LANES).clamp(seen.start, seen.end - 1) / LANES * LANES;
            let Some(elements) = E::as_f32(keys(self.block(queries, at), queries.head / self.parts).elements) else {
                return false;
            };
            column.data = &elements[at % block_size..];
        }
        for at in (seen.start / block_size * block_size..seen.end).step_by(block_size) {
            self.prefetch_ahead(queries, at, scratch.next, keys);
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

    /// Adds the values of the positions `seen`, weighted by each row's scores, directly from the cache. Returns whether
    /// it did: the values must be f32 and a head must fill whole vectors.
    #[inline(always)]
    pub(super) fn add_values<S: Simd>(
        &self,
        simd: S,
        queries: Queries,
        seen: Range<usize>,
        start: usize,
        (rows, stride): (usize, usize),
        scratch: &mut Scratch,
    ) -> bool {
        let KvShape { head_dim, block_size, .. } = *self.params.shape;
        if !head_dim.is_multiple_of(LANES) {
            return false;
        }
        let mut at = seen.start;
        while at < seen.end {
            let count = (block_size - at % block_size).min(seen.end - at);
            let Some(values) =
                E::as_f32(self.blocks.values(self.block(queries, at), queries.head / self.parts).elements)
            else {
                return false;
            };
            self.prefetch_ahead(queries, at, scratch.next, |block, head| self.blocks.values(block, head));
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

    /// Gathers the values of exactly the positions `seen`. Queries that do not see a position multiply its value by a
    /// zero weight, which gives zero only if the value is finite. Unwritten slots may contain NaN.
    #[inline(always)]
    pub(super) fn load_values(
        &self,
        queries: Queries,
        seen: Range<usize>,
        start: usize,
        dim: usize,
        scratch: &mut Scratch,
    ) {
        let KvShape { head_dim, block_size, .. } = *self.params.shape;
        let mut at = seen.start;
        while at < seen.end {
            let count = (block_size - at % block_size).min(seen.end - at);
            self.prefetch_ahead(queries, at, scratch.next, |block, head| self.blocks.values(block, head));
            let HeadPart { elements, scales } = self.blocks.values(self.block(queries, at), queries.head / self.parts);
            if E::SCALED {
                widen_scales(&scales[at % block_size..][..count], &mut scratch.scales[1][at - start..]);
            }
            let values = &elements[at % block_size * head_dim..][..count * head_dim];
            let to = &mut scratch.values[(at - start) * dim..][..count * dim];
            if dim == head_dim {
                E::widen(values, to);
            } else {
                let rows = to.chunks_exact_mut(dim).zip(values.chunks_exact(head_dim));
                rows.for_each(|(to, from)| E::widen(from, &mut to[..head_dim]));
            }
            at += count;
        }
    }
}

#[inline(always)]
fn widen_scales(from: &[[u8; 2]], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = scale(*from));
}
