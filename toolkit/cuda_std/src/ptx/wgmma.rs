//! `wgmma`: a warp group (four warps) multiplies 16-bit matrices on the tensor cores and accumulates in `f32`: D (64 x
//! n) = A (64 x 16) B (16 x n) + D, with factors in shared memory. Hopper.
//!
//! The elements of D in lane `l` of the group's warp `w`, with `r = 16 w + l / 4` and `c = 2 * (l % 4)`: `sums[j]` is
//! `(r, 8 j + c)`, `(r, 8 j + c + 1)`, `(r + 8, 8 j + c)`, `(r + 8, 8 j + c + 1)`, as with [`mma`](super::mma). The
//! layout of A in registers is also the same: `(r, c..)`, `(r + 8, c..)`, `(r, c + 8..)`, `(r + 8, c + 8..)`.
//!
//! # One statement
//!
//! The hardware updates the sums while the threads continue, so no code may touch their registers before the threads
//! have waited for the products. Rust cannot express this for values: the compiler may move them between any two
//! statements. Hence each function is complete: `wgmma.fence`, one or several products, `wgmma.commit_group`,
//! `wgmma.wait_group 0`. With two warp groups per block, the tensor cores work on the other group's products during the
//! wait.
//!
//! The sums stay in registers if every index into them is a constant (see [`unroll`](mod@crate::unroll)).
//!
//! The functions are collectives: all threads of the warp group execute the same call together. If other threads wrote
//! the factors, call [`fence::proxy_async_shared`](super::fence::proxy_async_shared) and pass a barrier first. If
//! copies wrote them, wait for their mbarrier first.

mod products;

use super::pattern::TilePattern;

pub use products::*;

/// The layout of a factor in shared memory, for the descriptors that `wgmma` takes.
///
/// A factor is *K-major* if the elements of a row of A, or of a column of B, are contiguous. Otherwise it is
/// *MN-major*. It consists of 8 x 8 matrices, which have 8 rows of 16 bytes. Such a row is contiguous in memory.
/// `leading` and `stride` are distances in bytes, and their meaning depends on both the major dimension and the
/// pattern:
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
    /// K-major rows of 64 elements, in the order in which a tensor copy with [`TilePattern::Bytes128`] stores a tile
    /// that is 64 elements wide.
    pub const ROWS_OF_128_BYTES: MatrixLayout = MatrixLayout::new(TilePattern::Bytes128, 16, 1024);

    /// Creates a layout. Distances are in bytes, and multiples of 16 below 256 KiB.
    pub const fn new(pattern: TilePattern, leading: u32, stride: u32) -> MatrixLayout {
        let code = match pattern {
            TilePattern::Plain => 0,
            TilePattern::Bytes128 => 1,
            TilePattern::Bytes64 => 2,
            TilePattern::Bytes32 => 3,
        };
        MatrixLayout(field(leading) << 16 | field(stride) << 32 | code << 62)
    }

    /// Returns the descriptor of a factor that begins at an offset in shared memory.
    #[inline(always)]
    pub const fn at(self, offset: u32) -> u64 {
        self.0 | field(offset)
    }

    /// Returns the descriptors of eight factors. The first begins at `offset` in shared memory, and each further one
    /// begins `bytes` after the previous.
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

/// Returns the lower half of the descriptor of a factor with K-major rows of 64 elements
/// ([`MatrixLayout::ROWS_OF_128_BYTES`]) that begins at `offset` in shared memory. The upper half is the same for all
/// such factors. Moving a factor by 16 bytes adds 1 to its descriptor.
#[inline(always)]
pub const fn row_descriptor(offset: u32) -> u32 {
    MatrixLayout::ROWS_OF_128_BYTES.at(offset) as u32
}

/// Encodes an offset or distance for a descriptor.
#[inline(always)]
const fn field(bytes: u32) -> u64 {
    ((bytes & 0x3_ffff) >> 4) as u64
}

/// The descriptor's increment for 16 elements along a row of 64 elements.
pub(super) const STEP: u32 = 2;
