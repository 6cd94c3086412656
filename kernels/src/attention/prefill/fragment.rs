//! The two tensor-core products: scores = queries x keys, and output += weights x values.
//!
//! A warp has its rows in fragments of 16. Each load brings four 8 x 8 matrices of keys or values from shared memory
//! and serves all fragments. The next `mma` takes each weight from the lane and register where the previous one left
//! the score, so lanes exchange no data. 8-bit codes become 16-bit numbers as they are loaded. Scores are multiplied by
//! the scales of keys, and weights by the scales of values.

#![allow(
    clippy::needless_range_loop,
    reason = "each index is used in several arrays and becomes a constant when the loop is unrolled"
)]

use cuda_std::half::Half2;
use cuda_std::unroll;
use cuda_std::vector::Vector;
use cuda_std::warp::lane_id;

use super::shape::{FRAGMENT, columns, fragments, part_bytes, query_in_registers, tile_keys, tile_rows, values_at};
use crate::attention::softcap::Softcap;
use crate::attention::squares::{Squares, scales};
use crate::element::Element;
use crate::kv_element::KvElement;
use cuda_std::ptx::ldmatrix;

/// Maximum number of fragments per warp. Arrays are sized for the largest head size in every instance, because unused
/// elements take no registers.
pub const FRAGMENTS: usize = 2;

/// Maximum number of elements of a row's output that a warp computes.
const ELEMENTS: usize = 256;

/// Maximum number of keys in a tile.
const KEYS: usize = 64;

/// Scores, later weights: the D matrix of `mma` for each fragment and eight keys.
pub type ScoreFragments = [[[f32; 4]; KEYS / 8]; FRAGMENTS];

/// Weighted sums of values: the D matrix of `mma` for each fragment and eight elements.
pub type OutputFragments = [[[f32; 4]; ELEMENTS / 8]; FRAGMENTS];

/// The initial output.
pub const ZERO: OutputFragments = [[[0.0; 4]; ELEMENTS / 8]; FRAGMENTS];

/// The A matrix of `mma` for each fragment.
type Factors = [[u32; 4]; FRAGMENTS];

/// Bytes of a row of eight elements in shared memory.
const ROW: u32 = size_of::<Vector>() as u32;

/// A warp's queries.
pub struct Queries<const D: u32> {
    /// The address that this lane gives `ldmatrix` for its row of the first matrices.
    row: u32,
    /// The queries for each 16 elements, if they stay in registers.
    registers: [Factors; ELEMENTS / 16],
}

impl<const D: u32> Queries<D> {
    /// Creates the queries at the shared-memory offset `place`: `[head_size / 8][tile_rows][8]`. Reads nothing yet.
    #[inline(always)]
    pub fn new(place: u32) -> Self {
        // Rows 0 to 7 and 8 to 15 of eight elements, then of the next eight.
        let (row, chunk) = (lane_id() % 16, lane_id() / 16);
        Self { row: place + (chunk * tile_rows(D) + row) * ROW, registers: [[[0; 4]; FRAGMENTS]; ELEMENTS / 16] }
    }

    /// Loads the queries into registers, if they are to stay there: see [`query_in_registers`].
    ///
    /// # Safety
    /// All lanes of the warp call this together, and the queries are in shared memory.
    #[inline(always)]
    pub unsafe fn load_all(&mut self) {
        for step in 0..D / 16 {
            // SAFETY: by this function's contract, the queries are in shared memory and all lanes are here. `step` is
            // below `D / 16`.
            self.registers[step as usize] = unsafe { self.load(step) };
        }
    }

    /// Loads 16 elements of every row.
    ///
    /// # Safety
    /// As for [`Self::load_all`].
    #[inline(always)]
    unsafe fn load(&self, step: u32) -> Factors {
        let mut factors = [[0; 4]; FRAGMENTS];
        for fragment in 0..fragments(D) {
            let row = self.row + (2 * step * tile_rows(D) + fragment * FRAGMENT) * ROW;
            // SAFETY: by this function's contract, the queries are in shared memory and all lanes are here. The row is
            // one of the warp's rows.
            factors[fragment as usize] = unsafe { ldmatrix::load_x4_at(row) };
        }
        factors
    }

