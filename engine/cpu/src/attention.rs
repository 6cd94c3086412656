//! Causal attention through the block tables (4.1 and 5.1 of the PagedAttention paper).
//!
//! A task covers one key/value head and some consecutive query tokens of a sequence. Its rows are all pairs of such a
//! token and a query head of the group. Several tasks divide a large group, or one in a small batch. A thread takes
//! several tasks at a time. A task walks the context in chunks of whole blocks. For each chunk it gathers the keys and
//! values, widening them once for all rows, or reads them where they are. It then computes scores and folds them into a
//! running maximum, sum and weighted sum of values (online softmax). So it needs memory for one chunk only, however long
//! the context is.
//!
//! Chunks begin at multiples of their length from the start of the sequence. Scores and weighted sums are added up in
//! order of position, and a position that a query does not see contributes an exact zero. A chunk of which a query sees
//! nothing does not change its running values. Hence a query's result does not depend on the other queries or sequences
//! computed with it.
//!
//! If keys contain the values, a chunk is gathered once. See `latent`.

mod direct;
mod gather;
mod latent;

use std::cell::RefCell;
use std::ops::Range;

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
    /// Query heads per key/value head.
    pub group: usize,
    /// Number of tasks that the query heads of a key/value head are divided among.
    pub parts: usize,
}

/// Returns the number of tasks that `group` query heads are divided among: at least `wanted`, and as many as give a task
/// the usual number of rows. If keys contain the values, the rows of a task fill vectors.
pub(super) fn parts(group: usize, wanted: usize, is_latent: bool) -> usize {
    let unit = if is_latent { LANES } else { 1 };
    let fills = |parts: &usize| *parts == 1 || group.is_multiple_of(parts * unit);
    let (mut fitting, most) = ((1..=group).filter(fills), (1..=group).rev().find(fills));
    fitting.find(|parts| *parts >= wanted && group / parts <= ROWS).or(most).unwrap_or(1)
}

impl<E: StoredElement> Job<'_, E> {
    /// Writes the result to `out`, `[T, heads * value size]`.
    pub fn run(&self, arch: Arch, threads: &Threads, out: &mut [f32]) {
        let (heads, group) = (self.params.shape.heads * self.parts, self.rows_per_token());
        let value_dim = self.params.shape.value_dim();
        let width = heads * group * value_dim;
        let tall = (ROWS / group).max(1);
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
                    row.chunks_mut(group * value_dim).zip(&mut tasks[from..]).for_each(|(o, t)| t.out.push(o));
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

struct Task<'a> {
    queries: Queries,
    /// The output of each query token: the values of the task's heads.
    out: Vec<&'a mut [f32]>,
}

/// The queries that a task computes.
#[derive(Clone, Copy)]
struct Queries {
    span: Span,
    /// First query token, relative to the span's first.
    first: usize,
    /// Part of a key/value head: the head's number times the number of parts, plus the part's number.
    head: usize,
}

/// A chunk of the context, and the task whose rows attend to it.
struct Chunk {
    queries: Queries,
    /// The rows of the task.
    rows: usize,
    /// The chunk's first position.
    start: usize,
    /// The positions of the chunk that some row sees.
    seen: Range<usize>,
    /// Positions in any chunk, padded to whole vectors.
    stride: usize,
}

impl Chunk {
    /// Returns the positions that some row sees, relative to `start`.
    #[inline(always)]
    fn inner(&self) -> Range<usize> {
        self.seen.start - self.start..self.seen.end - self.start
    }

    /// Returns the number of positions from `start` to the last that some row sees, padded to whole vectors.
    #[inline(always)]
    fn cols(&self) -> usize {
        (self.seen.end - self.start).next_multiple_of(LANES)
    }
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
    /// `[rows][D]`, scaled. If keys contain the values, `[D][rows]`.
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
    /// `[chunk][rows]`: scores, if keys contain the values.
    transposed: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl<E: StoredElement> WithSimd for Run<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run { job, task: &mut Task { queries, ref mut out }, scratch } = self;
        let (shape, group, chunk) = (job.params.shape, job.rows_per_token(), job.chunk());
        let (value_dim, rows, stride) = (shape.value_dim(), out.len() * group, chunk.next_multiple_of(LANES));

        job.prepare(queries, out.len(), scratch);

        // From the first position that the first query token sees to the last one that the last token sees.
        let (begin, end) = (job.visible(queries, 0).0, job.visible(queries, out.len() - 1).1);
        for start in (begin / chunk * chunk..end).step_by(chunk) {
            let chunk = Chunk { queries, rows, start, seen: begin.max(start)..end.min(start + chunk), stride };
            match shape.latent {
                None => {
                    let is_direct = rows <= MAX_DIRECT_ROWS;
                    if !(is_direct && job.score_directly(simd, &chunk, scratch)) {
                        job.score(simd, &chunk, scratch);
                    }
                    job.weigh(&chunk, scratch);
                    if is_direct && job.add_values(simd, &chunk, scratch) {
                        continue;
                    }
                    job.load_values(&chunk, scratch);
                }
                Some(_) => {
                    job.load_values(&chunk, scratch);
                    job.score_latent(simd, &chunk, scratch);
                    job.weigh(&chunk, scratch);
                }
            }
            job.add_loaded_values(simd, &chunk, scratch);
        }

