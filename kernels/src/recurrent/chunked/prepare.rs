//! What a tile needs besides the states: `T`, `P`, and the numbers of its rows.
//!
//! | | |
//! | --- | --- |
//! | grid | x: tiles of a sequence; y: sequences; z: groups of up to [`MOST_HEADS`] heads with the same key head |
//! | shared memory | [`SHARED`] |
//! | floor | reads the tile's keys, queries and steps once, and writes [`unit_vectors()`] for each head |
//!
//! A warp has 16 rows of the tile. The products of keys and queries are the same for the heads of a group. Each warp
//! computes the sums of logarithms of one of them.

use cuda_std::prelude::*;
use cuda_std::ptx::cp_async;
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::unroll;
use cuda_std::unroll::hidden;
use cuda_std::vector::{HalfVector, Vector};
use cuda_std::warp::{FULL_MASK, WARP_SIZE, warp_shuffle_xor};

use super::copies::{KEY_BYTES, copy_keys};
use super::decays::Logarithm;
use super::inverse::{self, Inverse, store_block};
use super::parts::Scale;
use super::scores::{Scores, Sixteen, store_lengths};
use super::tile::{Tile, first_row, last_row};
use super::*;
use crate::element::{Bf16, Element, F16};
use crate::recurrent::first_vectors;
use crate::recurrent::rates::Rates;
use crate::recurrent::spans::Sequences;

/// The most heads of a block, one for each warp.
pub const MOST_HEADS: u32 = THREADS / WARP_SIZE;

/// Offset of the sums of logarithms in shared memory: `[MOST_HEADS][3][ROWS]`, with the rates.
const SUMS: u32 = 2 * KEY_BYTES;

/// Offset of the factors for lengths: `[2][ROWS]`.
const LENGTHS: u32 = SUMS + MOST_HEADS * 3 * ROWS * 4;

/// Bytes of shared memory.
pub const SHARED: u32 = LENGTHS + 2 * ROWS * 4;

const _: () = assert!(inverse::BYTES <= SUMS);

/// Computes what [`pass_chunks`](super::pass::pass_chunks()) needs for the tiles of sequences of at least `from` rows.
///
/// A block computes `together` heads. The other arguments are as for [`recur_heads`](crate::recurrent::heads::recur_heads()).
///
/// # Safety
/// The arrays have these shapes, and the workspace has room for all tiles. The launch comes from a
/// [`ChunkedShape`](super::shape::ChunkedShape).
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16], DELTA = [0, 1]))]
pub unsafe fn prepare_chunks<T: Element, const DELTA: u32>(
    mixed: *const Vector,
    steps: *const f32,
    decay: *const f32,
    step_bias: *const f32,
    skip: *const f32,
    workspace: *mut Vector,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    contexts: *const u32,
    block_size: u32,
    channels: u32,
    step_stride: u32,
    heads: u32,
    key_heads: u32,
    key_dim: u32,
    value_dim: u32,
    tiled: u32,
    together: u32,
    from: u32,
) {
    let states = core::ptr::null_mut();
    let sequences = Sequences { states, stride: 0, tables, table_starts, query_starts, contexts, block_size };
    // SAFETY: the sequence is in the launch. All threads of a block have the same tile, so they reach barriers together.
    unsafe {
        core::hint::assert_unchecked(key_heads != 0);
        core::hint::assert_unchecked(together != 0);
        let span = sequences.span(thread::block_idx_y());
        if span.len < from || thread::block_idx_x() >= Tile::count(&span) {
            return;
        }
        let tile = Tile::of(span, from, thread::block_idx_x());
        let group = heads / key_heads;
        let parts = group / together;
        core::hint::assert_unchecked(parts != 0);
        let (key_head, first_member) = (thread::block_idx_z() / parts, thread::block_idx_z() % parts * together);
        // The heads of a key head are `stride` apart.
        let (first, stride) = if tiled != 0 { (key_head, key_heads) } else { (key_head * group, 1) };
        let first = first + first_member * stride;

        let memory: *mut u8 = dynamic_shared_mem();
        let offset = shared_offset(memory);
        let vectors = key_dim / 8;
        let [queries, keys, _] = first_vectors(DELTA == 1, key_heads * vectors, heads * value_dim / 8);
        copy_keys(&tile, mixed, channels, [keys + key_head * vectors, vectors], offset);
        copy_keys(&tile, mixed, channels, [queries + key_head * vectors, vectors], offset + KEY_BYTES);
        cp_async::commit();
        let sums: *mut f32 = memory.add(SUMS as usize).cast();
        if warp::warp_id() < together {
            let head = first + warp::warp_id() * stride;
            let rates = Rates::<DELTA> {
                steps: steps.add(span.first_row as usize * step_stride as usize),
                stride: step_stride,
                heads,
                head,
                decay: *decay.add(head as usize),
                bias: *step_bias.add(head as usize),
            };
            store_sums(&tile, &rates, sums.add((warp::warp_id() * 3 * ROWS) as usize));
        }
        cp_async::wait::<0>();
        thread::sync_threads();
        let lengths: *mut f32 = memory.add(LENGTHS as usize).cast();
        let tiles = [memory, memory.add(KEY_BYTES as usize)].map(|tile| tile.cast_const().cast());
        store_lengths::<T, DELTA>(tiles, key_dim, lengths);
        let scores = Scores::new::<T, DELTA>(offset, offset + KEY_BYTES);
        let last_rows = tile.last_rows();
        let mut member = 0;
        while member < together {
            // The tiles have been read, and the lengths stored. Later, the blocks of the previous head have been read.
            thread::sync_threads();
            let head = first + member * stride;
            let unit = workspace
                .add((tile.slot as usize * heads as usize + head as usize) * unit_vectors(DELTA == 1) as usize);
            let rows = Rows { tile, sums: sums.add((member * 3 * ROWS) as usize), lengths, last_rows };
            let skip = if skip.is_null() { 0.0 } else { *skip.add(head as usize) };
            rows.prepare::<T, DELTA>(&scores, skip, Inverse { memory, offset }, unit.cast());
            member += 1;
        }
    }
}

