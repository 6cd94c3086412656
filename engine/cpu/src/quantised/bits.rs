//! Extracting a part's integers from its lines.

use std::marker::PhantomData;

use super::lanes::Lanes;
use crate::pages::Line;
use checkpoint::quantised::{E2M1, IQ4, QuantType};

/// The layout of a part's integers in its lines.
pub(super) trait Bits {
    /// Extracts the four columns of chunk `chunk` for all rows.
    fn chunk<L: Lanes>(lanes: L, lines: &[Line], chunk: usize) -> L::Bytes;

    /// Adds the products of four columns of the weight with four columns of a token.
    #[inline(always)]
    fn dot<L: Lanes>(lanes: L, sum: L::Ints, bytes: L::Bytes, x: i32) -> L::Ints {
        lanes.dot(sum, bytes, x)
    }

    /// Returns the initial value of sums. It corrects for the extracted integers being unsigned.
    #[inline(always)]
    fn begin<L: Lanes>(lanes: L, kind: QuantType, sum: i32) -> L::Ints {
        lanes.splat(-i32::from(Self::zero(kind)) * sum)
    }

    /// The unsigned integer that represents 0.
    #[inline(always)]
    fn zero(kind: QuantType) -> u8 {
        kind.zero()
    }
}

/// 8-bit integers.
pub(super) struct Wide;
/// 2-bit integers. Each line contains four chunks.
pub(super) struct TwoBits;
/// 3-bit integers. One additional line contains the third bit of each chunk.
pub(super) struct ThreeBits;
/// 4-bit integers. The upper halves of bytes contain the columns from the sixteenth on.
pub(super) struct Nibbles;
/// 5-bit integers. One additional line contains the fifth bit of each chunk.
pub(super) struct FiveBits;
/// 6-bit integers. Two additional lines contain the upper two bits of each chunk.
pub(super) struct SixBits;
/// 4-bit codes for the integers of a table, in the layout of [`Nibbles`].
pub(super) struct Codes<T>(PhantomData<T>);

/// The integers that 4-bit codes represent.
pub(super) trait Table {
    const NUMBERS: [i8; 16];
}

/// The table of IQ4_NL and IQ4_XS.
pub(super) struct NonLinear;
/// The table of MXFP4.
pub(super) struct Fp4;

impl Table for NonLinear {
    const NUMBERS: [i8; 16] = IQ4;
}

impl Table for Fp4 {
    const NUMBERS: [i8; 16] = E2M1;
}

impl Bits for Wide {
    #[inline(always)]
    fn chunk<L: Lanes>(lanes: L, lines: &[Line], chunk: usize) -> L::Bytes {
        lanes.wide(&lines[chunk])
    }

    #[inline(always)]
    fn dot<L: Lanes>(lanes: L, sum: L::Ints, bytes: L::Bytes, x: i32) -> L::Ints {
        lanes.dot_wide(sum, bytes, x)
    }

    #[inline(always)]
    fn begin<L: Lanes>(lanes: L, _: QuantType, sum: i32) -> L::Ints {
        lanes.begin_wide(sum)
    }
}

impl Bits for TwoBits {
    #[inline(always)]
    fn chunk<L: Lanes>(lanes: L, lines: &[Line], chunk: usize) -> L::Bytes {
        lanes.bits(lanes.load(&lines[chunk / 4]), chunk % 4 * 2, 3)
    }
}

impl Bits for ThreeBits {
    #[inline(always)]
    fn chunk<L: Lanes>(lanes: L, lines: &[Line], chunk: usize) -> L::Bytes {
        let high = lanes.bits(lanes.load(&lines[2]), chunk, 1);
        lanes.join(TwoBits::chunk(lanes, lines, chunk), high, 2)
    }
}

impl Bits for Nibbles {
    #[inline(always)]
    fn chunk<L: Lanes>(lanes: L, lines: &[Line], chunk: usize) -> L::Bytes {
        let line = lanes.load(&lines[chunk % 4]);
        lanes.bits(line, chunk / 4 * 4, 15)
    }
}

impl Bits for FiveBits {
    #[inline(always)]
    fn chunk<L: Lanes>(lanes: L, lines: &[Line], chunk: usize) -> L::Bytes {
        let high = lanes.bits(lanes.load(&lines[4]), chunk, 1);
        lanes.join(Nibbles::chunk(lanes, lines, chunk), high, 4)
    }
}

impl Bits for SixBits {
    #[inline(always)]
    fn chunk<L: Lanes>(lanes: L, lines: &[Line], chunk: usize) -> L::Bytes {
        let high = lanes.bits(lanes.load(&lines[4 + chunk / 4]), chunk % 4 * 2, 3);
        lanes.join(Nibbles::chunk(lanes, lines, chunk), high, 4)
    }
}

impl<T: Table> Bits for Codes<T> {
    #[inline(always)]
    fn chunk<L: Lanes>(lanes: L, lines: &[Line], chunk: usize) -> L::Bytes {
        lanes.look_up(Nibbles::chunk(lanes, lines, chunk), T::NUMBERS)
    }

    #[inline(always)]
    fn dot<L: Lanes>(lanes: L, sum: L::Ints, bytes: L::Bytes, x: i32) -> L::Ints {
        lanes.dot_wide(sum, bytes, x)
    }

    #[inline(always)]
    fn begin<L: Lanes>(lanes: L, _: QuantType, sum: i32) -> L::Ints {
        lanes.begin_wide(sum)
    }

    /// The offset of [`Lanes::wide`].
    #[inline(always)]
    fn zero(_: QuantType) -> u8 {
        128
    }
}