    /// Returns the products with the keys of the tile at the shared-memory offset `tile`, multiplied by the keys'
    /// scales.
    ///
    /// # Safety
    /// As for [`Self::load_all`], and the tile is in shared memory, too.
    #[inline(always)]
    pub unsafe fn times_keys<T: KvElement>(&self, tile: u32) -> ScoreFragments {
        let mut scores = [[[0.0; 4]; KEYS / 8]; FRAGMENTS];
        for step in 0..D / 16 {
            let keys = tile + step * Squares::<T>::CHUNKS * tile_keys(D, T::FORMAT) * ROW;
            let mut squares = Squares::<T>::along_tokens(keys, tile_keys(D, T::FORMAT));
            // SAFETY: by this function's contract, queries and keys are in shared memory and all lanes are here.
            // Squares are within the tile.
            unsafe {
                let factors =
                    if query_in_registers(D, T::FORMAT) { self.registers[step as usize] } else { self.load(step) };
                for pair in 0..tile_keys(D, T::FORMAT) / 16 {
                    let [low, high] = squares.of_tokens(pair);
                    for fragment in 0..fragments(D) as usize {
                        multiply::<T::Element>(factors[fragment], [low, high], &mut scores[fragment], pair);
                    }
                }
            }
        }
        if T::FORMAT.is_coded() {
            let at = tile + 2 * part_bytes(D, T::FORMAT);
            for group in 0..tile_keys(D, T::FORMAT) / 32 {
                // SAFETY: by this function's contract, the scales are in shared memory and all lanes are here.
                let scales = unsafe { scales(at + 64 * group) };
                for fragment in 0..fragments(D) as usize {
                    unroll!(n in [0 1 2 3] {
                        let four = &mut scores[fragment][4 * group as usize + n];
                        *four = by_columns(*four, scales[n]);
                    });
                }
            }
        }
        scores
    }
}

/// Applies a softcap to the scores of a tile.
#[inline(always)]
pub fn cap<T: KvElement, const D: u32>(scores: &mut ScoreFragments, softcap: Softcap) {
    for scores in &mut scores[..fragments(D) as usize] {
        for four in &mut scores[..tile_keys(D, T::FORMAT) as usize / 8] {
            for score in four {
                *score = softcap.apply(*score);
            }
        }
    }
}

/// Adds the weighted values of the tile at the shared-memory offset `tile` to the output. The warp computes the output's
/// elements from `first` on.
///
/// Multiplies the weights by the values' scales and rounds them to 16 bits before the product.
///
/// # Safety
/// All lanes of the warp call this together, and the tile is in shared memory.
#[inline(always)]
pub unsafe fn add_values<T: KvElement, const D: u32>(
    output: &mut OutputFragments,
    weights: &ScoreFragments,
    tile: u32,
    first: u32,
) {
    let part = part_bytes(D, T::FORMAT);
    let mut value_scales = [[0.0; 2]; 4];
    for step in 0..tile_keys(D, T::FORMAT) / 16 {
        if T::FORMAT.is_coded() && step.is_multiple_of(2) {
            // SAFETY: by this function's contract, the scales are in shared memory and all lanes are here.
            value_scales = unsafe { scales(tile + 2 * part + 2 * tile_keys(D, T::FORMAT) + 32 * step) };
        }
        let mut factors = [[0; 4]; FRAGMENTS];
        for fragment in 0..fragments(D) as usize {
            let [low, high] = [0, 1].map(|half| {
                let four = weights[fragment][2 * step as usize + half];
                if !T::FORMAT.is_coded() {
                    return four;
                }
                let [first, second] = value_scales[2 * (step as usize % 2) + half];
                by_columns(four, [first * T::VALUE_GAIN, second * T::VALUE_GAIN])
            });
            factors[fragment] = [[low[0], low[1]], [low[2], low[3]], [high[0], high[1]], [high[2], high[3]]]
                .map(|pair| <T::Element as Element>::Pair::from_f32(pair).to_bits());
        }
        // `mma` needs all tokens' values of one element next to each other, so the loads transpose them.
        let first = first / T::FORMAT.vector_elements() * tile_keys(D, T::FORMAT) * ROW;
        let values = tile + values_at(D, T::FORMAT) + first + 16 * step * ROW;
        let mut squares = Squares::<T>::along_elements(values, columns(D) / 16, tile_keys(D, T::FORMAT), true);
        for pair in 0..columns(D) / 16 {
            // SAFETY: by this function's contract, the values are in shared memory and all lanes are here. Squares are
            // within the tile.
            unsafe {
                let [[a, b], [c, d]] = squares.of_elements(pair);
                for fragment in 0..fragments(D) as usize {
                    multiply::<T::Element>(factors[fragment], [[a, c], [b, d]], &mut output[fragment], pair);
                }
            }
        }
    }
}

/// Returns scores or weights multiplied by the scales of the lane's two columns.
#[inline(always)]
fn by_columns([a, b, c, d]: [f32; 4], [first, second]: [f32; 2]) -> [f32; 4] {
    [a * first, b * second, c * first, d * second]
}

/// Adds a 16 x 16 by 16 x 16 product to columns `16 * pair ..` of `sums`.
///
/// # Safety
/// All lanes of the warp call this together.
#[inline(always)]
unsafe fn multiply<T: Element>(a: [u32; 4], [low, high]: [[u32; 2]; 2], sums: &mut [[f32; 4]], pair: u32) {
    let pair = 2 * pair as usize;
    // SAFETY: all lanes of the warp are here together, by this function's contract.
    unsafe {
        sums[pair] = T::mma(a, low, sums[pair]);
        sums[pair + 1] = T::mma(a, high, sums[pair + 1]);
    }
}
