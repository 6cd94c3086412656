//! Causal attention through the block tables (4.1 and 5.1 of the PagedAttention paper).
//!
//! A task covers one key/value head and some consecutive query tokens of a sequence. Its rows are all pairs of such a
//! token and a query head of the group. If such tasks are fewer than the threads, several tasks share a group's query
//! heads. A thread takes several tasks at a time. A task walks the context in chunks of whole blocks. For each chunk it
//! gathers the keys and values, widening them once for all rows, or reads them where they are. It then computes scores
//! and folds them into a running maximum, sum and weighted sum of values (online softmax). So it needs memory for one
//! chunk only, however long the context is.
//!
//! Chunks begin at multiples of their length from the start of the sequence. Scores and weighted sums are added up in
//! order of position, and a position that a query does not see contributes an exact zero. A chunk of which a query sees
//! nothing does not change its running values. Hence a query's result does not depend on the other queries or sequences
//! computed with it.

mod reads;

use std::cell::RefCell;

use pulp::{Arch, Simd, WithSimd};

use super::math::{fold, multiply, softcap};
use super::matmul::{Accumulate, COLUMNS, LANES, View};
use super::stored::{LayerBlocks, StoredElement};
use super::threads::Threads;
use crate::shape::KvShape;

/// Positions in a chunk, rounded down to whole blocks. A longer block is a chunk of its own.
const CHUNK: usize = COLUMNS * LANES;
/// The approximate number of rows in a task.
const ROWS: usize = 48;

/// Maximum number of rows for which keys and values are read directly from the cache. With more rows, each would be read
/// several times.
const MAX_DIRECT_ROWS: usize = 6;

/// How many times each thread takes tasks, if there are enough tasks.
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
    /// Block tables of all sequences, concatenated.
    pub tables: &'a [u32],
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// With `Some(w)` a position sees the last `w` positions, including itself. With `None` it sees all earlier ones.
    pub window: Option<usize>,
    /// With `Some(c)` a scaled dot product `s` becomes `c * tanh(s / c)`.
    pub softcap: Option<f32>,
    /// One score for each query head, without a value, that takes part in the head's softmax.
    pub sinks: Option<&'a [f32]>,
}

/// One sequence of a step. Its new tokens are the last `len` of its `context` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First row of the sequence's queries.
    pub start: usize,
    /// Number of new tokens.
    pub len: usize,
    /// Tokens in the cache, including the new ones.
    pub context: usize,
    /// First entry of the sequence's block table in [`Attention::tables`]; it has `ceil(context / block_size)` entries.
    pub table: usize,
}

/// The inputs that all tasks of a call share.
pub(super) struct Job<'a, E> {
    /// `[T, heads * D]`
    pub query: &'a [f32],
    /// This layer's blocks.
    pub blocks: LayerBlocks<'a, E>,
    pub params: Attention<'a>,
    /// Query heads per task, one key/value head's or a part of them.
    group: usize,
    /// Tasks that share the query heads of a key/value head.
    parts: usize,
}

impl<'a, E: StoredElement> Job<'a, E> {
    /// Prepares the attention of queries `[T, heads * D]`, with `group` query heads per key/value head, for some threads.
    pub fn new(
        query: &'a [f32],
        blocks: LayerBlocks<'a, E>,
        params: Attention<'a>,
        group: usize,
        threads: &Threads,
    ) -> Self {
        let per_head: usize = params.spans.iter().map(|span| span.len.div_ceil(tall(group))).sum();
        let tasks = (per_head * params.shape.heads).max(1);
        let fits = |parts: &usize| group.is_multiple_of(*parts) && tasks * parts >= threads.count();
        let parts = (1..=group).find(fits).unwrap_or(group);
        Job { query, blocks, params, group: group / parts, parts }
    }

    /// Writes the result to `out`, which has the shape of `query`.
    pub fn run(&self, arch: Arch, threads: &Threads, out: &mut [f32]) {
        let KvShape { heads, head_dim, .. } = *self.params.shape;
        let (heads, tall) = (heads * self.parts, tall(self.group));
        let width = heads * self.group * head_dim;
        let work: usize = self.params.spans.iter().map(|s| 2 * s.len * s.context * width).sum();
        let mut tasks = Vec::new();
        let mut rest = out;
        for &span in self.params.spans {
            let (rows, after) = rest.split_at_mut(span.len * width);
            rest = after;
            for (i, rows) in rows.chunks_mut(tall * width).enumerate() {
                let from = tasks.len();
                tasks.extend(
                    (0..heads).map(|head| Task { queries: Queries { span, first: i * tall, head }, out: Vec::new() }),
                );
                for row in rows.chunks_mut(width) {
                    row.chunks_mut(self.group * head_dim).zip(&mut tasks[from..]).for_each(|(o, t)| t.out.push(o));
                }
            }
        }
        // This closure is created outside of `dispatch`: closures created within would not be compiled for the
        // instruction set.
        let run = |tasks: &mut [Task<'_>]| {
            SCRATCH.with_borrow_mut(|scratch| {
                for i in 0..tasks.len() {
                    scratch.next = tasks.get(i + 1).map(|task| task.queries);
                    arch.dispatch(Run { job: self, task: &mut tasks[i], scratch });
                }
            });
        };
        if threads.parts(work, tasks.len()) == 1 {
            run(&mut tasks);
        } else {
            let batch = (tasks.len() / (threads.count() * TURNS)).max(1);
            // The last tokens of a long prompt see most of it and take longest. Starting with them balances the
            // threads.
            threads.each(tasks.chunks_mut(batch).rev(), run);
        }
    }
}

/// Query tokens per task, for `group` query heads.
fn tall(group: usize) -> usize {
    (ROWS / group).max(1)
}