        let dim = value_dim.next_multiple_of(LANES);
        for (t, out) in out.iter_mut().enumerate() {
            for (g, out) in out.chunks_exact_mut(value_dim).enumerate() {
                let row = t * group + g;
                let norm = scratch.max_and_norm[row].1;
                out.iter_mut().zip(&scratch.sums[row * dim..]).for_each(|(o, s)| *o = s / norm);
            }
        }
    }
}

impl<E: StoredElement> Job<'_, E> {
    /// Positions in a chunk, a multiple of the block size.
    #[inline(always)]
    fn chunk(&self) -> usize {
        let size = self.params.shape.block_size;
        size * (CHUNK / size).max(1)
    }

    /// Query heads of a task.
    #[inline(always)]
    fn rows_per_token(&self) -> usize {
        self.group / self.parts
    }

    /// Returns the range of positions that query token `i` of a task sees: the first, and one past the last.
    #[inline(always)]
    fn visible(&self, Queries { span, first, .. }: Queries, i: usize) -> (usize, usize) {
        let end = span.context - span.len + first + i + 1;
        (self.params.window.map_or(0, |w| end.saturating_sub(w.max(1))), end)
    }

    /// Loads the queries of a task and resets its running values. Makes room for a chunk.
    #[inline(always)]
    fn prepare(&self, queries: Queries, tokens: usize, scratch: &mut Scratch) {
        let (shape, group, chunk) = (self.params.shape, self.rows_per_token(), self.chunk());
        let (rows, stride) = (tokens * group, chunk.next_multiple_of(LANES));
        let [key_dim, dim] = [shape.head_dim, shape.value_dim()].map(|dim| dim.next_multiple_of(LANES));
        self.load_query(queries, tokens, &mut scratch.query);
        scratch.keys.resize(shape.head_dim * stride, 0.0);
        // The last row of values may begin within a key, and is read in whole vectors.
        scratch.values.resize(chunk * key_dim + LANES, 0.0);
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

    #[inline(always)]
    fn load_query(&self, queries: Queries, tokens: usize, to: &mut Vec<f32>) {
        let (shape, scale) = (self.params.shape, self.params.scale);
        let (heads, width) = (shape.heads * self.parts, self.rows_per_token() * shape.head_dim);
        let first = queries.span.start + queries.first;
        let tokens =
            (first..first + tokens).map(|token| &self.query[(token * heads + queries.head) * width..][..width]);
        to.clear();
        match shape.latent {
            None => tokens.for_each(|rows| to.extend(rows.iter().map(|q| q * scale))),
            Some(_) => {
                let stride = (tokens.len() * self.rows_per_token()).next_multiple_of(LANES);
                to.resize(shape.head_dim * stride, 0.0);
                for (i, row) in tokens.flat_map(|rows| rows.chunks_exact(shape.head_dim)).enumerate() {
                    to[i..].iter_mut().step_by(stride).zip(row).for_each(|(to, q)| *to = q * scale);
                }
            }
        }
    }

    /// Loads a chunk's keys and computes its scores.
    #[inline(always)]
    fn score<S: Simd>(&self, simd: S, chunk: &Chunk, scratch: &mut Scratch) {
        let (head_dim, stride) = (self.params.shape.head_dim, chunk.stride);
        self.load_keys(chunk, scratch);
        scratch.scores.fill(0.0);
        simd.vectorize(Accumulate {
            a: View { data: &scratch.query, stride: head_dim },
            b: View { data: &scratch.keys, stride },
            c: &mut scratch.scores,
            c_stride: stride,
            rows: chunk.rows,
            inner: 0..head_dim,
            cols: chunk.cols(),
        });
    }

    /// Folds a chunk's scores into the running values, which makes them weights.
    #[inline(always)]
    fn weigh(&self, chunk: &Chunk, scratch: &mut Scratch) {
        let (start, dim) = (chunk.start, self.params.shape.value_dim().next_multiple_of(LANES));
        for row in 0..chunk.rows {
            let (from, to) = self.visible(chunk.queries, row / self.rows_per_token());
            let (from, to) = (from.max(start), to.min(start + self.chunk()));
            let scores = &mut scratch.scores[row * chunk.stride..][..chunk.cols()];
            if E::SCALED {
                multiply(scores, &scratch.scales[0]);
            }
            let sums = &mut scratch.sums[row * dim..][..dim];
            if from < to {
                if let Some(cap) = self.params.softcap {
                    softcap(&mut scores[from - start..to - start], cap);
                }
                fold(scores, from - start, to - start, sums, &mut scratch.max_and_norm[row]);
            } else {
                scores.fill(0.0);
            }
        }
    }

    /// Adds the loaded values of a chunk, weighted by each row's scores.
    #[inline(always)]
    fn add_loaded_values<S: Simd>(&self, simd: S, chunk: &Chunk, scratch: &mut Scratch) {
        let (head_dim, value_dim, inner) = (self.params.shape.head_dim, self.params.shape.value_dim(), chunk.inner());
        let dim = value_dim.next_multiple_of(LANES);
        if E::SCALED {
            // Scaling the scores is cheaper than scaling the values, because there are more values.
            for weights in scratch.scores.chunks_exact_mut(chunk.stride) {
                multiply(&mut weights[inner.clone()], &scratch.scales[1][inner.clone()]);
            }
        }
        let values = &scratch.values[head_dim - value_dim..];
        simd.vectorize(Accumulate {
            a: View { data: &scratch.scores, stride: chunk.stride },
            b: View { data: values, stride: head_dim.next_multiple_of(LANES) },
            c: &mut scratch.sums,
            c_stride: dim,
            rows: chunk.rows,
            inner,
            cols: dim,
        });
    }
}
