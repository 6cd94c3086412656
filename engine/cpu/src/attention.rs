//! Causal attention through the block tables (4.1 and 5.1 of the PagedAttention paper).
//!
//! A task is a key/value head of a sequence with some consecutive query tokens; its rows are all pairs of such a token
//! and a query head of the group. A thread takes some at a time. A task walks the context in chunks of whole blocks: gathers a chunk's keys and values
//! (widening them once for all rows), computes scores, and folds them into a running maximum, sum and weighted sum of
//! values (online softmax). So memory is that of a chunk, whatever the length of the context.
//!
//! Chunks begin at multiples of their length from the start of the sequence, scores and weighted sums are added up in
//! order of position, and a position that a query does not see contributes an exact zero. Hence a query's result does
//! not depend on which other queries or sequences are computed with it.

use std::cell::RefCell;
use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::math::{fold, multiply};
use super::matmul::{Accumulate, LANES, View};
use super::stored::{HeadPart, LayerBlocks, StoredElement, scale};
use super::threads::Threads;
use crate::kv::KvShape;

/// Positions in a chunk, where blocks are not longer or don't divide it.
const CHUNK: usize = 64;
/// About how many rows a task has.
const ROWS: usize = 48;

/// Most rows for which values are read where they are: more would read each of them several times.
const FEW: usize = 6;

/// How many times a thread takes tasks, if there are enough.
const TURNS: usize = 8;

/// Bytes of a cache line.
const LINE: usize = 64;

/// One layer of a paged KV cache, and the sequences whose new tokens attend to it.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// The layer's blocks, in the layout that [`write_kv`](crate::write_kv) writes.
    pub layer: &'a [u8],
    /// The layer's shape.
    pub shape: &'a KvShape,
    /// The sequences, in the order of their tokens.
    pub spans: &'a [Span],
    /// Block tables of all sequences, one after the other.
    pub tables: &'a [u32],
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// With `Some(w)` a position sees the last `w` positions, itself included; with `None` all before it.
    pub window: Option<usize>,
}

/// One sequence of a step. Its new tokens are the last `len` of its `context` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First row of the sequence's queries.
    pub start: usize,
    /// Number of new tokens.
    pub len: usize,
    /// Tokens in the cache, the new ones included.
    pub context: usize,
    /// First entry of the sequence's block table in [`Attention::tables`]; it has `ceil(context / block_size)` entries.
    pub table: usize,
}

/// What all tasks of a call share.
pub(super) struct Job<'a, E> {
    /// `[T, heads * D]`
    pub query: &'a [f32],
    /// This layer's blocks.
    pub blocks: LayerBlocks<'a, E>,
    pub params: Attention<'a>,
    /// Query heads per key/value head.
    pub group: usize,
}

impl<E: StoredElement> Job<'_, E> {
    /// Computes into `out`, shaped as `query`.
    pub fn run(&self, arch: Arch, threads: &Threads, out: &mut [f32]) {
        let KvShape { heads, head_dim, .. } = *self.params.shape;
        let width = heads * self.group * head_dim;
        let tall = (ROWS / self.group).max(1);
        let work: usize = self.params.spans.iter().map(|s| 2 * s.len * s.context * width).sum();
        let mut tasks = Vec::new();
        let mut rest = out;
        for &span in self.params.spans {
            let (rows, after) = rest.split_at_mut(span.len * width);
            rest = after;
            for (i, rows) in rows.chunks_mut(tall * width).enumerate() {
                let from = tasks.len();
                tasks.extend(
                    (0..heads).map(|head| Task { place: Place { span, first: i * tall, head }, out: Vec::new() }),
                );
                for row in rows.chunks_mut(width) {
                    row.chunks_mut(self.group * head_dim).zip(&mut tasks[from..]).for_each(|(o, t)| t.out.push(o));
                }
            }
        }
        // Outside of `dispatch`: closures within it would not be compiled for its instruction set.
        let run = |tasks: &mut [Task<'_>]| {
            SCRATCH.with_borrow_mut(|scratch| {
                for i in 0..tasks.len() {
                    scratch.next = tasks.get(i + 1).map(|task| task.place);
                    arch.dispatch(Run { job: self, task: &mut tasks[i], scratch });
                }
            });
        };
        if threads.parts(work, tasks.len()) == 1 {
            run(&mut tasks);
        } else {
            let at_a_time = (tasks.len() / (threads.count() * TURNS)).max(1);
            // The last tokens of a long prompt see most of it: begin with them, so that no thread is left with them.
            threads.each(tasks.chunks_mut(at_a_time).rev(), run);
        }
    }
}

struct Task<'a> {
    place: Place,
    /// The output of each query token, `[group * D]`.
    out: Vec<&'a mut [f32]>,
}