/// Stores a head's sums of logarithms and its rates, `[3][ROWS]`. The lanes of a warp have two rows each.
///
/// # Safety
/// All lanes of the warp call this together, and the steps have the sequence's rows.
#[inline(always)]
unsafe fn store_sums<const DELTA: u32>(tile: &Tile, rates: &Rates<DELTA>, to: *mut f32) {
    let lane = warp::lane_id();
    // SAFETY: all lanes of the warp are here, and rows outside the sequence are not read.
    unsafe {
        let of_row = |place: u32| {
            let (natural, rate) = rates.of_row(tile.row(place).unwrap_or(u32::MAX), tile.span.len);
            (Logarithm::new(natural), rate)
        };
        let ((low, low_rate), (high, high_rate)) = (of_row(lane), of_row(WARP_SIZE + lane));
        let low = low.sums();
        let high = high.sums().after(low);
        let store = |row: u32, sum: Logarithm, rate: f32| {
            let to = to.add(row as usize);
            (*to, *to.add(ROWS as usize), *to.add(2 * ROWS as usize)) = (sum.high, sum.low, rate);
        };
        store(lane, low, low_rate);
        store(WARP_SIZE + lane, high, high_rate);
    }
}

/// The numbers of a tile's rows for a head, in shared memory.
#[derive(Clone, Copy)]
struct Rows {
    tile: Tile,
    sums: *const f32,
    lengths: *const f32,
    last_rows: u64,
}

/// A row.
#[derive(Clone, Copy)]
struct Row {
    index: u32,
    /// The first row of its piece.
    first: u32,
    sum: Logarithm,
    rate: f32,
    /// The factors of its key and query.
    key: f32,
    query: f32,
}

impl Rows {
    /// Computes a head's unit of the workspace. All threads of the block take part.
    ///
    /// # Safety
    /// The unit has [`unit_vectors()`], and no other thread uses the shared memory of the inverse.
    #[inline(always)]
    unsafe fn prepare<T: Element, const DELTA: u32>(self, scores: &Scores, skip: f32, inverse: Inverse, unit: *mut u8) {
        // Hidden, since the compiler would otherwise keep what follows from them for all heads.
        let (warp, lane) = (hidden(warp::warp_id()), hidden(warp::lane_id()));
        let block = |matrix: u32, j: u32| unit.wrapping_add((matrix + (warp * (warp + 1) / 2 + j) * BLOCK) as usize);
        // SAFETY: all threads of the block are here, and the warp's blocks are in the unit.
        unsafe {
            let index = 16 * warp + lane / 4;
            let own = [self.row(index), self.row(index + 8)];
            let (mut outputs, mut changes) = ([[0.0; 4]; 8], [[0.0; 4]; 8]);
            let store = |outputs: &Sixteen, j: usize| {
                let at = block(0, j as u32);
                let square = [outputs[2 * j], outputs[2 * j + 1]];
                store_block::<T>(&square, at.cast(), at.add(MATRIX as usize).cast());
            };
            let is_scaled = DELTA == 0 && T::IS_NARROW;
            unroll!(j in [0 1 2 3] {
                if j as u32 <= warp {
                    [outputs[2 * j], changes[2 * j]] = self.weigh::<DELTA>(scores, own, skip, 2 * j, lane);
                    [outputs[2 * j + 1], changes[2 * j + 1]] = self.weigh::<DELTA>(scores, own, skip, 2 * j + 1, lane);
                    if !is_scaled {
                        store(&outputs, j);
                    }
                }
            });
            let mut scales = [Scale::ONE; 2];
            if is_scaled {
                scales = scale_rows::<T>(&mut outputs);
                unroll!(j in [0 1 2 3] {
                    if j as u32 <= warp {
                        store(&outputs, j);
                    }
                });
            }
            if lane % 4 == 0 {
                let numbers: *mut f32 = unit.add(ROW_NUMBERS as usize).cast();
                self.store_numbers::<DELTA>(own[0], scales[0], numbers);
                self.store_numbers::<DELTA>(own[1], scales[1], numbers);
            }
            if DELTA == 1 {
                let blocks = inverse.of::<T>(&changes);
                unroll!(distance in [0 1 2 3] {
                    if distance as u32 <= warp {
                        let at = block(INVERSE, warp - distance as u32);
                        store_block::<T>(&blocks[distance], at.cast(), at.add(MATRIX as usize).cast());
                    }
                });
            }
        }
    }

