//! Merges the partial results of a block's warps, then of the blocks that share a stream.
//!
//! A partial result is a row of `D + 4` floats: the weighted sum of values, the reference `m` that scores were relative
//! to, the sum `l` of weights, and two zeros. The zeros offset rows in the banks of shared memory, so that stores by
//! fragment and loads by vector are free of conflicts.
//!
//! Two partial results merge with `m = max(m1, m2)` and `l = l1 2^(m1 - m) + l2 2^(m2 - m)`, and the sums of values
//! likewise. The final result is the sum of values divided by `l`. A sink joins `l` once, in the final result.
//!
//! If a block has a whole stream, it stores the result. Otherwise it stores its rows to global memory and counts its
//! arrival. The last block to arrive merges the rows, always in the same order, so results do not depend on which block
//! that is. It resets the counter to zero for the next layer.

use cuda_std::block::is_last_to_arrive;
use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::vector::Vector;

use super::plan::Ranges;
use super::rows::StreamRows;
use super::stream::KvStream;
use crate::attention::softcap::sink_weight;
use crate::element::Element;
use crate::kv_element::KvElement;
use cuda_std::ptx::memory::{load_l2, store_l2};

/// Partial results that a thread loads before it uses the first, so that it pays the latency of L2 once for all of
/// them.
const BATCH: u32 = 8;

/// Returns the vectors of a row's partial result.
pub const fn row_vectors(head_size: u32) -> u32 {
    head_size / 4 + 1
}

/// The workspace in which blocks exchange partial results.
#[derive(Clone, Copy)]
pub struct Exchange {
    /// For each slot, the rows of the first stream of its range. Then, again for each slot, the rows of the last stream
    /// of its range.
    pub partials: *mut Vector,
    /// For each slot, the number of blocks that have stored their part of the last stream in the slot's range.
    pub arrivals: *mut u32,
    /// The division of tiles into ranges.
    pub ranges: Ranges,
    /// Blocks in the grid.
    pub slots: u32,
    /// The number of rows that a partial result has room for.
    pub rows: u32,
    /// The logit of each query head's sink, or null.
    pub sinks: *const f32,
    /// The softcap's [shift](crate::attention::softcap::Softcap::shift), or 0 without a softcap.
    pub shift: f32,
}

impl Exchange {
    /// Returns the rows of slot `slot` for a stream that begins in the range of slot `first`.
    #[inline(always)]
    fn rows<const D: u32>(self, slot: u32, first: u32) -> *mut Vector {
        let index = if slot == first { self.slots + slot } else { slot };
        self.partials.wrapping_add(index as usize * (self.rows * row_vectors(D)) as usize)
    }
}

