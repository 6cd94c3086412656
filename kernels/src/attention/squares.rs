//! Loads squares of keys or values, 16 tokens by 16 elements, from shared memory as the fragments that `mma` takes.
//!
//! A row of shared memory is a 16-byte vector of one token, so a chunk of a tile is a contiguous run of rows.
//!
//! In 16 bits a square is two neighbouring chunks of 16 rows, and one `ldmatrix` loads one square.
//!
//! In 8 bits a square is one chunk, and one `ldmatrix` loads two squares. `ldmatrix` moves bytes in pairs. Because of
//! the order of elements in a [page](crate::layout), the bytes that a lane receives of 8 tokens are the elements that
//! it would receive from both chunks in 16 bits.

use core::marker::PhantomData;

use cuda_std::half::{F16x2, Half2};
use cuda_std::ptx::ldmatrix;
use cuda_std::warp::lane_id;

use crate::kv_element::KvElement;

/// Bytes per row.
const ROW: u32 = 16;

/// Fragments of a square, indexed by half of its 16 tokens and then by half of its 16 elements.
pub type Square = [[u32; 2]; 2];

/// Squares at a regular stride in shared memory, loaded in order.
pub struct Squares<T> {
    /// The shared-memory offset of this lane's row in the first matrices.
    row: u32,
    /// Bytes from one square to the next.
    stride: u32,
    /// The number of squares.
    count: u32,
    /// Whether `ldmatrix` loads both halves of the tokens before it moves to the other half of the elements.
    tokens_first: bool,
    /// The codes that were last loaded, for two squares. Unused in 16 bits.
    codes: [u32; 4],
    element: PhantomData<T>,
}

impl<T: KvElement> Squares<T> {
    /// Chunks per square.
    pub const CHUNKS: u32 = 16 / T::FORMAT.vector_elements();

    /// Creates `count` squares. The first is at the shared-memory offset `first`, and they are `stride` bytes apart.
    /// Each chunk has `rows` rows.
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
        Squares { row: first + row, stride, count, tokens_first, codes: [0; 4], element: PhantomData }
    }

    /// Creates squares of the same tokens and successive elements.
    ///
    /// `tokens_first` sets the load order of the 16-bit matrices, and so which of them are in neighbouring registers.
    /// The matrices of one `mma` operand should be neighbours.
    #[inline(always)]
    pub fn along_elements(first: u32, count: u32, rows: u32, tokens_first: bool) -> Self {
        Self::new(first, count, Self::CHUNKS * rows * ROW, rows, tokens_first)
    }

    /// Creates squares of the same elements and successive tokens, which cover a chunk's `rows`.
    #[inline(always)]
    pub fn along_tokens(first: u32, rows: u32) -> Self {
        Self::new(first, rows / 16, 16 * ROW, rows, false)
    }

    /// Loads square `index` with each token's elements contiguous, as `mma` takes keys. In 8 bits an odd index reuses
    /// the load of the index before it, so callers must ask for squares in order.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and all squares are in shared memory.
    #[inline(always)]
    pub unsafe fn of_tokens(&mut self, index: u32) -> Square {
        // SAFETY: this function's contract is the same as the load's.
        self.square(index, |row| unsafe { ldmatrix::load_x4_at(row) })
    }

    /// Loads square `index` with each element's tokens contiguous, as `mma` takes values. Callers must ask for squares
    /// in order, as for [`Self::of_tokens`].
    ///
    /// # Safety
    /// As for [`Self::of_tokens`].
    #[inline(always)]
    pub unsafe fn of_elements(&mut self, index: u32) -> Square {
        // SAFETY: this function's contract is the same as the load's.
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
            // The last square of an odd count has no partner, so it is loaded twice.
            let is_alone = !self.count.is_multiple_of(2) && index + 1 == self.count;
            self.codes = load(if is_alone { row - lane_id() / 16 * self.stride } else { row });
        }
        let [a, b, c, d] = self.codes;
        let [low, high] = if index.is_multiple_of(2) { [a, b] } else { [c, d] };
        [T::pairs(low), T::pairs(high)]
    }
}

/// Loads the scales of 32 tokens from the shared-memory offset `at`. For each 8 tokens, returns the two scales of this
/// lane's two columns of scores.
///
/// # Safety
/// All lanes of the warp call this together. The scales are in shared memory, aligned to 16 bytes.
#[inline(always)]
pub unsafe fn scales(at: u32) -> [[f32; 2]; 4] {
    // All rows of a matrix are the same, so a lane receives the pair at its position within the row.
    // SAFETY: this function's contract is the same as the load's.
    let [a, b, c, d] = unsafe { ldmatrix::load_x4_at(at + lane_id() / 8 * ROW) };
    let pair = |bits| F16x2(bits).to_f32();
    [pair(a), pair(b), pair(c), pair(d)]
}
