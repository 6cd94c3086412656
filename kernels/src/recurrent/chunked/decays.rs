//! Sums of logarithms of decays, which are exact in any order.
//!
//! A logarithm to base 2 is rounded to a multiple of 2^-29 and divided into a multiple of 2^-10 and a remainder of at most
//! 2^-11. Sums of 64 of each have at most 24 bits, so they are exact in `f32`. Differences of two sums are then exact too.
//! They do not depend on the rows before a piece, and the decay after a strong one keeps its digits.

use cuda_std::warp::{self, FULL_MASK, WARP_SIZE, warp_shuffle_idx, warp_shuffle_up};
use cuda_std::{prelude::*, unroll};

/// A sum of logarithms.
#[derive(Clone, Copy)]
pub struct Logarithm {
    /// A multiple of 2^-10.
    pub high: f32,
    /// A multiple of 2^-29.
    pub low: f32,
}

/// The least logarithm, of the smallest normal number.
const LEAST: f32 = -126.0;

impl Logarithm {
    /// The logarithm of 1.
    pub const ZERO: Logarithm = Logarithm { high: 0.0, low: 0.0 };

    /// Divides the logarithm to base e of a decay.
    #[inline(always)]
    pub fn new(natural: f32) -> Logarithm {
        // Adding 1.5 * 2^23 units rounds to a multiple of the unit.
        const HIGH: f32 = 12_288.0;
        const LOW: f32 = 0.023_437_5;
        let log2 = natural * core::f32::consts::LOG2_E;
        let log2 = if log2 < LEAST { LEAST } else { log2 };
        let high = (log2 + HIGH) - HIGH;
        Logarithm { high, low: ((log2 - high) + LOW) - LOW }
    }

    /// Returns two to the power of the difference.
    #[inline(always)]
    pub fn power_over(self, other: Logarithm) -> f32 {
        ((self.high - other.high) + (self.low - other.low)).exp2_fast()
    }

    #[inline(always)]
    fn plus(self, other: Logarithm) -> Logarithm {
        Logarithm { high: self.high + other.high, low: self.low + other.low }
    }

    /// Returns the sums over this lane and the lanes before it.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn sums(self) -> Logarithm {
        let mut sum = self;
        unroll!(lanes in [1 2 4 8 16] {
            // SAFETY: all lanes of the warp are here.
            let before = unsafe {
                Logarithm {
                    high: warp_shuffle_up(FULL_MASK, sum.high, lanes, WARP_SIZE),
                    low: warp_shuffle_up(FULL_MASK, sum.low, lanes, WARP_SIZE),
                }
            };
            if warp::lane_id() >= lanes {
                sum = sum.plus(before);
            }
        });
        sum
    }

    /// Returns this sum plus the sum of the last lane of `before`.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn after(self, before: Logarithm) -> Logarithm {
        let last = WARP_SIZE - 1;
        // SAFETY: all lanes of the warp are here.
        unsafe {
            self.plus(Logarithm {
                high: warp_shuffle_idx(FULL_MASK, before.high, last, WARP_SIZE),
                low: warp_shuffle_idx(FULL_MASK, before.low, last, WARP_SIZE),
            })
        }
    }
}
