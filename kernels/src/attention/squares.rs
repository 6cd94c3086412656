//! Keys or values of 16 tokens by 16 elements, loaded from shared memory as the fragments that `mma` takes.
//!
//! Rows of shared memory are vectors of one token each, so that a chunk of a tile is a piece of contiguous rows. In 16 bits a
//! square is two neighbouring chunks of 16 rows, and `ldmatrix` loads one at a time. In 8 bits it is one chunk, and two squares
//! are loaded at a time. There `ldmatrix` moves bytes in pairs: what a lane receives of 8 tokens are the elements that it would
//! receive of both chunks in 16 bits, thanks to the order of elements in a [page](crate::layout).

use core::marker::PhantomData;

use cuda_std::half::{F16x2, Half2};
use cuda_std::ptx::ldmatrix;
use cuda_std::warp::lane_id;

use crate::kv_element::KvElement;

/// Bytes of a row.
const ROW: u32 = 16;

/// Fragments of a square: of its first 8 tokens and of the other 8, and of each the first 8 elements and the other 8.
pub type Square = [[u32; 2]; 2];

/// Squares that lie at regular distances, loaded one after the other.
pub struct Squares<T> {
    /// Where this lane's row of the first matrices is, an offset in shared memory.
    row: u32,
    /// Bytes from one square to the next.
    stride: u32,
    /// How many there are.
    count: u32,
    /// Whether `ldmatrix` loads both halves of a square's tokens before the other elements.
    tokens_first: bool,
    /// Codes of two squares.
    held: [u32; 4],
    element: PhantomData<T>,
}

impl<T: KvElement> Squares<T> {
    /// Chunks of a square.
    pub const CHUNKS: u32 = 16 / T::FORMAT.vector_elements();

    /// `count` squares of which the first is at `first`, an offset in shared memory, and each other `stride` bytes behind the
    /// one before; a chunk has so many rows.
    #[inline(always)]
    fn new(first: u32, count: u32, stride: u32, rows: u32, tokens_first: bool) -> Self {
        let lane = lane_id();
        let row = if T::FORMAT.is_coded() {
            lane % 16 * ROW + lane / 16 * stride
        } else if tokens_first {
            (lane / 16 * rows + lane % 16) * ROW
        } else {
            (lane / 8 % 2 * rows + lane / 16 * 8 + lane % 8) * ROW
        };
        Squares { row: first + row, stride, count, tokens_first, held: [0; 4], element: PhantomData }
    }

    /// Squares of the same tokens and successive elements. `tokens_first` says in which order 16-bit matrices are loaded, which are in
    /// neighbouring registers then: an operand's should be.
    #[inline(always)]
    pub fn along_elements(first: u32, count: u32, rows: u32, tokens_first: bool) -> Self {
        Self::new(first, count, Self::CHUNKS * rows * ROW, rows, tokens_first)
    }

    /// Squares of the same elements and successive tokens: a chunk's `rows`.
    #[inline(always)]
    pub fn along_tokens(first: u32, rows: u32) -> Self {
        Self::new(first, rows / 16, 16 * ROW, rows, false)
    }

    /// Square number `index`: each token's elements side by side, as keys are taken. After the first they are asked for in order.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and all squares are in shared memory.
    #[inline(always)]
    pub unsafe fn of_tokens(&mut self, index: u32) -> Square {
        // SAFETY: this function's contract is that of the load.
        self.square(index, |row| unsafe { ldmatrix::load_x4_at(row) })
    }

    /// Square number `index`: each element's tokens side by side, as values are taken. After the first they are asked for in order.
    ///
    /// # Safety
    /// As for [`Self::of_tokens`].
    #[inline(always)]
    pub unsafe fn of_elements(&mut self, index: u32) -> Square {
        // SAFETY: this function's contract is that of the load.
        self.square(index, |row| unsafe { ldmatrix::load_x4_trans_at(row) })
    }

    #[inline(always)]
    fn square(&mut self, index: u32, load: impl Fn(u32) -> [u32; 4]) -> Square {
        let row = self.row + index * self.stride;
        if !T::FORMAT.is_coded() {
            let [a, b, c, d] = load(row);
            return if self.tokens_first { [[a, c], [b, d]] } else { [[a, b], [c, d]] };
        }
        if index.is_multiple_of(2) {
            // The last of an odd number has no other behind it: it is loaded twice.
            let is_alone = !self.count.is_multiple_of(2) && index + 1 == self.count;
            self.held = load(if is_alone { row - lane_id() / 16 * self.stride } else { row });
        }
        let [a, b, c, d] = self.held;
        let [low, high] = if index.is_multiple_of(2) { [a, b] } else { [c, d] };
        [T::pairs(low), T::pairs(high)]
    }
}

/// The scales of 32 tokens from `at` on, an offset in shared memory: of each 8 those that belong to a lane's two columns of
/// scores.
///
/// # Safety
/// All lanes of the warp call this together, and the scales are in shared memory, aligned to 16 bytes.
#[inline(always)]
pub unsafe fn scales(at: u32) -> [[f32; 2]; 4] {
    // All rows of a matrix are the same, so that a lane receives the pair that its place in a row names.
    // SAFETY: this function's contract is that of the load.
    let [a, b, c, d] = unsafe { ldmatrix::load_x4_at(at + lane_id() / 8 * ROW) };
    let pair = |bits| F16x2(bits).to_f32();
    [pair(a), pair(b), pair(c), pair(d)]
}
