//! `T = (1 + A)^-1` for a matrix `A` below the diagonal.
//!
//! A warp computes 16 rows. It inverts their block on the diagonal by substitution, column by column in `f32`. With these
//! blocks of all warps, blocks beside the diagonal follow from the ones to their right: `T (1 + A) = 1` gives
//!
//! ```text
//! T[i][j] = -(sum over l from j + 1 to i of T[i][l] A[l][j]) T[j][j]
//! ```
//!
//! These products are on the tensor cores, with both factors in two parts. In a delta net the elements of `T` are between
//! -1 and 1, so the sums lose no digits.

#![allow(
    clippy::needless_range_loop,
    reason = "each index is used in several arrays and becomes a constant when the loop is unrolled"
)]

use cuda_std::prelude::*;
use cuda_std::ptx::ldmatrix;
use cuda_std::unroll;
use cuda_std::unroll::hidden;
use cuda_std::vector::{HalfVector, Vector};
use cuda_std::warp::{FULL_MASK, WARP_SIZE};

use super::BLOCK;
use super::parts::{Parts, parts_of};
use super::scores::Sixteen;
use crate::element::Element;

/// Numbers from one row of the substitution's matrix to the next.
const PITCH: usize = 20;

/// Offset of the blocks on the diagonal, behind six blocks beside it. A block's high parts come before its low parts.
const DIAGONAL: u32 = 6 * 2 * BLOCK;

/// Offset of the substitution's matrices.
const SUBSTITUTION: u32 = DIAGONAL + 4 * 2 * BLOCK;

/// Bytes of shared memory.
pub const BYTES: u32 = SUBSTITUTION + 4 * 16 * PITCH as u32 * 4;

/// A block of 16 x 16: results of `mma` for each half of its columns.
type Square = [[f32; 4]; 2];

/// A warp's rows of `T`: the block on the diagonal, and the blocks to its left in this order.
pub type Rows = [Square; 4];

/// Shared memory for the blocks.
#[derive(Clone, Copy)]
pub struct Inverse {
    pub memory: *mut u8,
    pub offset: u32,
}

/// Stores the parts of a block, the high ones at `high` and the low ones at `low`, as the workspace has them.
///
/// # Safety
/// Both places have [`BLOCK`] bytes.
#[inline(always)]
pub unsafe fn store_block<T: Element>(block: &Square, high: *mut u32, low: *mut u32) {
    let lane = hidden(warp::lane_id()) as usize;
    unroll!(half in [0 1] {
        unroll!(rows in [0 1] {
            let [a, b] = parts_of::<T>([block[half][2 * rows], block[half][2 * rows + 1]]);
            let at = (2 * rows + half) * WARP_SIZE as usize + lane;
            // SAFETY: a block has four matrices of 32 pairs.
            unsafe { (*high.add(at), *low.add(at)) = (a, b) };
        });
    });
}

impl Inverse {
    /// Inverts the matrix of which each warp has 16 rows. All threads of the block take part.
    ///
    /// # Safety
    /// The shared memory has [`BYTES`], and no other thread uses it.
    #[inline(always)]
    pub unsafe fn of<T: Element>(self, rows: &Sixteen) -> Rows {
        let warp = hidden(warp::warp_id());
        let mut inverse: Rows = [[[0.0; 4]; 2]; 4];
        // SAFETY: the blocks are in shared memory. Each is stored by one warp, and other warps read it after the barrier.
        unsafe {
            let mut diagonal = [rows[0], rows[1]];
            unroll!(j in [0 1 2 3] {
                let block = [rows[2 * j], rows[2 * j + 1]];
                if (j as u32) < warp {
                    let at = self.memory.add((self.beside(warp, j as u32) - self.offset) as usize);
                    store_block::<T>(&block, at.cast(), at.add(BLOCK as usize).cast());
                }
                if j as u32 == warp {
                    diagonal = block;
                }
            });
            inverse[0] = self.substitute(&diagonal, warp);
            let at = self.memory.add((DIAGONAL + warp * 2 * BLOCK) as usize);
            store_block::<T>(&inverse[0], at.cast(), at.add(BLOCK as usize).cast());
            thread::sync_threads();
            unroll!(distance in [1 2 3] {
                if distance as u32 <= warp {
                    let column = warp - distance as u32;
                    let mut sums = [[0.0; 4]; 2];
                    unroll!(e in [0 1 2] {
                        if e < distance {
                            let factor = Parts::new::<T>(inverse[e][0], inverse[e][1], -1.0);
                            let [high, low] = load(self.beside(warp - e as u32, column));
                            sums = factor.times_parts::<T>(high, low, sums);
                        }
                    });
                    let [high, low] = load(self.offset + DIAGONAL + column * 2 * BLOCK);
                    let factor = Parts::new::<T>(sums[0], sums[1], 1.0);
                    inverse[distance] = factor.times_parts::<T>(high, low, [[0.0; 4]; 2]);
                }
            });
        }
        inverse
    }