/// Which queries a task is about.
#[derive(Clone, Copy)]
struct Place {
    span: Span,
    /// First query token, counted from the span's first.
    first: usize,
    /// Key/value head.
    head: usize,
}

struct Run<'a, 'b, E> {
    job: &'a Job<'a, E>,
    task: &'a mut Task<'b>,
    scratch: &'a mut Scratch,
}

/// What one thread has: its next task, and buffers, whose columns are padded to whole vectors.
#[derive(Default)]
struct Scratch {
    next: Option<Place>,
    /// `[rows][D]`, scaled.
    query: Vec<f32>,
    /// `[D][chunk]`
    keys: Vec<f32>,
    /// `[chunk][D]`
    values: Vec<f32>,
    /// `[chunk]` each: scales of keys and of values, if they have any.
    scales: [Vec<f32>; 2],
    /// `[rows][chunk]`, then their exponentials.
    scores: Vec<f32>,
    /// `[rows][D]`: weighted sums of values.
    sums: Vec<f32>,
    /// `[rows]`: greatest score so far, and the sum of exponentials relative to it.
    max_and_norm: Vec<(f32, f32)>,
    /// A block of keys, widened.
    block: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl<E: StoredElement> WithSimd for Run<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run { job, task: &mut Task { place, ref mut out }, scratch } = self;
        let (head_dim, group) = (job.params.shape.head_dim, job.group);
        let rows = out.len() * group;
        let chunk = job.chunk();
        let (dim, stride) = (head_dim.next_multiple_of(LANES), chunk.next_multiple_of(LANES));

        job.load_query(place, out.len(), &mut scratch.query);
        scratch.keys.resize(head_dim * stride, 0.0);
        scratch.values.resize(chunk * dim, 0.0);
        scratch.scales.iter_mut().for_each(|scales| scales.resize(stride, 0.0));
        scratch.scores.resize(rows * stride, 0.0);
        scratch.sums.clear();
        scratch.sums.resize(rows * dim, 0.0);
        scratch.max_and_norm.clear();
        scratch.max_and_norm.resize(rows, (f32::NEG_INFINITY, 0.0));

        // From the first position that the first query token sees to the end of what the last one sees.
        let (begin, end) = (job.visible(place, 0).0, job.visible(place, out.len() - 1).1);
        for start in (begin / chunk * chunk..end).step_by(chunk) {
            let seen = begin.max(start)..end.min(start + chunk);
            let cols = (seen.end - start).next_multiple_of(LANES);

            job.load_keys(place, seen.clone(), start, stride, scratch);
            scratch.scores.fill(0.0);
            simd.vectorize(Accumulate {
                a: View { data: &scratch.query, stride: head_dim },
                b: View { data: &scratch.keys, stride },
                c: &mut scratch.scores,
                c_stride: stride,
                rows,
                inner: 0..head_dim,
                cols,
            });

            for row in 0..rows {
                let (from, to) = job.visible(place, row / group);
                let (from, to) = (from.max(start), to.min(start + chunk));
                let scores = &mut scratch.scores[row * stride..][..cols];
                if E::SCALED {
                    multiply(scores, &scratch.scales[0]);
                }
                let sums = &mut scratch.sums[row * dim..][..dim];
                if from < to {
                    fold(scores, from - start, to - start, sums, &mut scratch.max_and_norm[row]);
                } else {
                    scores.fill(0.0);
                }
            }

            let inner = seen.start - start..seen.end - start;
            if rows <= FEW && job.add_values(simd, place, seen.clone(), start, (rows, stride), scratch) {
                continue;
            }
            job.load_values(place, seen.clone(), start, dim, scratch);
            if E::SCALED {
                // In place of the values, of which there are more.
                for weights in scratch.scores.chunks_exact_mut(stride) {
                    multiply(&mut weights[inner.clone()], &scratch.scales[1][inner.clone()]);
                }
            }
            simd.vectorize(Accumulate {
                a: View { data: &scratch.scores, stride },
                b: View { data: &scratch.values, stride: dim },
                c: &mut scratch.sums,
                c_stride: dim,
                rows,
                inner,
                cols: dim,
            });
        }

        for (t, out) in out.iter_mut().enumerate() {
            for (g, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let row = t * group + g;
                let norm = scratch.max_and_norm[row].1;
                out.iter_mut().zip(&scratch.sums[row * dim..]).for_each(|(o, s)| *o = s / norm);
            }
        }
    }
}

impl<'a, E: StoredElement> Job<'a, E> {
    /// Positions in a chunk: whole blocks.
    #[inline(always)]
    fn chunk(&self) -> usize {
        let size = self.params.shape.block_size;
        size * (CHUNK / size).max(1)
    }

