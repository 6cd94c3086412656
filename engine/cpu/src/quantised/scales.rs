//! The scales and minima of groups and of their parts.

#![allow(clippy::needless_range_loop)] // as in `dots`

use super::lanes::Lanes;
use super::layout::{PART, ROWS};
use super::packed::PackedBand;

/// The scale of a group that consists of one part, and its minimum if it has one.
pub(super) trait GroupScale {
    /// The stored scale and minimum of sixteen rows.
    type Entry;
    const HAS_MINIMUM: bool = false;

    fn entries<'a>(weight: &PackedBand<'a>) -> &'a [Self::Entry];
    fn scale<L: Lanes>(lanes: L, entry: &Self::Entry) -> L::Floats;

    /// The minimum. It is only used if [`Self::HAS_MINIMUM`].
    #[inline(always)]
    fn minimum<L: Lanes>(lanes: L, _: &Self::Entry) -> L::Floats {
        lanes.zeros()
    }
}

/// An f16 scale.
pub(super) struct Half;
/// An f16 scale and an f16 minimum.
pub(super) struct HalfAndMinimum;
/// A power of two.
pub(super) struct Power;

impl GroupScale for Half {
    type Entry = [u16; ROWS];

    #[inline(always)]
    fn entries<'a>(weight: &PackedBand<'a>) -> &'a [[u16; ROWS]] {
        weight.scales
    }

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, entry: &[u16; ROWS]) -> L::Floats {
        lanes.halves(entry)
    }
}

impl GroupScale for HalfAndMinimum {
    type Entry = [[u16; ROWS]; 2];
    const HAS_MINIMUM: bool = true;

    #[inline(always)]
    fn entries<'a>(weight: &PackedBand<'a>) -> &'a [[[u16; ROWS]; 2]] {
        weight.scales.as_chunks().0
    }

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, entry: &[[u16; ROWS]; 2]) -> L::Floats {
        lanes.halves(&entry[0])
    }

    #[inline(always)]
    fn minimum<L: Lanes>(lanes: L, entry: &[[u16; ROWS]; 2]) -> L::Floats {
        lanes.halves(&entry[1])
    }
}

impl GroupScale for Power {
    type Entry = [u8; ROWS];

    #[inline(always)]
    fn entries<'a>(weight: &PackedBand<'a>) -> &'a [[u8; ROWS]] {
        weight.parts
    }

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, entry: &[u8; ROWS]) -> L::Floats {
        lanes.half_powers(entry)
    }
}

/// The scales of a group's parts, which are small integers, and their minima if they have them. `small` has a group's
/// entries of the band's `parts`.
pub(super) trait PartScales {
    /// Chunks of four columns that share a scale.
    const CHUNKS: usize;
    const HAS_MINIMA: bool = false;

    fn scale<L: Lanes>(lanes: L, small: &[[u8; ROWS]], part: usize) -> L::Ints;

    /// The minima of parts `2 pair` and `2 pair + 1`. They are only used if [`Self::HAS_MINIMA`].
    #[inline(always)]
    fn minima<L: Lanes>(lanes: L, _: &[[u8; ROWS]], _pair: usize) -> L::Ints {
        lanes.splat(0)
    }
}

/// A signed byte for the 32 columns of a part.
pub(super) struct SignedByte;
/// A signed byte for each half of a part.
pub(super) struct SignedBytes;
/// An unsigned byte for each part, then a minimum for each part.
pub(super) struct BytesThenMinima;
/// A byte for each half of a part, with the scale in its lower half and the minimum in its upper half.
pub(super) struct BothInByte;

impl PartScales for SignedByte {
    const CHUNKS: usize = PART / 4;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, small: &[[u8; ROWS]], part: usize) -> L::Ints {
        lanes.widen_signed(&small[part])
    }
}

impl PartScales for SignedBytes {
    const CHUNKS: usize = PART / 8;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, small: &[[u8; ROWS]], part: usize) -> L::Ints {
        lanes.widen_signed(&small[part])
    }
}

impl PartScales for BytesThenMinima {
    const CHUNKS: usize = PART / 4;
    const HAS_MINIMA: bool = true;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, small: &[[u8; ROWS]], part: usize) -> L::Ints {
        lanes.widen(&small[part])
    }

    #[inline(always)]
    fn minima<L: Lanes>(lanes: L, small: &[[u8; ROWS]], pair: usize) -> L::Ints {
        lanes.pairs(&small[8 + 2 * pair], &small[9 + 2 * pair])
    }
}

impl PartScales for BothInByte {
    const CHUNKS: usize = PART / 8;
    const HAS_MINIMA: bool = true;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, small: &[[u8; ROWS]], part: usize) -> L::Ints {
        let mut low = small[part];
        for row in 0..ROWS {
            low[row] &= 15;
        }
        lanes.widen(&low)
    }

    #[inline(always)]
    fn minima<L: Lanes>(lanes: L, small: &[[u8; ROWS]], pair: usize) -> L::Ints {
        let (mut first, mut second) = (small[2 * pair], small[2 * pair + 1]);
        for row in 0..ROWS {
            first[row] >>= 4;
            second[row] >>= 4;
        }
        lanes.pairs(&first, &second)
    }
}
