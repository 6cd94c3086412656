//! The recurrence of heads, token by token. A warp takes eight columns of a head's matrix through all rows of a sequence.
//!
//! | | |
//! | --- | --- |
//! | shapes | `mixed [rows][channels]`, `out [rows][heads * value_dim]`, 16 bits; `steps [rows][heads or 2 heads]` in `f32` |
//! | grid | x: columns, [`COLUMNS`] for each of [`WARPS`] warps; y: sequences |
//! | floor | `8 heads key_dim value_dim` bytes for each sequence, `4 heads key_dim value_dim` for each further state that is stored, and `2 rows (channels + heads value_dim)` |
//! | flops | `4 heads key_dim value_dim` for each row, and half as many more in a delta net |
//!
//! A token changes the matrix `S` of a head with its key `k`, its value `v`, its decay `d` and its rate `b`:
//!
//! ```text
//! delta net   S = d S + b k (v - d S k)^T     y = q^T S      k and q have the lengths 1 and 1 / sqrt(key_dim)
//! Mamba-2     S = d S + b k v^T               y = q^T S + D v
//! ```
//!
//! # What limits it
//!
//! Decode steps: memory, which moves each matrix twice. A thread loads its 128 bytes of the matrix by eight independent
//! instructions, and no barrier delays a warp. Prompts: the latency of a token, about 300 cycles. They are four levels of
//! shuffles for the value that the matrix has for the key, and the dot products before and after them. The inputs of the
//! next token are loaded ahead.
//!
//! Each column is a recurrence of its own, so a head can be divided among as many warps as it has groups of eight columns.
//! A group of eight columns makes 32 bytes of each row of values and results, which is a sector.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::unroll;
use cuda_std::unroll::eight;
use cuda_std::vector::{HalfVector, Vector};
use cuda_std::warp::{FULL_MASK, WARP_SIZE, warp_shuffle_idx, warp_shuffle_xor};

use super::rates::Rates;
use super::spans::{Sequences, Span};
use super::{NO_BLOCK, first_vectors};
use crate::arithmetic::exp;
use crate::element::{Bf16, Element, F16};
use crate::vector::{sum_of_eight, widen};

/// Warps of a block.
pub const WARPS: u32 = 4;

/// Threads of a block.
pub const THREADS: u32 = WARPS * WARP_SIZE;

/// Columns of a matrix that a warp has.
pub const COLUMNS: u32 = 8;

/// The most rows of a matrix: eight for each pair of threads.
pub const MOST_ROWS: u32 = 128;

/// Added to the sum of squares of a key or query.
pub const EPS: f32 = 1e-6;

/// A thread's part of a matrix: four columns of eight consecutive rows.
type Part = [[f32; 4]; 8];