/// Merges the partial results that the warps of this block left at `shared` for the rows of a stream.
///
/// The result goes to `output`, with `stride` elements between tokens. This block stores it if it has the whole stream.
/// Otherwise the last block to arrive of the blocks that share the stream does.
///
/// # Safety
/// The rows of all `warps` are at `shared`, one warp after the other. `exchange` and `stream` are the launch's. All
/// threads of the block call this together.
#[inline(always)]
pub unsafe fn finish<T: KvElement, const D: u32>(
    shared: *const Vector,
    warps: u32,
    stream_rows: StreamRows,
    stream: KvStream,
    exchange: Exchange,
    output: *mut u16,
    stride: u32,
) {
    let Exchange { arrivals, ranges, rows, .. } = exchange;
    let (first, last) = (ranges.holding(stream.begin), ranges.holding(stream.end() - 1));
    let pieces = Pieces::<D> { count: stream_rows.count };
    let store = |piece: Piece, number: u32, chunk: u32| {
        let to = output.wrapping_add(stream_rows.element::<D>(number, stride) + 4 * chunk as usize);
        // SAFETY: the sinks have this row's head, and the output has this row.
        unsafe {
            let sink =
                sink_weight(exchange.sinks, stream_rows.query_head(number), piece.max + exchange.shift) * T::SUM_GAIN;
            piece.store::<T::Element>(to, sink);
        }
    };
    // SAFETY: by this function's contract, the warps' rows are at `shared`, and `exchange` and `output` have room for
    // the stream's rows. All threads of the block have the same `first` and `last`, so they reach the barriers
    // together.
    unsafe {
        thread::sync_threads();
        pieces.each(|number, chunk| {
            let mut piece = Piece::NONE;
            for warp in 0..warps {
                let row = shared.add((((warp * rows) + number) * row_vectors(D)) as usize);
                piece.add(*row.add(chunk as usize), *row.add(D as usize / 4));
            }
            if first == last {
                store(piece, number, chunk);
            } else {
                let row = exchange.rows::<D>(thread::block_idx_x(), first).add((number * row_vectors(D)) as usize);
                let [a, b, c, d] = piece.out;
                store_l2(row.add(chunk as usize), Vector([a.to_bits(), b.to_bits(), c.to_bits(), d.to_bits()]));
                if chunk == 0 {
                    store_l2(row.add(D as usize / 4), Vector([piece.max.to_bits(), piece.sum.to_bits(), 0, 0]));
                }
            }
        });
        if first == last || !is_last_to_arrive(arrivals.add(first as usize), last - first + 1) {
            return;
        }
        pieces.each(|number, chunk| {
            let mut piece = Piece::NONE;
            let mut slot = first;
            while slot <= last {
                let mut batch = [[Vector([0; 4]); 2]; BATCH as usize];
                for i in 0..BATCH {
                    if slot + i <= last {
                        let row =
                            exchange.rows::<D>(slot + i, first).add((number * row_vectors(D)) as usize).cast_const();
                        batch[i as usize] = [load_l2(row.add(chunk as usize)), load_l2(row.add(D as usize / 4))];
                    }
                }
                for i in 0..BATCH {
                    if slot + i <= last {
                        let [out, state] = batch[i as usize];
                        piece.add(out, state);
                    }
                }
                slot += BATCH;
            }
            store(piece, number, chunk);
        });
    }
}

/// The division of rows among a block's threads, in vectors of four elements.
struct Pieces<const D: u32> {
    count: u32,
}

impl<const D: u32> Pieces<D> {
    /// Calls `with` for each of this thread's vectors, with the row's number and the vector's index within the row.
    #[inline(always)]
    fn each(&self, mut with: impl FnMut(u32, u32)) {
        // Eight lanes share a pass over the banks, so they stay in one row.
        let row = (D / 4).next_multiple_of(8);
        let mut index = thread::thread_idx_x();
        while index < self.count * row {
            let (number, chunk) = (index / row, index % row);
            if chunk < D / 4 {
                with(number, chunk);
            }
            index += thread::block_dim_x();
        }
    }
}

/// A partial result of four elements of a row.
struct Piece {
    out: [f32; 4],
    max: f32,
    sum: f32,
}

impl Piece {
    /// The result of no tokens. Its reference is finite, so two of them can be added.
    const NONE: Piece = Piece { out: [0.0; 4], max: f32::MIN, sum: 0.0 };

    /// Adds another partial result: its elements, and its `m` and `l`.
    #[inline(always)]
    fn add(&mut self, Vector(out): Vector, Vector([max, sum, ..]): Vector) {
        let (max, sum) = (f32::from_bits(max), f32::from_bits(sum));
        let most = self.max.max(max);
        let (old, new) = ((self.max - most).exp2_fast(), (max - most).exp2_fast());
        self.max = most;
        self.sum = self.sum * old + sum * new;
        let both = |i: usize| self.out[i] * old + f32::from_bits(out[i]) * new;
        self.out = [both(0), both(1), both(2), both(3)];
    }

    /// Stores the result, rounded to 16 bits. `sink` joins the sum of weights.
    ///
    /// # Safety
    /// `to` has room for four elements and is aligned to 8 bytes.
    #[inline(always)]
    unsafe fn store<T: Element>(&self, to: *mut u16, sink: f32) {
        let scale = (self.sum + sink).rcp_fast();
        let [a, b, c, d] = self.out;
        let low = T::Pair::from_f32([a * scale, b * scale]).to_bits();
        let high = T::Pair::from_f32([c * scale, d * scale]).to_bits();
        // SAFETY: by this function's contract, `to` has room for four elements and is aligned to 8 bytes.
        unsafe { *to.cast::<u64>() = u64::from(low) | u64::from(high) << 32 };
    }
}
