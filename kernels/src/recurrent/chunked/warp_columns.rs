//! A warp's 16 columns of a head's matrix.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::ptx::ldmatrix;
use cuda_std::unroll;
use cuda_std::unroll::hidden;
use cuda_std::vector::{HalfVector, Vector};
use cuda_std::warp::{FULL_MASK, WARP_SIZE, warp_shuffle_xor};

use super::copies::{Squares, value_place};
use super::memory::{UNIT, address, number, pointer, values};
use super::parts::{Parts, Scale, exact_times_parts};
use super::scores::Sixteen;
use super::tile::Tile;
use super::*;
use crate::element::Element;
use crate::recurrent::NO_BLOCK;
use crate::recurrent::spans::Span;

/// The columns.
pub struct WarpColumns<const DELTA: u32> {
    /// The transposed columns: results of `mma` for eight rows of the matrix each.
    pub state: [[f32; 4]; 16],
    /// Vectors of a state in front of the matrices.
    pub offset: u32,
    /// The warp's first vector of values among those of all heads.
    pub place: u32,
    /// Rows of the matrix.
    pub key_dim: u32,
    /// Vectors of values from the warp's first one on.
    pub vectors: u32,
}

/// A piece of a tile, and the places of the tile's keys and queries in shared memory.
#[derive(Clone, Copy)]
pub struct Piece {
    pub from: u32,
    pub to: u32,
    pub keys: u32,
    pub queries: u32,
}

impl Piece {
    /// Returns whether the piece has a row.
    #[inline(always)]
    fn has(&self, row: u32) -> bool {
        row.wrapping_sub(self.from) < self.to - self.from
    }

    /// Returns a number for each of the lane's two rows from `row` on, and 0 for rows of other pieces.
    ///
    /// # Safety
    /// The numbers are in shared memory.
    #[inline(always)]
    unsafe fn numbers(&self, which: u32, row: u32) -> [f32; 2] {
        // SAFETY: the tile has the rows, and the first is even.
        let [a, b] = unsafe { (*number(which, row).cast::<HalfVector>()).to_f32() };
        [if self.has(row) { a } else { 0.0 }, if self.has(row + 1) { b } else { 0.0 }]
    }
}

/// Multiplies the columns of results by a factor of each column, and by `by`.
#[inline(always)]
fn by_columns([a, b, c, d]: [f32; 4], [first, second]: [f32; 2], by: f32) -> [f32; 4] {
    let (first, second) = (first * by, second * by);
    [a * first, b * second, c * first, d * second]
}

/// Returns the lane's first column among eight: a row of the tile. It is computed again for each piece, as in
/// [`copies`](super::copies).
#[inline(always)]
fn lane_row() -> u32 {
    hidden(warp::lane_id()) % 4 * 2
}

impl<const DELTA: u32> WarpColumns<DELTA> {
    /// Loads the columns of the state in a block, or zeros without a block.
    ///
    /// # Safety
    /// The layer has the block.
    #[inline(always)]
    pub unsafe fn load(&mut self, span: &Span, block: u32) {
        if block != NO_BLOCK {
            let from: *mut f32 = span.state(block).cast();
            // SAFETY: the state has the numbers.
            unsafe { self.each(from, |number, at| *number = *at) };
        }
    }

    /// Stores the columns of the state in a block.
    ///
    /// # Safety
    /// The layer has the block.
    #[inline(always)]
    pub unsafe fn store(&mut self, span: &Span, block: u32) {
        let to: *mut f32 = span.state(block).cast();
        // SAFETY: the state has the numbers.
        unsafe { self.each(to, |number, at| *at = *number) };
    }

