//! Gathering keys and values from the blocks of a sequence.

use super::{Chunk, Job, Queries, Scratch};
use crate::matmul::LANES;
use crate::pages::prefetch;
use crate::shape::KvShape;
use crate::stored::{HeadPart, StoredElement, scale};

/// Bytes of a cache line.
const LINE: usize = 64;

impl<'a, E: StoredElement> Job<'a, E> {
    /// Returns the block that contains position `at`.
    #[inline(always)]
    pub(super) fn block(&self, queries: Queries, at: usize) -> usize {
        self.params.tables[queries.span.table + at / self.params.shape.block_size] as usize
    }

    /// Returns the keys of a task's head in a block.
    #[inline(always)]
    pub(super) fn keys(&self, block: usize, head: usize) -> HeadPart<'a, E> {
        self.blocks.keys(block, head / self.parts)
    }

    /// Returns the values of a task's head in a block.
    #[inline(always)]
    pub(super) fn values(&self, block: usize, head: usize) -> HeadPart<'a, E> {
        self.blocks.values(block, head / self.parts)
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
            let elements = part(self.block(queries, at), queries.head).elements;
            elements.chunks(LINE / size_of::<E>()).for_each(|line| prefetch(line.as_ptr()));
        }
    }

    /// Gathers the keys of the blocks of a chunk. Lanes of positions that no row sees are unspecified, and their
    /// scores are never read.
    #[inline(always)]
    pub(super) fn load_keys(&self, chunk: &Chunk, scratch: &mut Scratch) {
        let &Chunk { queries, start, ref seen, stride, .. } = chunk;
        let KvShape { head_dim, block_size, .. } = *self.params.shape;
        scratch.block.resize(head_dim * block_size, 0.0);
        for at in (seen.start / block_size * block_size..seen.end).step_by(block_size) {
            self.prefetch_ahead(queries, at, scratch.next, |block, head| self.keys(block, head));
            let HeadPart { elements, scales } = self.keys(self.block(queries, at), queries.head);
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

    /// Gathers the values of exactly the positions that some row sees. Other rows multiply such a value by a
    /// zero weight, which gives zero only if the value is finite. Unwritten slots may contain NaN.
    #[inline(always)]
    pub(super) fn load_values(&self, chunk: &Chunk, scratch: &mut Scratch) {
        let &Chunk { queries, start, ref seen, .. } = chunk;
        let KvShape { head_dim, block_size, .. } = *self.params.shape;
        let dim = head_dim.next_multiple_of(LANES);
        let mut at = seen.start;
        while at < seen.end {
            let count = (block_size - at % block_size).min(seen.end - at);
            self.prefetch_ahead(queries, at, scratch.next, |block, head| self.values(block, head));
            let HeadPart { elements, scales } = self.values(self.block(queries, at), queries.head);
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
