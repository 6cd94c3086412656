//! A lane's part of one head of one token, while heads are normalised, rotated and written to the cache.

use cuda_std::ptx::memory::load_streaming;
use cuda_std::unroll::unroll;
use cuda_std::vector::Vector;
use cuda_std::warp::WARP_SIZE;

/// Tokens that a warp handles.
pub const TOKENS: u32 = 8;

/// Lanes that share a head of one token. Their numbers differ by multiples of [`TOKENS`].
pub const LANES: u32 = WARP_SIZE / TOKENS;

/// Maximum number of vector pairs that a lane holds, for a head of 256 elements.
pub const PAIRS: usize = 4;

/// Pairs of vectors that are rotated together: one from a head's first half, one from its second.
pub type Pairs = [[Vector; 2]; PAIRS];

/// A lane's part of one head of one token: the vectors `first`, `first + LANES` ... of each half.
#[derive(Clone, Copy)]
pub struct HeadPart {
    /// Vectors in half a head.
    pub halves: u32,
    /// The lane's first vector.
    pub first: u32,
    /// Whether the token exists.
    pub here: bool,
}

impl HeadPart {
    /// Calls `run` with the number of each of this lane's pairs and its position in the half.
    #[inline(always)]
    pub fn each(self, mut run: impl FnMut(usize, u32)) {
        unroll::<PAIRS>(|i| {
            let chunk = self.first + i as u32 * LANES;
            if self.here && chunk < self.halves {
                run(i, chunk);
            }
        });
    }

    /// Loads the lane's pairs, or zeros past the end of the head.
    ///
    /// # Safety
    /// If [`Self::here`], `head` points to a head of `2 * halves` vectors.
    #[inline(always)]
    pub unsafe fn load(self, head: *const Vector) -> Pairs {
        let mut pairs = [[Vector::default(); 2]; PAIRS];
        self.each(|i, chunk| {
            // SAFETY: `each` passes chunks within half a head, of a token that exists.
            pairs[i] = unsafe {
                [load_streaming(head.add(chunk as usize)), load_streaming(head.add((chunk + self.halves) as usize))]
            };
        });
        pairs
    }
}