/// Takes the rows of each sequence through the matrices of the heads, and stores the new matrices. In a delta net
/// (`DELTA` is 1) `steps` has a column for the rate of each head, before the columns that give their decays.
///
/// Rows of `mixed` have `channels` vectors: queries, keys and values of all heads in a delta net, and in Mamba-2 the reverse.
/// Rows of `steps` are `step_stride` numbers apart. `decay`, `step_bias` and `skip` have a number for
/// each head. `skip` may be null. Head `h` has the key head `h % key_heads` if `tiled` is not 0, and otherwise consecutive
/// heads have the same. A state has `offset` vectors in front of the matrices. Sequences of `below` rows or more are left
/// to [the kernels for chunks](super::chunked). [The module](super) describes the other arguments.
///
/// # Safety
/// The arrays have these shapes. Blocks in the tables are within the layer, and no block is read or stored by two
/// sequences. The launch comes from a [`RecurrentShape`](super::plan::RecurrentShape).
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16], DELTA = [0, 1]))]
pub unsafe fn recur_heads<T: Element, const DELTA: u32>(
    mixed: *const Vector,
    steps: *const f32,
    decay: *const f32,
    step_bias: *const f32,
    skip: *const f32,
    out: *mut HalfVector,
    states: *mut Vector,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    contexts: *const u32,
    stride: u32,
    block_size: u32,
    offset: u32,
    channels: u32,
    step_stride: u32,
    heads: u32,
    key_heads: u32,
    key_dim: u32,
    value_dim: u32,
    tiled: u32,
    below: u32,
) {
    let (tile, tiles) = (thread::block_idx_x() * WARPS + warp::warp_id(), value_dim / COLUMNS);
    if tile >= heads * tiles {
        return;
    }
    let sequences = Sequences { states, stride, tables, table_starts, query_starts, contexts, block_size };
    // SAFETY: the sequence is in the launch, and the tile was just checked. All lanes of the warp stay together.
    unsafe {
        core::hint::assert_unchecked(tiles != 0 && key_heads != 0 && heads >= key_heads);
        let span = sequences.span(thread::block_idx_y());
        if span.len >= below {
            return;
        }
        let (head, lane) = (tile / tiles, warp::lane_id());
        let key_head = if tiled != 0 { head % key_heads } else { head / (heads / key_heads) };
        let of_head = key_head * (key_dim / 8) + lane / 2;
        let (of_keys, of_values) = (key_heads * (key_dim / 8), heads * (value_dim / 8));
        let [queries, keys, values] = first_vectors(DELTA == 1, of_keys, of_values);
        let has_rows = lane < key_dim / 4;
        let columns = Columns::<DELTA> {
            span,
            mixed,
            channels,
            query: queries + of_head,
            key: keys + of_head,
            value: values + tile,
            half: lane % 2,
            has_rows,
            scale: (key_dim as f32).rsqrt_fast(),
            place: (offset + tile * 2 * key_dim + lane) as usize,
            row_vectors: (key_dim / 4) as usize,
        };
        let rates = Rates::<DELTA> {
            steps: steps.add(columns.span.first_row as usize * step_stride as usize),
            stride: step_stride,
            heads,
            head,
            decay: *decay.add(head as usize),
            bias: *step_bias.add(head as usize),
        };
        let skip = if skip.is_null() { 0.0 } else { *skip.add(head as usize) };
        let to = out.add((2 * tile + lane % 2) as usize);
        columns.pass::<T>(rates, skip, to, 2 * heads * tiles);
    }
}

/// A token's inputs: a thread's eight elements of key and query, and its four elements of the value.
#[derive(Clone, Copy)]
struct Token {
    key: Vector,
    query: Vector,
    value: HalfVector,
}

/// A warp's columns of a sequence.
#[derive(Clone, Copy)]
struct Columns<const DELTA: u32> {
    span: Span,
    mixed: *const Vector,
    channels: u32,
    /// The vectors of a row that the thread loads, and the half of the value's vector.
    query: u32,
    key: u32,
    value: u32,
    half: u32,
    /// Whether the matrix has the thread's rows.
    has_rows: bool,
    /// The length of queries.
    scale: f32,
    /// The thread's first vector of a state.
    place: usize,
    /// Vectors from a row of it to the next.
    row_vectors: usize,
}

impl<const DELTA: u32> Columns<DELTA> {
    /// Takes all rows through the columns. Rows of `out` are `out_stride` halves of vectors apart.
    ///
    /// # Safety
    /// As for [`recur_heads()`].
    #[inline(always)]
    unsafe fn pass<T: Element>(self, rates: Rates<DELTA>, skip: f32, out: *mut HalfVector, out_stride: u32) {
        let span = self.span;
        if span.len == 0 {
            return;
        }
        // SAFETY: rows and blocks belong to the sequence.
        unsafe {
            let mut state = self.load(span.source);
            let mut next = self.token(0);
            let (mut row, mut index, mut own) = (0, span.index(0), (0.0, 0.0));
            while row < span.len {
                let end = span.end(index);
                while row < end {
                    let lane = row % WARP_SIZE;
                    if lane == 0 {
                        let (power, rate) = rates.of_row(row + warp::lane_id(), span.len);
                        own = (exp(power), rate);
                    }
                    let decay = warp_shuffle_idx(FULL_MASK, own.0, lane, WARP_SIZE);
                    let rate = warp_shuffle_idx(FULL_MASK, own.1, lane, WARP_SIZE);
                    let token = next;
                    if row + 1 < span.len {
                        next = self.token(row + 1);
                    }
                    let result = self.step::<T>(&mut state, token, (decay, rate), skip);
                    if warp::lane_id() < 2 {
                        let [a, b, c, d] = result;
                        let pair = |pair: [f32; 2]| T::Pair::from_f32(pair).to_bits();
                        let at = (span.first_row + row) as usize * out_stride as usize;
                        *out.add(at) = HalfVector([pair([a, b]), pair([c, d])]);
                    }
                    row += 1;
                }
                let block = span.stored(index, end);
                if block != NO_BLOCK {
                    self.store(block, &state);
                }
                index += 1;
            }
        }
    }

