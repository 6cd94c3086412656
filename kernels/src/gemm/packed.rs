//! 16-bit outputs of many tokens on every GPU. Sums are finished and rounded in registers, and pass through shared
//! memory as 16-bit values.
//!
//! This has half the traffic and a third of the instructions of the path through `f32`, which all other epilogues take.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::unroll;
use cuda_std::unroll::hidden;
use cuda_std::vector::Vector;

use super::epilogue::ProductOutput;
use super::fragment::is_light;
use crate::element::Element;
use crate::layout::VECTOR;

/// Returns whether an output takes this path: its epilogue is light, and its rows are whole vectors.
#[inline(always)]
pub fn is_packed(output: &ProductOutput) -> bool {
    is_light(output.epilogue) && output.stride.is_multiple_of(VECTOR) && output.columns(output.n).is_multiple_of(VECTOR)
}

/// A block's tile of outputs in shared memory, `[ROWS][COLUMNS]` with padding between the rows. The padding avoids bank
/// conflicts both for stores of fragments and for loads of vectors. Gated outputs use half of each row.
#[derive(Clone, Copy)]
pub struct PackedTile<const ROWS: u32, const COLUMNS: u32> {
    /// The first output, aligned to 16 bytes.
    pub at: *mut u16,
}

impl<const ROWS: u32, const COLUMNS: u32> PackedTile<ROWS, COLUMNS> {
    /// Elements between tokens.
    const PITCH: u32 = COLUMNS + VECTOR;

    /// Bytes of the tile.
    pub const BYTES: u32 = ROWS * Self::PITCH * 2;

    /// Stores a block's finished sums of tokens from `row` on and weight rows from `column` on.
    ///
    /// A warp has the sums of 64 tokens from `place[0]` of the tile on, by 64 weight rows from `place[1]` on. It has
    /// `WIDTH` arrays for each 16 tokens: 8, or 4 if the output is gated.
    ///
    /// # Safety
    /// `COLUMNS` threads, the whole block, call this together, and `thread` is the caller's number. No other thread
    /// uses the tile. The output [is packed](is_packed).
    #[inline(always)]
    pub unsafe fn store<T: Element, const WIDTH: u32>(
        self,
        sums: &[[f32; 4]; 32],
        place: [u32; 2],
        output: ProductOutput,
        thread: u32,
        [row, column]: [u32; 2],
    ) {
        let lane = hidden(warp::lane_id());
        let [warp_row, warp_column] = [place[0], place[1] * WIDTH / 8];
        let to = (warp_row + lane / 4) * Self::PITCH + warp_column + lane % 4 * 2;
        let to = self.at.wrapping_add(to as usize);
        unroll!(i in [0 1 2 3] {
            unroll!(j in [0 1 2 3 4 5 6 7] {
                if j < WIDTH {
                    let [a, b, c, d] = sums[(i * WIDTH + j) as usize];
                    // SAFETY: the stores are within the tile, which is as wide as its warps together, and pairs of
                    // columns are aligned.
                    unsafe {
                        let to = to.add((i * 16 * Self::PITCH + j * 8) as usize);
                        *to.cast() = T::Pair::from_f32([a, b]).to_bits();
                        *to.add(8 * Self::PITCH as usize).cast() = T::Pair::from_f32([c, d]).to_bits();
                    }
                }
            });
        });
        thread::sync_threads();
        // A thread stores the same vector of every `step`th row.
        let vectors = COLUMNS / 64 * WIDTH;
        let (mut at, vector) = (thread / vectors, thread % vectors * VECTOR);
        let column = output.columns(column) + vector;
        if column >= output.columns(output.n) {
            return;
        }
        let rows = output.m - row;
        let rows = if rows < ROWS { rows } else { ROWS };
        let mut from = self.at.wrapping_add((at * Self::PITCH + vector) as usize).cast_const();
        let to = (row + at) as usize * output.stride as usize + column as usize;
        let mut to = output.out.cast::<u16>().wrapping_add(to);
        let step = COLUMNS / vectors;
        while at < rows {
            // SAFETY: the vector is within the tile. Rows and columns are checked, so it is also within the output.
            // Both are aligned.
            // The copy goes through registers, since the compiler would copy memory in half vectors.
            unsafe { *to.cast() = Vector::from_f32((*from.cast::<Vector>()).to_f32()) };
            at += step;
            from = from.wrapping_add((step * Self::PITCH) as usize);
            to = to.wrapping_add(step as usize * output.stride as usize);
        }
    }
}
