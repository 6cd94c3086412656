//! `wgmma`: a warp group, four warps, multiplies 16-bit matrices on the tensor cores and adds in `f32`:
//! D (64 x n) = A (64 x 16) B (16 x n) + D, with factors in shared memory. Hopper.
//!
//! What lane `l` of the group's warp `w` holds of D, with `r = 16 w + l / 4` and `c = 2 * (l % 4)`: `sums[j]` is
//! `(r, 8 j + c)`, `(r, 8 j + c + 1)`, `(r + 8, 8 j + c)`, `(r + 8, 8 j + c + 1)`, as with [`mma`](super::mma). A in registers
//! is as there, too: `(r, c..)`, `(r + 8, c..)`, `(r, c + 8..)`, `(r + 8, c + 8..)`.
//!
//! # One statement
//!
//! The hardware works on the sums while the threads go on, so that nobody may touch their registers before the products
//! are waited for. Rust has no way to say this of values: the compiler may move them anywhere between two statements.
//! Hence each function is whole: `wgmma.fence`, one product or several, `wgmma.commit_group`, `wgmma.wait_group 0`. The
//! tensor cores stay busy with the products of another warp group of the block meanwhile; that takes two of them.
//!
//! The sums stay in registers if every index into them is a constant (see [`unroll`](mod@crate::unroll)).
//!
//! Collectives: all threads of the warp group execute the same one together. What other threads wrote to the factors is
//! behind [`fence::proxy_async_shared`](super::fence::proxy_async_shared) and a barrier; what copies brought is behind their
//! mbarrier.

mod products;

use super::pattern::TilePattern;

pub use products::*;

/// How a factor lies in shared memory, for descriptors that tell `wgmma` so.
///
/// A factor is *K-major* if the elements of a row of A, or of a column of B, follow each other, and else *MN-major*. Its
/// smallest parts are 8 x 8 matrices of 8 rows of 16 bytes; a row here is along memory. What `leading` and `stride` are
/// depends on both:
///
/// | | `leading` | `stride` |
/// | --- | --- | --- |
/// | K-major, no pattern | from one matrix to the next along K | along M or N |
/// | MN-major, no pattern | from one to the next along K | along M or N |
/// | K-major, with a pattern | not used | from eight rows of the pattern to the next eight |
/// | MN-major, with a pattern | from one row of the pattern to the next along M or N | from eight of K to the next |
///
/// A factor with a pattern begins at a multiple of eight of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout(u64);

impl MatrixLayout {
    /// K-major rows of 64 elements, which lie as a tensor copy with [`TilePattern::Bytes128`] leaves a tile of 64 elements
    /// a row.
    pub const ROWS_OF_128_BYTES: MatrixLayout = MatrixLayout::new(TilePattern::Bytes128, 16, 1024);

    /// Distances are in bytes, multiples of 16 below 256 KiB.
    pub const fn new(pattern: TilePattern, leading: u32, stride: u32) -> MatrixLayout {
        let code = match pattern {
            TilePattern::Plain => 0,
            TilePattern::Bytes128 => 1,
            TilePattern::Bytes64 => 2,
            TilePattern::Bytes32 => 3,
        };
        MatrixLayout(field(leading) << 16 | field(stride) << 32 | code << 62)
    }

    /// The descriptor of a factor that begins at an offset in shared memory.
    #[inline(always)]
    pub const fn at(self, offset: u32) -> u64 {
        self.0 | field(offset)
    }

    /// The descriptors of eight factors, the first of which begins at an offset in shared memory, and each other one so many bytes
    /// further.
    #[inline(always)]
    pub const fn along(self, offset: u32, bytes: u32) -> [u64; 8] {
        let (high, low, step) = (self.0 >> 32 << 32, self.at(offset) as u32, bytes / 16);
        [
            high | low as u64,
            high | (low + step) as u64,
            high | (low + 2 * step) as u64,
            high | (low + 3 * step) as u64,
            high | (low + 4 * step) as u64,
            high | (low + 5 * step) as u64,
            high | (low + 6 * step) as u64,
            high | (low + 7 * step) as u64,
        ]
    }
}

/// The lower half of the descriptor of a factor of K-major rows of 64 elements ([`MatrixLayout::ROWS_OF_128_BYTES`]), which
/// begins at an offset in shared memory; the upper half is the same for all. A factor that begins so many bytes further has a
/// descriptor that is a 16th of them greater.
#[inline(always)]
pub const fn row_descriptor(offset: u32) -> u32 {
    MatrixLayout::ROWS_OF_128_BYTES.at(offset) as u32
}

/// A place or distance as descriptors have it.
#[inline(always)]
const fn field(bytes: u32) -> u64 {
    ((bytes & 0x3_ffff) >> 4) as u64
}

/// Descriptor bits of 16 elements further along rows of 64 elements.
pub(super) const STEP: u32 = 2;
