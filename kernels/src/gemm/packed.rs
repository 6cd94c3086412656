//! Plain outputs of many tokens on every GPU: sums become 16 bits in their registers, and go through shared memory as such.
//!
//! That is half the traffic, and a third of the instructions, of the way through `f32`, which epilogues need that compute with what
//! neighbouring threads have, or with the output.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::unroll;
use cuda_std::vector::Vector;

use super::epilogue::ProductOutput;
use super::split::add;
use crate::element::Element;
use crate::layout::VECTOR;

/// A block's tile of outputs in shared memory, `[ROWS][COLUMNS]` with room between the rows: so neither stores of fragments nor
/// loads of vectors meet in a bank.
#[derive(Clone, Copy)]
pub struct PackedTile<const ROWS: u32, const COLUMNS: u32> {
    /// The first output, aligned to 16 bytes.
    pub at: *mut u16,
}

impl<const ROWS: u32, const COLUMNS: u32> PackedTile<ROWS, COLUMNS> {
    /// From one token to the next.
    const PITCH: u32 = COLUMNS + VECTOR;

    /// Puts a warp's sums of 64 tokens by 64 rows of the weight: from `row` and `column` of the tile on, which is `first` of the weight.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and nobody else uses these places. The output is plain, as
    /// [`ProductOutput::is_packed`] says.
    #[inline(always)]
    pub unsafe fn put<T: Element>(
        self,
        sums: &mut [[f32; 4]; 32],
        [row, column]: [u32; 2],
        first: u32,
        output: ProductOutput,
    ) {
        let lane = warp::lane_id();
        let place = (row + lane / 4) * Self::PITCH + column + lane % 4 * 2;
        let to = self.at.wrapping_add(place as usize);
        // SAFETY: the places are within the tile, by this function's contract; pairs of columns are aligned.
        unsafe {
            if !output.bias.is_null() {
                unroll!(j in [0 1 2 3 4 5 6 7] {
                    let [x, y] = output.bias2::<T>(first + j * 8 + lane % 4 * 2);
                    unroll!(i in [0 1 2 3] {
                        let at = i * 8 + j as usize;
                        sums[at] = add(sums[at], [x, y, x, y]);
                    });
                });
            }
            unroll!(i in [0 1 2 3] {
                unroll!(j in [0 1 2 3 4 5 6 7] {
                    let [a, b, c, d] = sums[i * 8 + j];
                    let to = to.add(i * 16 * Self::PITCH as usize + j * 8);
                    *to.cast() = T::Pair::from_f32([a, b]).to_bits();
                    *to.add(8 * Self::PITCH as usize).cast() = T::Pair::from_f32([c, d]).to_bits();
                });
            });
        }
    }

    /// Stores the tile as that of token `row` and row `column` of the weight, and of those behind them: a thread has the same vector
    /// of every eighth row.
    ///
    /// # Safety
    /// `COLUMNS` threads, of which this is number `thread`, call this, and all of the tile is visible. The output is plain, too.
    #[inline(always)]
    pub unsafe fn store(self, output: ProductOutput, thread: u32, row: u32, column: u32) {
        let (mut at, vector) = (thread / (COLUMNS / VECTOR), thread % (COLUMNS / VECTOR) * VECTOR);
        if column + vector >= output.n {
            return;
        }
        let rows = output.m - row;
        let rows = if rows < ROWS { rows } else { ROWS };
        let mut from = self.at.wrapping_add((at * Self::PITCH + vector) as usize).cast_const();
        let to = (row + at) as usize * output.stride as usize + (column + vector) as usize;
        let mut to = output.out.cast::<u16>().wrapping_add(to);
        while at < rows {
            // SAFETY: the vector is within the tile and, as rows and columns are checked, within the output; both are aligned.
            // Through registers, since the compiler copies memory by halves of vectors.
            unsafe { *to.cast() = Vector::from_f32((*from.cast::<Vector>()).to_f32()) };
            at += 8;
            from = from.wrapping_add(8 * Self::PITCH as usize);
            to = to.wrapping_add(8 * output.stride as usize);
        }
    }
}
