//! States and results of sequences, tile by tile. A warp takes 16 columns of a head's matrix through all rows.
//!
//! | | |
//! | --- | --- |
//! | shapes | `mixed [rows][channels]`, `out [rows][heads * value_dim]`, 16 bits |
//! | grid | x: columns, [`COLUMNS`] of a head; y: sequences |
//! | shared memory | [`SHARED`]: 78 KiB, two blocks a multiprocessor |
//! | floor | as for [`recur_heads`](crate::recurrent::heads::recur_heads()), and the workspace once |
//!
//! # What limits it
//!
//! The tensor cores. In a delta net a warp issues 504 `mma` for a tile: 256 for the products of the state with keys and
//! queries, 60 for `T`, 60 for `P` and 128 for the new state. At 6.35 clocks each this is 3,200 clocks, 50 for a token.
//! [`recur_heads`](crate::recurrent::heads::recur_heads()) takes some 300, which are latency.
//!
//! # The transposed state
//!
//! The warp has the transposed matrix of its columns, 16 x 128, as results of `mma`. Neighbouring results are a first
//! factor of the next product without any exchange between lanes. So are the added values. All second factors are tiles in
//! shared memory, which the warps share: keys and queries by rows, keys transposed for the new state, `T` and `P`.
//! A warp never waits for another one except for these tiles.
//!
//! Keys have two places in shared memory. The other tiles have one, which is filled again before the products for the
//! new state.

use cuda_std::prelude::*;
use cuda_std::ptx::cp_async;
use cuda_std::unroll::hidden;
use cuda_std::vector::Vector;

use super::copies::{KEY_BYTES, copy_keys, copy_values};
use super::memory::{QUERIES, UNIT, address, number, values};
use super::tile::Tile;
use super::warp_columns::{Piece, WarpColumns};
use super::*;
use crate::element::{Bf16, Element, F16};
use crate::recurrent::spans::{Sequences, Span};
use crate::recurrent::{NO_BLOCK, first_vectors};

pub use super::memory::BYTES as SHARED;

/// Takes the rows of each sequence of at least `from` rows through the matrices of the heads, and stores the new matrices.
/// The arguments are as for [`recur_heads`](crate::recurrent::heads::recur_heads()).
///
/// # Safety
/// The arrays have these shapes. Blocks in the tables are within the layer, and no block is read or stored by two
/// sequences. [`prepare_chunks`](super::prepare::prepare_chunks()) has filled the workspace. The launch comes from a
/// [`ChunkedShape`](super::shape::ChunkedShape).
#[kernel(dependent, max_threads = 128, instances(T = [F16, Bf16], DELTA = [0, 1]))]
pub unsafe fn pass_chunks<T: Element, const DELTA: u32>(
    mixed: *const Vector,
    workspace: *const Vector,
    out: *mut Vector,
    states: *mut Vector,
    tables: *const u32,
    table_starts: *const u32,
    query_starts: *const u32,
    contexts: *const u32,
    stride: u32,
    block_size: u32,
    offset: u32,
    channels: u32,
    heads: u32,
    key_heads: u32,
    key_dim: u32,
    value_dim: u32,
    tiled: u32,
    from: u32,
) {
    let sequences = Sequences { states, stride, tables, table_starts, query_starts, contexts, block_size };
    // SAFETY: the sequence is in the launch. All threads of a block have the same tiles, so they reach barriers together.
    unsafe {
        let span = sequences.span(thread::block_idx_y());
        if span.len < from {
            return;
        }
        core::hint::assert_unchecked(key_heads != 0);
        let (parts, group) = (value_dim.div_ceil(COLUMNS), heads / key_heads);
        core::hint::assert_unchecked(parts != 0 && group != 0);
        let (head, part) = (thread::block_idx_x() / parts, thread::block_idx_x() % parts);
        let key_head = if tiled != 0 { head % key_heads } else { head / group };
        let warp = warp::warp_id();
        let (vectors, of_values) = (key_dim / 8, value_dim / 8);
        let [queries, keys, values] = first_vectors(DELTA == 1, key_heads * vectors, heads * of_values);
        let first = part * (COLUMNS / 8) + 2 * warp;
        let own = of_values.saturating_sub(first);
        let source = Source {
            mixed,
            workspace,
            channels,
            keys: [keys + key_head * vectors, vectors],
            queries: [queries + key_head * vectors, vectors],
            values,
            head,
            heads,
            from,
            span,
        };
        let mut columns = WarpColumns::<DELTA> {
            state: [[0.0; 4]; 16],
            offset,
            place: head * of_values + first,
            key_dim,
            vectors: own,
        };
        columns.load(&span, span.source);
        source.pass::<T, DELTA>(&mut columns, out, heads * of_values);
    }
}

