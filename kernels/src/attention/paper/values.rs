//! Phase 3: sums the values, each multiplied by its token's weight.
//!
//! # One warp per block, several tokens of several rows per lane
//!
//! The block's values for one head are `[head_size][block_size]`. A *row* is one element of all tokens, so the addends
//! of a sum are contiguous. A lane reads 16 bytes, which are eight tokens of a row. It multiplies them by the eight
//! weights and adds the products to its accumulator for that row. With blocks of 16, a row is two vectors, and the warp
//! takes 16 rows at a time:
//!
//! ```text
//! token in block      0 .. 7    8 .. 15
//! row 0             | lane 0  | lane 1  |
//! row 1             | lane 2  | lane 3  |        512 contiguous bytes:
//!  ...                                           lane l reads at byte 16 * l
//! row 15            | lane 30 | lane 31 |
//! row 16            | lane 0  | lane 1  |        the second accumulator
//!  ...
//! ```
//!
//! A lane has the same eight tokens in all rows, so it loads their weights once per block.
//!
//! # Two reductions
//!
//! The accumulators stay in registers while the warp processes its blocks. Then the lanes of a row add their
//! accumulators by shuffles. Finally the warps, which have seen different tokens, add theirs through shared memory.

use cuda_std::half::Half2;
use cuda_std::prelude::*;
use cuda_std::vector::Vector;
use cuda_std::warp::{FULL_MASK, WARP_SIZE, lane_id, warp_id, warp_shuffle_xor};

use super::head::Head;
use super::{MAX_HEAD_SIZE, WARPS};
use crate::element::Element;
use crate::layout::VECTOR;
use cuda_std::unroll::unroll;

/// Maximum number of accumulators per lane, reached at head size 256 with blocks of 32.
const MAX_ROWS: usize = (MAX_HEAD_SIZE * 32 / VECTOR / WARP_SIZE) as usize;

/// Writes the weighted sum of this warp's values to the warp's row of `partial`.
///
/// # Safety
/// `weights` and `partial` are in shared memory. `weights` is `head.span.slots(B)` numbers, visible to all threads and
/// aligned to 16 bytes. `partial` has room for `[WARPS][D]`. All threads of the block call this together.
#[inline(always)]
pub unsafe fn weigh<T: Element, const D: u32, const B: u32>(head: &Head<D, B>, weights: *const f32, partial: *mut f32) {
    let vectors = B / VECTOR;
    let (first_row, vector) = (lane_id() / vectors, lane_id() % vectors);
    let step = WARP_SIZE / vectors;
    let row = |i: usize| first_row + i as u32 * step;
    let rows = D.div_ceil(step);

    let mut sums = [0.0; MAX_ROWS];
    let mut block = head.span.first_block(B) + warp_id();
    while block < head.span.end_block(B) {
        // SAFETY: `block` is a block of the sequence, rows are below `D`, and slots are below `slots(B)`.
        unsafe {
            let values = head.values(block).add(vector as usize);
            let slot = head.span.slot(block * B, B) + vector * VECTOR;
            let weights = Weights::load(weights.add(slot as usize));
            unroll::<MAX_ROWS>(|i| {
                // All rows are below `D`, except at head size 80 with blocks of 8: steps of 32 rows do not divide 80.
                if (i as u32) < rows && row(i) < D {
                    sums[i] = weights.dot::<T>(*values.add((row(i) * vectors) as usize), sums[i]);
                }
            });
        }
        block += WARPS;
    }

    unroll::<MAX_ROWS>(|i| {
        if i as u32 >= rows {
            return;
        }
        let mut sum = sums[i];
        let mut distance = vectors / 2;
        while distance > 0 {
            // SAFETY: `i`, `rows` and `distance` are the same for all lanes, so the whole warp is here.
            sum += unsafe { warp_shuffle_xor(FULL_MASK, sum, distance, WARP_SIZE) };
            distance /= 2;
        }
        if vector == 0 && row(i) < D {
            // SAFETY: the warp's own row of `partial`.
            unsafe { *partial.add((warp_id() * D + row(i)) as usize) = sum };
        }
    });
}

/// The weights of eight neighbouring tokens.
struct Weights {
    weights: [f32; 8],
    /// A mask for each pair of tokens, with ones where the weight is not zero.
    keep: [u32; 4],
}

impl Weights {
    /// Loads the weights of eight tokens.
    ///
    /// # Safety
    /// `from` points to eight numbers, aligned to 16 bytes.
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Weights {
        // SAFETY: by this function's contract, `from` points to eight numbers aligned to 16 bytes, which are two
        // vectors.
        let (low, high) = unsafe { (*from.cast::<Vector>(), *from.add(4).cast::<Vector>()) };
        let ([a, b, c, d], [e, f, g, h]) = (low.to_f32(), high.to_f32());
        let keep =
            |low: f32, high: f32| (if low != 0.0 { 0xffff } else { 0 }) | if high != 0.0 { 0xffff_0000 } else { 0 };
        Weights { weights: [a, b, c, d, e, f, g, h], keep: [keep(a, b), keep(c, d), keep(e, f), keep(g, h)] }
    }

    /// Returns `sum` plus the dot product of eight values with these weights.
    ///
    /// A token with weight zero adds nothing, whatever its value. The cache after the last token may hold NaN, and zero
    /// times NaN is NaN.
    #[inline(always)]
    fn dot<T: Element>(&self, value: Vector, mut sum: f32) -> f32 {
        unroll::<4>(|pair| {
            let [a, b] = T::Pair::from_bits(value.0[pair] & self.keep[pair]).to_f32();
            sum = GpuFloat::mul_add(a, self.weights[2 * pair], sum);
            sum = GpuFloat::mul_add(b, self.weights[2 * pair + 1], sum);
        });
        sum
    }
}