    /// Returns the offset of block `(row, column)` beside the diagonal.
    #[inline(always)]
    fn beside(self, row: u32, column: u32) -> u32 {
        self.offset + (row * (row - 1) / 2 + column) * 2 * BLOCK
    }

    /// Inverts a block on the diagonal.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    unsafe fn substitute(self, block: &Square, warp: u32) -> Square {
        let lane = hidden(warp::lane_id()) as usize;
        let (row, pair, column) = (lane / 4, lane % 4 * 2, lane % 16);
        // SAFETY: each warp has its own matrix, and its lanes wait for each other.
        unsafe {
            let matrix: *mut f32 = self.memory.add((SUBSTITUTION + warp * 16 * PITCH as u32 * 4) as usize).cast();
            let at =
                |half: usize, rows: usize| matrix.add((row + 8 * rows) * PITCH + 8 * half + pair).cast::<HalfVector>();
            unroll!(half in [0 1] {
                unroll!(rows in [0 1] {
                    *at(half, rows) = HalfVector::from_f32([block[half][2 * rows], block[half][2 * rows + 1]]);
                });
            });
            let mut solved = [0.0f32; 16];
            unroll!(i in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] {
                if i % 4 == 0 {
                    // Keeps the compiler from loading all rows at once, for which there are no registers.
                    warp::sync_warp(FULL_MASK);
                }
                let mut sum = if i == column { 1.0 } else { 0.0 };
                unroll!(v in [0 1 2 3] {
                    if 4 * v < i {
                        let factors = (*matrix.add(i * PITCH + 4 * v).cast::<Vector>()).to_f32();
                        unroll!(e in [0 1 2 3] {
                            if 4 * v + e < i {
                                sum = GpuFloat::mul_add(-factors[e], solved[4 * v + e], sum);
                            }
                        });
                    }
                });
                solved[i] = sum;
            });
            warp::sync_warp(FULL_MASK);
            if lane < 16 {
                unroll!(i in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] { *matrix.add(i * PITCH + column) = solved[i] });
            }
            warp::sync_warp(FULL_MASK);
            let mut inverse = [[0.0; 4]; 2];
            unroll!(half in [0 1] {
                unroll!(rows in [0 1] {
                    let [a, b] = (*at(half, rows)).to_f32();
                    (inverse[half][2 * rows], inverse[half][2 * rows + 1]) = (a, b);
                });
            });
            inverse
        }
    }
}

/// Loads the high and the low part of a block as second factors of `mma`, with columns as columns.
///
/// # Safety
/// All lanes of the warp call this together, and the block is in shared memory.
#[inline(always)]
unsafe fn load(block: u32) -> [[u32; 4]; 2] {
    let row = block + hidden(warp::lane_id()) * 16;
    // SAFETY: a block has 32 rows of 16 bytes.
    let parts = unsafe { [ldmatrix::load_x4_trans_at(row), ldmatrix::load_x4_trans_at(row + BLOCK)] };
    parts.map(|[a, b, c, d]| [a, c, b, d])
}
