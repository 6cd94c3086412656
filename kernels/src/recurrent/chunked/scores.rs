//! The products of a tile's keys and queries with its keys, and the lengths of both.

use cuda_std::prelude::*;
use cuda_std::unroll;
use cuda_std::vector::Vector;
use cuda_std::warp::{FULL_MASK, WARP_SIZE, warp_shuffle_xor};

use super::ROWS;
use super::copies::Squares;
use crate::element::Element;
use crate::recurrent::heads::EPS;
use crate::vector::{sum_of_eight, widen};

/// Results of `mma` for 16 rows and eight columns each.
pub type Sixteen = [[f32; 4]; 8];

/// A warp's products: 16 rows of a tile with the keys of all rows up to them.
pub struct Scores {
    /// Of keys, in a delta net.
    pub keys: Sixteen,
    pub queries: Sixteen,
}

impl Scores {
    /// Multiplies the tiles of keys and queries at these places in shared memory.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and the tiles are in shared memory.
    #[inline(always)]
    pub unsafe fn new<T: Element, const DELTA: u32>(keys: u32, queries: u32) -> Scores {
        let warp = warp::warp_id();
        let mut scores = Scores { keys: [[0.0; 4]; 8], queries: [[0.0; 4]; 8] };
        let (own_keys, own_queries) = (Squares::by_elements(keys), Squares::by_elements(queries));
        let others = Squares::by_rows(keys);
        unroll!(step in [0 1 2 3 4 5 6 7] {
            // SAFETY: all lanes of the warp are here, and all of a warp take the same branches.
            unsafe {
                let (key, query) = (own_keys.load(warp, step), own_queries.load(warp, step));
                unroll!(j in [0 1 2 3] {
                    if j as u32 <= warp {
                        let [a, b, c, d] = others.load(j as u32, step);
                        if DELTA == 1 {
                            scores.keys[2 * j] = T::mma(key, [a, b], scores.keys[2 * j]);
                            scores.keys[2 * j + 1] = T::mma(key, [c, d], scores.keys[2 * j + 1]);
                        }
                        scores.queries[2 * j] = T::mma(query, [a, b], scores.queries[2 * j]);
                        scores.queries[2 * j + 1] = T::mma(query, [c, d], scores.queries[2 * j + 1]);
                    }
                });
            }
        });
        scores
    }
}

/// Stores the factors that give a tile's keys and queries their lengths, `[2][ROWS]`: 1 and 1 / sqrt(key_dim) in a delta
/// net. All threads of a block take part.
///
/// # Safety
/// The tiles are in shared memory, and no thread reads `to`.
#[inline(always)]
pub unsafe fn store_lengths<T: Element, const DELTA: u32>(
    [keys, queries]: [*const Vector; 2],
    key_dim: u32,
    to: *mut f32,
) {
    // Two threads have a row. The places of its vectors do not matter.
    let (row, half) = (thread::thread_idx_x() / 2, thread::thread_idx_x() % 2);
    let (mut of_key, mut of_query) = (0.0, 0.0);
    // SAFETY: the rows have 16 vectors, and `to` has two numbers for each. All lanes of the warp are here.
    unsafe {
        if DELTA == 1 {
            unroll!(i in [0 1 2 3 4 5 6 7] {
                // Threads of a warp begin at different vectors, since rows begin at the same bank.
                let vector = (16 * row + 8 * half + (i + row) % 8) as usize;
                of_key += sum_of_eight(widen::<T>(*keys.add(vector)).map(|x| x * x));
                of_query += sum_of_eight(widen::<T>(*queries.add(vector)).map(|x| x * x));
            });
            of_key += warp_shuffle_xor(FULL_MASK, of_key, 1, WARP_SIZE);
            of_query += warp_shuffle_xor(FULL_MASK, of_query, 1, WARP_SIZE);
            of_key = (of_key + EPS).rsqrt_fast();
            of_query = (of_query + EPS).rsqrt_fast() * (key_dim as f32).rsqrt_fast();
        } else {
            (of_key, of_query) = (1.0, 1.0);
        }
        *to.add((half * ROWS + row) as usize) = if half == 0 { of_key } else { of_query };
    }
}