    /// The positions that query token `i` of a task sees: the first, and one past the last.
    #[inline(always)]
    fn visible(&self, Place { span, first, .. }: Place, i: usize) -> (usize, usize) {
        let end = span.context - span.len + first + i + 1;
        (self.params.window.map_or(0, |w| end.saturating_sub(w.max(1))), end)
    }

    #[inline(always)]
    fn load_query(&self, place: Place, tokens: usize, to: &mut Vec<f32>) {
        let Job { params: Attention { shape: &KvShape { heads, head_dim, .. }, .. }, group, query, .. } = *self;
        let width = group * head_dim;
        to.clear();
        for i in 0..tokens {
            let row = place.span.start + place.first + i;
            let query = &query[(row * heads + place.head) * width..][..width];
            to.extend(query.iter().map(|q| q * self.params.scale));
        }
    }

    /// The block that holds position `at`.
    #[inline(always)]
    fn block(&self, place: Place, at: usize) -> usize {
        self.params.tables[place.span.table + at / self.params.shape.block_size] as usize
    }

    /// Prefetches what `part` gives of the block a chunk after position `at`: a head's keys there, or values. After the last
    /// block come the first ones of the thread's next task.
    ///
    /// The next block is anywhere in memory, and the processor itself prefetches only what follows within a page. One
    /// chunk ahead is early enough for a block to arrive from memory.
    #[inline(always)]
    fn ask_ahead(
        &self,
        mut place: Place,
        at: usize,
        next: Option<Place>,
        part: impl FnOnce(usize, usize) -> HeadPart<'a, E>,
    ) {
        let (mut at, size) = (at + self.chunk(), self.params.shape.block_size);
        if let Some(next) = next.filter(|_| at >= place.span.context) {
            at = self.visible(next, 0).0 / size * size + at.saturating_sub(place.span.context.next_multiple_of(size));
            place = next;
        }
        if at < place.span.context {
            // What scales are beyond the last line of elements comes with the next head's elements, or late.
            let elements = part(self.block(place, at), place.head).elements;
            elements.chunks(LINE / size_of::<E>()).for_each(|line| prefetch(line.as_ptr()));
        }
    }

    /// Gathers the keys of the blocks that hold `seen`. Lanes of positions outside hold anything; their scores are
    /// never looked at.
    #[inline(always)]
    fn load_keys(&self, place: Place, seen: Range<usize>, start: usize, stride: usize, scratch: &mut Scratch) {
        let KvShape { head_dim, block_size, .. } = *self.params.shape;
        scratch.block.resize(head_dim * block_size, 0.0);
        for at in (seen.start / block_size * block_size..seen.end).step_by(block_size) {
            self.ask_ahead(place, at, scratch.next, |block, head| self.blocks.keys(block, head));
            let HeadPart { elements, scales } = self.blocks.keys(self.block(place, at), place.head);
            if E::SCALED {
                widen_scales(scales, &mut scratch.scales[0][at - start..]);
            }
            let keys = E::as_f32(elements).unwrap_or_else(|| {
                E::widen(elements, &mut scratch.block);
                &scratch.block
            });
            let to = scratch.keys[at - start..].chunks_mut(stride).zip(keys.chunks_exact(block_size));
            if block_size.is_multiple_of(LANES) {
                // Whole vectors, whose copies are compiled in place where a call would take longer.
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

    /// Adds the values of the positions `seen`, weighted by each row's scores, from where they are in the cache. Returns whether
    /// it did: they must be in f32, and fill whole vectors.
    #[inline(always)]
    fn add_values<S: Simd>(
        &self,
        simd: S,
        place: Place,
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
            let Some(values) = E::as_f32(self.blocks.values(self.block(place, at), place.head).elements) else {
                return false;
            };
            self.ask_ahead(place, at, scratch.next, |block, head| self.blocks.values(block, head));
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

    /// Gathers the values of the positions `seen`, and of no others: they are multiplied by the zero weights of
    /// queries that do not see them, which only finite numbers survive.
    #[inline(always)]
    fn load_values(&self, place: Place, seen: Range<usize>, start: usize, dim: usize, scratch: &mut Scratch) {
        let KvShape { head_dim, block_size, .. } = *self.params.shape;
        let mut at = seen.start;
        while at < seen.end {
            let count = (block_size - at % block_size).min(seen.end - at);
            self.ask_ahead(place, at, scratch.next, |block, head| self.blocks.values(block, head));
            let HeadPart { elements, scales } = self.blocks.values(self.block(place, at), place.head);
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

/// Prefetches the cache line at `at` into the second-level cache. The first level is full of the present chunk, and
/// prefetching more into it made decoding slower.
#[inline(always)]
fn prefetch<E>(at: *const E) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that accesses nothing and faults on no address, and its SSE instruction is part of
    // every x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