struct Task<'a> {
    queries: Queries,
    /// The output of each query token, `[group * D]`.
    out: Vec<&'a mut [f32]>,
}

/// The queries that a task computes.
#[derive(Clone, Copy)]
struct Queries {
    span: Span,
    /// First query token, relative to the span's first.
    first: usize,
    /// Key/value head, or its part.
    head: usize,
}

struct Run<'a, 'b, E> {
    job: &'a Job<'a, E>,
    task: &'a mut Task<'b>,
    scratch: &'a mut Scratch,
}

/// A thread's next task, and its buffers. Their columns are padded to whole vectors.
#[derive(Default)]
struct Scratch {
    next: Option<Queries>,
    /// `[rows][D]`, scaled.
    query: Vec<f32>,
    /// `[D][chunk]`
    keys: Vec<f32>,
    /// `[chunk][D]`
    values: Vec<f32>,
    /// `[chunk]` each: scales of keys and of values, for element types that have scales.
    scales: [Vec<f32>; 2],
    /// `[rows][chunk]`: scores, then their exponentials.
    scores: Vec<f32>,
    /// `[rows][D]`: weighted sums of values.
    sums: Vec<f32>,
    /// `[rows]`: the greatest score so far, and the sum of exponentials relative to it.
    max_and_norm: Vec<(f32, f32)>,
    /// One block of keys, widened.
    block: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl<E: StoredElement> WithSimd for Run<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run { job, task: &mut Task { queries, ref mut out }, scratch } = self;
        let (head_dim, group) = (job.params.shape.head_dim, job.group);
        let rows = out.len() * group;
        let chunk = job.chunk();
        let (dim, stride) = (head_dim.next_multiple_of(LANES), chunk.next_multiple_of(LANES));

        job.prepare(queries, out.len(), scratch);

        // From the first position that the first query token sees to the last one that the last token sees.
        let (begin, end) = (job.visible(queries, 0).0, job.visible(queries, out.len() - 1).1);
        for start in (begin / chunk * chunk..end).step_by(chunk) {
            let seen = begin.max(start)..end.min(start + chunk);
            let cols = (seen.end - start).next_multiple_of(LANES);

            let is_direct = rows <= MAX_DIRECT_ROWS;
            if !(is_direct && job.set_scores(simd, queries, seen.clone(), start, rows, scratch)) {
                job.load_keys(queries, seen.clone(), start, stride, scratch);
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
            }

            for row in 0..rows {
                let (from, to) = job.visible(queries, row / group);
                let (from, to) = (from.max(start), to.min(start + chunk));
                let scores = &mut scratch.scores[row * stride..][..cols];
                if E::SCALED {
                    multiply(scores, &scratch.scales[0]);
                }
                let sums = &mut scratch.sums[row * dim..][..dim];
                if from < to {
                    if let Some(cap) = job.params.softcap {
                        softcap(&mut scores[from - start..to - start], cap);
                    }
                    fold(scores, from - start, to - start, sums, &mut scratch.max_and_norm[row]);
                } else {
                    scores.fill(0.0);
                }
            }

            let inner = seen.start - start..seen.end - start;
            if is_direct && job.add_values(simd, queries, seen.clone(), start, (rows, stride), scratch) {
                continue;
            }
            job.load_values(queries, seen.clone(), start, dim, scratch);
            if E::SCALED {
                // Scaling the scores is cheaper than scaling the values, because there are more values.
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
    /// Positions in a chunk, a multiple of the block size.
    #[inline(always)]
    fn chunk(&self) -> usize {
        let size = self.params.shape.block_size;
        size * (CHUNK / size).max(1)
    }

    /// Loads the queries of a task and resets its running values. Makes room for a chunk.
    #[inline(always)]
    fn prepare(&self, queries: Queries, tokens: usize, scratch: &mut Scratch) {
        let (head_dim, group, chunk) = (self.params.shape.head_dim, self.group, self.chunk());
        let (rows, dim, stride) = (tokens * group, head_dim.next_multiple_of(LANES), chunk.next_multiple_of(LANES));
        self.load_query(queries, tokens, &mut scratch.query);
        scratch.keys.resize(head_dim * stride, 0.0);
        scratch.values.resize(chunk * dim, 0.0);
        scratch.scales.iter_mut().for_each(|scales| scales.resize(stride, 0.0));
        scratch.scores.resize(rows * stride, 0.0);
        scratch.sums.clear();
        scratch.sums.resize(rows * dim, 0.0);
        scratch.max_and_norm.clear();
        match self.params.sinks {
            None => scratch.max_and_norm.resize(rows, (f32::NEG_INFINITY, 0.0)),
            Some(sinks) => {
                // A sink is a score like others, and it is the first.
                let sinks = &sinks[queries.head * group..][..group];
                scratch.max_and_norm.extend(sinks.iter().map(|sink| (*sink, 1.0)).cycle().take(rows));
            }
        }
    }

    /// Returns the range of positions that query token `i` of a task sees: the first, and one past the last.
    #[inline(always)]
    fn visible(&self, Queries { span, first, .. }: Queries, i: usize) -> (usize, usize) {
        let end = span.context - span.len + first + i + 1;
        (self.params.window.map_or(0, |w| end.saturating_sub(w.max(1))), end)
    }

    #[inline(always)]
    fn load_query(&self, queries: Queries, tokens: usize, to: &mut Vec<f32>) {
        let Job { params: Attention { shape: &KvShape { heads, head_dim, .. }, .. }, group, parts, query, .. } = *self;
        let (heads, width) = (heads * parts, group * head_dim);
        to.clear();
        for i in 0..tokens {
            let row = queries.span.start + queries.first + i;
            let query = &query[(row * heads + queries.head) * width..][..width];
            to.extend(query.iter().map(|q| q * self.params.scale));
        }
    }
}