    /// Changes the state by a token and returns the token's results.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    unsafe fn step<T: Element>(
        &self,
        state: &mut Part,
        token: Token,
        (decay, rate): (f32, f32),
        skip: f32,
    ) -> [f32; 4] {
        let (mut key, mut query) = (widen::<T>(token.key), widen::<T>(token.query));
        let [first, second] = token.value.0.map(|pair| T::Pair::from_bits(pair).to_f32());
        let value = [first[0], first[1], second[0], second[1]];
        let mut added = value;
        // SAFETY: all lanes of the warp are here.
        unsafe {
            if DELTA == 1 {
                let squares = |x: [f32; 8]| over_rows(sum_of_eight(x.map(|x| x * x)));
                let (of_key, of_query) = (squares(key), squares(query));
                let (by_key, by_query) = ((of_key + EPS).rsqrt_fast(), (of_query + EPS).rsqrt_fast() * self.scale);
                key = eight(|i| key[i] * by_key);
                query = eight(|i| query[i] * by_query);
                unroll!(c in [0 1 2 3] {
                    let column = eight(|i| key[i] * state[i][c]);
                    added[c] -= decay * over_rows(sum_of_eight(column));
                });
            }
            unroll!(c in [0 1 2 3] {
                added[c] *= rate;
                unroll!(i in [0 1 2 3 4 5 6 7] {
                    state[i][c] = GpuFloat::mul_add(key[i], added[c], decay * state[i][c]);
                });
                let column = eight(|i| query[i] * state[i][c]);
                added[c] = GpuFloat::mul_add(skip, value[c], over_rows(sum_of_eight(column)));
            });
        }
        added
    }

    /// Loads a row's inputs.
    ///
    /// # Safety
    /// The sequence has the row.
    #[inline(always)]
    unsafe fn token(&self, row: u32) -> Token {
        let row = self.mixed.wrapping_add((self.span.first_row + row) as usize * self.channels as usize);
        // SAFETY: the row has these vectors.
        unsafe {
            let (mut key, mut query) = (Vector::default(), Vector::default());
            if self.has_rows {
                (key, query) = (*row.add(self.key as usize), *row.add(self.query as usize));
            }
            let value = *row.add(self.value as usize).cast::<HalfVector>().add(self.half as usize);
            Token { key, query, value }
        }
    }

    /// Loads the columns of the state in a block, or zeros without a block.
    ///
    /// # Safety
    /// The layer has the block.
    #[inline(always)]
    unsafe fn load(&self, block: u32) -> Part {
        let mut state = [[0.0; 4]; 8];
        if block != NO_BLOCK && self.has_rows {
            let from = self.span.state(block).wrapping_add(self.place);
            // SAFETY: the state has the thread's vectors of eight rows.
            unroll!(i in [0 1 2 3 4 5 6 7] { state[i] = unsafe { (*from.add(i * self.row_vectors)).to_f32() } });
        }
        state
    }

    /// Stores the columns of the state in a block.
    ///
    /// # Safety
    /// The layer has the block.
    #[inline(always)]
    unsafe fn store(&self, block: u32, state: &Part) {
        if self.has_rows {
            let to = self.span.state(block).wrapping_add(self.place);
            // SAFETY: the state has the thread's vectors of eight rows.
            unroll!(i in [0 1 2 3 4 5 6 7] { unsafe { *to.add(i * self.row_vectors) = Vector::from_f32(state[i]) } });
        }
    }
}

/// Returns the sum over the lanes that have the same columns.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
unsafe fn over_rows(mut sum: f32) -> f32 {
    // SAFETY: all lanes of the warp are here.
    unroll!(lanes in [2 4 8 16] { sum += unsafe { warp_shuffle_xor(FULL_MASK, sum, lanes, WARP_SIZE) } });
    sum
}