    #[inline(always)]
    unsafe fn sum(self, row: u32) -> Logarithm {
        // SAFETY: the tile has the row.
        unsafe { Logarithm { high: *self.sums.add(row as usize), low: *self.sums.add((ROWS + row) as usize) } }
    }

    #[inline(always)]
    unsafe fn row(self, index: u32) -> Row {
        // SAFETY: the tile has the row.
        unsafe {
            Row {
                index,
                first: first_row(self.last_rows, index),
                sum: self.sum(index),
                rate: *self.sums.add((2 * ROWS + index) as usize),
                key: *self.lengths.add(index as usize),
                query: *self.lengths.add((ROWS + index) as usize),
            }
        }
    }

    /// Returns eight columns of a warp's rows of `P` and `A`. The lane has the rows `own`.
    ///
    /// # Safety
    /// All numbers are in shared memory.
    #[inline(always)]
    unsafe fn weigh<const DELTA: u32>(
        self,
        scores: &Scores,
        own: [Row; 2],
        skip: f32,
        eight: usize,
        lane: u32,
    ) -> [[f32; 4]; 2] {
        let first = 8 * eight as u32 + lane % 4 * 2;
        // SAFETY: the tile has the rows, and their numbers are aligned to pairs.
        let [high, low, rate, key] = unsafe {
            let sums = self.sums.add(first as usize);
            let from = [sums, sums.add(ROWS as usize), sums.add(2 * ROWS as usize), self.lengths.add(first as usize)];
            from.map(|pair| (*pair.cast::<HalfVector>()).to_f32())
        };
        let (mut outputs, mut changes) = ([0.0; 4], [0.0; 4]);
        unroll!(e in [0 1 2 3] {
            let (row, c) = (own[e / 2], e % 2);
            let column = first + c as u32;
            let power = row.sum.power_over(Logarithm { high: high[c], low: low[c] });
            let factor = power * key[c] * if DELTA == 1 { 1.0 } else { rate[c] };
            if column >= row.first && column <= row.index {
                outputs[e] = scores.queries[eight][e] * (factor * row.query);
                if DELTA == 1 && column < row.index {
                    changes[e] = scores.keys[eight][e] * (factor * row.key * row.rate);
                }
                if DELTA == 0 && column == row.index {
                    outputs[e] += skip;
                }
            }
        });
        [outputs, changes]
    }

    /// Stores a row's numbers, see [`SCALARS`].
    ///
    /// # Safety
    /// All numbers are in shared memory, and `to` has room for all rows.
    #[inline(always)]
    unsafe fn store_numbers<const DELTA: u32>(self, row: Row, scale: Scale, to: *mut f32) {
        // SAFETY: the tile has the rows.
        unsafe {
            let before = if row.first > 0 { self.sum(row.first - 1) } else { Logarithm::ZERO };
            let last = last_row(self.last_rows, row.index);
            let (decay, left) = (row.sum.power_over(before), self.sum(last).power_over(row.sum));
            let store = |which: u32, number: f32| *to.add((which * ROWS + row.index) as usize) = number;
            store(OF_VALUE, row.rate);
            store(OF_STATE, row.rate * decay * row.key);
            store(OF_QUERY, decay * row.query * scale.up);
            store(OF_ADDED, left * if DELTA == 1 { row.key } else { row.rate });
            store(OF_OUTPUT, scale.down);
            store(DECAY, decay);
            store(END, f32::from_bits(last + 1));
            store(STORED, f32::from_bits(self.tile.stored(last)));
        }
    }
}

/// Multiplies each of the lane's two rows of `P` by a power of two that makes it fit the type, and returns both.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
unsafe fn scale_rows<T: Element>(outputs: &mut Sixteen) -> [Scale; 2] {
    let mut scales = [Scale::ONE; 2];
    if T::IS_NARROW {
        unroll!(half in [0 1] {
            let mut most = 0.0f32;
            unroll!(t in [0 1 2 3 4 5 6 7] {
                most = most.max(outputs[t][2 * half].abs()).max(outputs[t][2 * half + 1].abs());
            });
            // SAFETY: all lanes of the warp are here.
            unroll!(lanes in [1 2] { most = most.max(unsafe { warp_shuffle_xor(FULL_MASK, most, lanes, WARP_SIZE) }) });
            scales[half] = Scale::of_largest::<T>(most);
            unroll!(t in [0 1 2 3 4 5 6 7] {
                outputs[t][2 * half] *= scales[half].up;
                outputs[t][2 * half + 1] *= scales[half].up;
            });
        });
    }
    scales
}