/// Where a block's tiles come from.
struct Source {
    mixed: *const Vector,
    workspace: *const Vector,
    /// Vectors of a row.
    channels: u32,
    /// The first vector in a row, and the number of vectors.
    keys: [u32; 2],
    queries: [u32; 2],
    /// The first vector of all values.
    values: u32,
    head: u32,
    heads: u32,
    from: u32,
    span: Span,
}

impl Source {
    /// Takes all rows through the columns. Rows of `out` are `of_rows` vectors apart.
    ///
    /// # Safety
    /// As for [`pass_chunks()`]. All threads of the block call this together.
    #[inline(always)]
    unsafe fn pass<T: Element, const DELTA: u32>(
        &self,
        columns: &mut WarpColumns<DELTA>,
        out: *mut Vector,
        of_rows: u32,
    ) {
        let tiles = Tile::count(&self.span);
        // SAFETY: the tiles are the sequence's. A place in shared memory is filled after all threads have read it.
        unsafe {
            self.copy_keys(0);
            self.copy_rest(columns, 0);
            let (mut index, mut from) = (0, 0);
            while index < tiles {
                let next = index + 1;
                if from == 0 {
                    cp_async::wait::<0>();
                    // The tile has arrived, and all warps are done with the keys of the one before.
                    thread::sync_threads();
                    if next < tiles {
                        self.copy_keys(next);
                    }
                }
                let tile = Tile::of(self.span, self.from, index);
                let to = (*number(END, from)).to_bits();
                let piece = Piece { from, to, keys: keys_place(index), queries: address(QUERIES) };
                let (added, decay, block) = columns.results::<T>(&tile, piece, out, of_rows);
                if to == ROWS {
                    // All warps are done with the tiles that have one place.
                    thread::sync_threads();
                    if next < tiles {
                        self.copy_rest(columns, next);
                    }
                }
                columns.add::<T>(&added, decay, piece);
                if block != NO_BLOCK {
                    columns.store(&self.span, block);
                }
                (index, from) = if to == ROWS { (next, 0) } else { (index, to) };
            }
        }
    }

    /// Starts the copies of a tile's keys.
    ///
    /// # Safety
    /// All threads of the block call this together, and none reads the place.
    #[inline(always)]
    unsafe fn copy_keys(&self, index: u32) {
        let tile = Tile::of(self.span, self.from, index);
        // SAFETY: the rows are the sequence's.
        unsafe { copy_keys(&tile, self.mixed, self.channels, self.keys, keys_place(index)) };
    }

    /// Starts the other copies of a tile, and commits them with those of the keys.
    ///
    /// # Safety
    /// As for [`copy_keys`](Self::copy_keys).
    #[inline(always)]
    unsafe fn copy_rest<const DELTA: u32>(&self, columns: &WarpColumns<DELTA>, index: u32) {
        let tile = Tile::of(self.span, self.from, index);
        // SAFETY: the rows are the sequence's, and the workspace has the tile.
        unsafe {
            copy_keys(&tile, self.mixed, self.channels, self.queries, address(QUERIES));
            let own = [self.values + hidden(columns.place), columns.vectors];
            copy_values(&tile, self.mixed, self.channels, own, address(values()));
            let unit = tile.slot as usize * self.heads as usize + self.head as usize;
            let (vector, vectors) = (hidden(thread::thread_idx_x()), unit_vectors(DELTA == 1));
            let from = self.workspace.add(unit * vectors as usize + vector as usize);
            let to = address(UNIT) + vector * 16;
            for turn in 0..vectors / THREADS {
                cp_async::copy_cg(to + turn * THREADS * 16, from.add((turn * THREADS) as usize).cast());
            }
            cp_async::commit();
        }
    }
}

/// Returns where the keys of a tile are in shared memory.
#[inline(always)]
fn keys_place(index: u32) -> u32 {
    address(index % 2 * KEY_BYTES)
}

const _: () = assert!(unit_vectors(false).is_multiple_of(THREADS) && unit_vectors(true).is_multiple_of(THREADS));
