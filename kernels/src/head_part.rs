//! The part of one head of one token that a lane holds while heads are normed, rotated and written to the cache.

use cuda_std::ptx::memory::load_streaming;
use cuda_std::unroll::unroll;
use cuda_std::vector::Vector;
use cuda_std::warp::WARP_SIZE;

/// Tokens that a warp takes.
pub const TOKENS: u32 = 8;

/// Lanes that share a head of one token: those whose numbers differ by a multiple of [`TOKENS`].
pub const LANES: u32 = WARP_SIZE / TOKENS;

/// Pairs of vectors that a lane holds, at most: of a head of 256 elements.
pub const PAIRS: usize = 4;

/// Pairs of vectors that are rotated together: one of a head's first half, and one of its second.
pub type Pairs = [[Vector; 2]; PAIRS];

/// The part of one head of one token that a lane holds: of each half the vectors `first`, `first + LANES` ...
#[derive(Clone, Copy)]
pub struct HeadPart {
    /// Vectors in half a head.
    pub halves: u32,
    /// The lane's first vector.
    pub first: u32,
    /// Whether there is such a token.
    pub here: bool,
}

impl HeadPart {
    /// Calls `run` with the number and the place of each pair that is this lane's.
    #[inline(always)]
    pub fn each(self, mut run: impl FnMut(usize, u32)) {
        unroll::<PAIRS>(|i| {
            let chunk = self.first + i as u32 * LANES;
            if self.here && chunk < self.halves {
                run(i, chunk);
            }
        });
    }

    /// Loads the lane's pairs; zeros where it has none.
    ///
    /// # Safety
    /// If [`Self::here`], `head` points to a head of `2 * halves` vectors.
    #[inline(always)]
    pub unsafe fn load(self, head: *const Vector) -> Pairs {
        let mut pairs = [[Vector::default(); 2]; PAIRS];
        self.each(|i, chunk| {
            // SAFETY: `each` gives chunks within half a head, of a token that is there.
            pairs[i] = unsafe {
                [load_streaming(head.add(chunk as usize)), load_streaming(head.add((chunk + self.halves) as usize))]
            };
        });
        pairs
    }
}