    /// Passes each of the lane's numbers with its place in a state.
    ///
    /// # Safety
    /// The function may access the places in the state.
    #[inline(always)]
    unsafe fn each(&mut self, state: *mut f32, f: impl Fn(&mut f32, *mut f32)) {
        let lane = hidden(warp::lane_id()) as usize;
        let (column, row) = (lane / 4, lane % 4 * 2);
        let pitch = self.key_dim as usize;
        let first = 4 * self.offset as usize + hidden(self.place) as usize * 8 * pitch;
        let place = state.wrapping_add(first + column + row * pitch);
        unroll!(half in [0 1] {
            if half < self.vectors {
                let place = place.wrapping_add(hidden(half * 8 * self.key_dim) as usize);
                unroll!(t in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
                    if 8 * t < self.key_dim {
                        let at = place.wrapping_add(8 * t as usize);
                        f(&mut self.state[t as usize][2 * half as usize], at);
                        f(&mut self.state[t as usize][2 * half as usize + 1], at.wrapping_add(pitch));
                    }
                });
            }
        });
    }

    /// Stores a piece's results. Returns its added values, each with its factor in the piece's last state, the product of
    /// all decays, and the block that the state after the piece is stored in. Rows of `out` are `of_rows` vectors apart.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and the tile is in shared memory.
    #[inline(always)]
    pub unsafe fn results<T: Element>(
        &mut self,
        tile: &Tile,
        piece: Piece,
        out: *mut Vector,
        of_rows: u32,
    ) -> (Sixteen, f32, u32) {
        // SAFETY: all lanes of the warp are here, and the tile is in shared memory.
        unsafe {
            let scale = Scale::of::<T, 16>(&self.state);
            let [known, mut read] = self.times_rows::<T>(piece, scale);
            // In Mamba-2 the added values are the values, as pairs of 16 bits.
            let (mut added, mut values) = ([[0.0; 4]; 8], [[0; 4]; 4]);
            if DELTA == 1 {
                added = Self::solve::<T>(piece, &known, scale.down);
            } else {
                unroll!(j in [0 1 2 3] { values[j] = load_values(j as u32) });
            }
            let of_added = if DELTA == 1 { Scale::of::<T, 8>(&added) } else { Scale::ONE };
            let first = lane_row();
            unroll!(t in [0 1 2 3 4 5 6 7] {
                let factor = piece.numbers(OF_QUERY, 8 * t as u32 + first);
                read[t] = by_columns(read[t], factor, scale.down * of_added.up);
            });
            let matrix = Self::matrix(0);
            unroll!(j in [0 1 2 3] {
                let factor = Parts::new::<T>(added[2 * j], added[2 * j + 1], of_added.up);
                unroll!(i in [0 1 2 3] {
                    if i >= j {
                        let [high, low] = Self::block(matrix, i, j);
                        let sums = [read[2 * i], read[2 * i + 1]];
                        let sums = if DELTA == 1 {
                            factor.times_parts::<T>(high, low, sums)
                        } else {
                            // Values are exact.
                            exact_times_parts::<T>(values[j], high, low, sums)
                        };
                        [read[2 * i], read[2 * i + 1]] = sums;
                    }
                });
            });
            self.store_results::<T>(tile, piece, &read, of_added.down, (out, of_rows));
            if DELTA == 0 {
                unroll!(j in [0 1 2 3] { [added[2 * j], added[2 * j + 1]] = widen_pairs::<T>(values[j]) });
            }
            let first = lane_row();
            unroll!(t in [0 1 2 3 4 5 6 7] {
                let factor = piece.numbers(OF_ADDED, 8 * t as u32 + first);
                added[t] = by_columns(added[t], factor, 1.0);
            });
            (added, *number(DECAY, piece.to - 1), (*number(STORED, piece.to - 1)).to_bits())
        }
    }

    /// Multiplies the state by keys and queries.
    ///
    /// # Safety
    /// As for [`results`](Self::results).
    #[inline(always)]
    unsafe fn times_rows<T: Element>(&self, piece: Piece, scale: Scale) -> [Sixteen; 2] {
        let (mut known, mut read) = ([[0.0; 4]; 8], [[0.0; 4]; 8]);
        let (keys, queries) = (Squares::by_rows(piece.keys), Squares::by_rows(piece.queries));
        unroll!(step in [0 1 2 3 4 5 6 7] {
            let factor = Parts::new::<T>(self.state[2 * step], self.state[2 * step + 1], scale.up);
            unroll!(i in [0 1 2 3] {
                // SAFETY: all lanes of the warp are here, and the tiles are in shared memory.
                unsafe {
                    if DELTA == 1 {
                        let square = keys.load(i as u32, step as u32);
                        [known[2 * i], known[2 * i + 1]] =
                            factor.times::<T>(square, [known[2 * i], known[2 * i + 1]]);
                    }
                    let square = queries.load(i as u32, step as u32);
                    [read[2 * i], read[2 * i + 1]] = factor.times::<T>(square, [read[2 * i], read[2 * i + 1]]);
                }
            });
        });
        [known, read]
    }

    /// Returns the added values: `T` times the values less what the state has for the keys.
    ///
    /// # Safety
    /// As for [`results`](Self::results).
    #[inline(always)]
    unsafe fn solve<T: Element>(piece: Piece, known: &Sixteen, down: f32) -> Sixteen {
        let (mut sums, mut added) = ([[0.0; 4]; 8], [[0.0; 4]; 8]);
        // SAFETY: all lanes of the warp are here, and the tile is in shared memory.
        unsafe {
            let first = lane_row();
            unroll!(i in [0 1 2 3] {
                let values = widen_pairs::<T>(load_values(i as u32));
                unroll!(half in [0 1] {
                    let t = 2 * i + half;
                    let row = 8 * t as u32 + first;
                    let value = by_columns(values[half], piece.numbers(OF_VALUE, row), 1.0);
                    let of_state = by_columns(known[t], piece.numbers(OF_STATE, row), down);
                    unroll!(e in [0 1 2 3] { sums[t][e] = value[e] - of_state[e] });
                });
            });
            let (scale, matrix) = (Scale::of::<T, 8>(&sums), Self::matrix(INVERSE));
            unroll!(j in [0 1 2 3] {
                let factor = Parts::new::<T>(sums[2 * j], sums[2 * j + 1], scale.up);
                unroll!(i in [0 1 2 3] {
                    if i >= j {
                        let [high, low] = Self::block(matrix, i, j);
                        [added[2 * i], added[2 * i + 1]] =
                            factor.times_parts::<T>(high, low, [added[2 * i], added[2 * i + 1]]);
                    }
                });
            });
            if T::IS_NARROW {
                unroll!(t in [0 1 2 3 4 5 6 7] { added[t] = by_columns(added[t], [1.0; 2], scale.down) });
            }
        }
        added
    }

    /// Returns the address of this lane's row in the first block of a matrix.
    #[inline(always)]
    fn matrix(matrix: u32) -> u32 {
        address(UNIT + matrix) + hidden(warp::lane_id()) * 16
    }

    /// Loads both parts of block `(i, j)` of a [matrix](Self::matrix) as second factors, with rows as columns.
    ///
    /// # Safety
    /// As for [`results`](Self::results).
    #[inline(always)]
    unsafe fn block(lane_row: u32, i: usize, j: usize) -> [[u32; 4]; 2] {
        let row = lane_row + (i * (i + 1) / 2 + j) as u32 * BLOCK;
        // SAFETY: the unit has the block.
        unsafe { [ldmatrix::load_x4_at(row), ldmatrix::load_x4_at(row + MATRIX)] }
    }

    /// Stores the results of a piece's rows, each multiplied by `down`.
    ///
    /// # Safety
    /// As for [`results`](Self::results).
    #[inline(always)]
    unsafe fn store_results<T: Element>(
        &self,
        tile: &Tile,
        piece: Piece,
        results: &Sixteen,
        down: f32,
        (out, of_rows): (*mut Vector, u32),
    ) {
        let lane = hidden(warp::lane_id());
        // Even columns take the first of two rows from the next column, and odd ones the second row from the one before.
        let to = values();
        let (is_odd, column) = (lane / 4 % 2, lane / 8 * 2);
        // SAFETY: all lanes of the warp are here. The rows of a piece have read their values.
        unsafe {
            warp::sync_warp(FULL_MASK);
            unroll!(t in [0 1 2 3 4 5 6 7] {
                let first = 8 * t as u32 + lane % 4 * 2;
                let factor = if DELTA == 0 && T::IS_NARROW {
                    piece.numbers(OF_OUTPUT, first)
                } else {
                    [1.0; 2]
                };
                let four = by_columns(results[t], factor, down);
                unroll!(half in [0 1] {
                    let own = T::Pair::from_f32([four[2 * half], four[2 * half + 1]]).to_bits();
                    let other = warp_shuffle_xor(FULL_MASK, own, 4, WARP_SIZE);
                    let pair = if is_odd == 0 { own & 0xffff | other << 16 } else { other >> 16 | own & 0xffff_0000 };
                    let row = first + is_odd;
                    if piece.has(row) {
                        let at = value_place(row, half as u32) + 2 * column;
                        *pointer::<u32>(to + at) = pair;
                    }
                });
            });
            warp::sync_warp(FULL_MASK);
            let vector = lane % 2;
            let out = out.add(hidden(self.place) as usize);
            unroll!(turn in [0 1 2 3] {
                let place = lane / 2 + 16 * turn;
                if let Some(row) = tile.row(place)
                    && piece.has(place)
                    && vector < self.vectors
                {
                    let from: *const Vector = pointer(to + value_place(place, vector));
                    *out.add((tile.span.first_row + row) as usize * of_rows as usize + vector as usize) = *from;
                }
            });
            // The next values take the same place.
            warp::sync_warp(FULL_MASK);
        }
    }

    /// Adds values to the state, which decays before.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and the piece's keys are in shared memory.
    #[inline(always)]
    pub unsafe fn add<T: Element>(&mut self, added: &Sixteen, decay: f32, piece: Piece) {
        let keys = Squares::by_elements(piece.keys);
        // SAFETY: all lanes of the warp are here, and the keys are in shared memory.
        unsafe {
            let scale = Scale::of::<T, 8>(added);
            unroll!(t in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
                self.state[t] = by_columns(self.state[t], [decay; 2], scale.up);
            });
            unroll!(j in [0 1 2 3] {
                let factor = Parts::new::<T>(added[2 * j], added[2 * j + 1], scale.up);
                unroll!(i in [0 1 2 3 4 5 6 7] {
                    let square = keys.load_transposed(j as u32, i as u32);
                    [self.state[2 * i], self.state[2 * i + 1]] =
                        factor.times::<T>(square, [self.state[2 * i], self.state[2 * i + 1]]);
                });
            });
            if T::IS_NARROW {
                unroll!(t in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
                    self.state[t] = by_columns(self.state[t], [1.0; 2], scale.down);
                });
            }
        }
    }
}

/// Loads the transposed values of 16 rows, number `index`, as pairs in the layout of results for each half of the rows.
///
/// # Safety
/// All lanes of the warp call this together, and the values are in shared memory.
#[inline(always)]
unsafe fn load_values(index: u32) -> [u32; 4] {
    let lane = hidden(warp::lane_id());
    let row = address(values()) + value_place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    // SAFETY: the warp has 64 rows of values.
    unsafe { ldmatrix::load_x4_trans_at(row + 16 * 32 * index) }
}

/// Converts the pairs of two results.
#[inline(always)]
fn widen_pairs<T: Element>([a, b, c, d]: [u32; 4]) -> [[f32; 4]; 2] {
    let four = |first, second| {
        let ([a, b], [c, d]) = (T::Pair::from_bits(first).to_f32(), T::Pair::from_bits(second).to_f32());
        [a, b, c, d]
    };
    [four(a, b), four(c, d)]
}
