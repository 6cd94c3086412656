//! Converts codes of quantised weights to numbers of a 16-bit type, in registers, two at a time and exactly.

use cuda_std::half::{Bf16x2, F16x2, Half2};

use crate::element::{Bf16, Element, F16};

/// A 16-bit type that codes can be converted to.
///
/// A code's bits become the low fraction bits of a number whose unit in the last place is 1, such as 1024 in `f16`.
/// Subtracting that number leaves the code. All these numbers are exact, so nothing is rounded before the product.
pub trait FromCodes: Element {
    /// The number one in both halves of a word.
    const ONE: u32;

    /// Value of an FP8 code, divided by the number that [`fp8`](Self::fp8) makes of it.
    const FP8_FACTOR: f32;

    /// Converts eight unsigned 4-bit codes to four pairs. The first code of pair `i` is in the bits from `4 i` on, the
    /// second in the bits from `16 + 4 i` on.
    fn int4(word: u32) -> [u32; 4];

    /// Converts four signed 8-bit codes to two pairs: bytes 0 and 2, and bytes 1 and 3.
    fn int8(word: u32) -> [u32; 2];

    /// Value of an FP4 code, divided by the number that [`fp4`](Self::fp4) makes of it.
    const FP4_FACTOR: f32;

    /// Converts eight FP4 e2m1 codes to pairs in the order of [`int4`](Self::int4).
    fn fp4(word: u32) -> [u32; 4];

    /// Converts four FP8 e4m3 codes to pairs in the order of [`int8`](Self::int8).
    fn fp8(word: u32) -> [u32; 2];

    /// Adds two pairs, rounding each sum once.
    #[inline(always)]
    fn plus(a: u32, b: u32) -> u32 {
        let [a, one, b] = [a, Self::ONE, b].map(Self::Pair::from_bits);
        a.mul_add(one, b).to_bits()
    }
}

impl FromCodes for F16 {
    const ONE: u32 = 0x3c00_3c00;
    // The exponent's bias is 15 instead of 7.
    const FP8_FACTOR: f32 = 256.0;
    // The exponent's bias is 15 instead of 1.
    const FP4_FACTOR: f32 = 16_384.0;

    #[inline(always)]
    fn int4(word: u32) -> [u32; 4] {
        // The lower four bits of a byte give 1024 + q, the upper four give 1024 + 16 q.
        let low = |word: u32| Self::plus(word & 0x000f_000f | 0x6400_6400, 0xe400_e400);
        let high = |word: u32| {
            let [sum, sixteenth, less] = [word & 0x00f0_00f0 | 0x6400_6400, 0x2c00_2c00, 0xd400_d400].map(F16x2);
            sum.mul_add(sixteenth, less).to_bits()
        };
        [low(word), high(word), low(word >> 8), high(word >> 8)]
    }

    #[inline(always)]
    fn int8(word: u32) -> [u32; 2] {
        // 1024 + 128 + q.
        let pair = |word: u32| Self::plus(word & 0x00ff_00ff ^ 0x6480_6480, 0xe480_e480);
        [pair(word), pair(word >> 8)]
    }

    #[inline(always)]
    fn fp4(word: u32) -> [u32; 4] {
        let pair = |sign: u32, size: u32| sign & 0x8000_8000 | size & 0x0e00_0e00;
        [pair(word << 12, word << 9), pair(word << 8, word << 5), pair(word << 4, word << 1), pair(word, word >> 3)]
    }

    #[inline(always)]
    fn fp8(word: u32) -> [u32; 2] {
        let size = |word: u32| word & 0x3f80_3f80;
        [(word << 8) & 0x8000_8000 | size(word << 7), word & 0x8000_8000 | size(word >> 1)]
    }
}

impl FromCodes for Bf16 {
    const ONE: u32 = 0x3f80_3f80;
    const FP8_FACTOR: f32 = 1.0;
    const FP4_FACTOR: f32 = 1.0;

    #[inline(always)]
    fn int4(word: u32) -> [u32; 4] {
        // 128 + q.
        let pair = |word: u32| Self::plus(word & 0x000f_000f | 0x4300_4300, 0xc300_c300);
        [pair(word), pair(word >> 4), pair(word >> 8), pair(word >> 12)]
    }

    #[inline(always)]
    fn int8(word: u32) -> [u32; 2] {
        // 128 plus the lower seven bits, minus 128. If the sign is set, minus 256: the sign bit is the exponent's
        // lowest bit.
        let pair = |word: u32| {
            let [low, sign] = [word & 0x007f_007f | 0x4300_4300, word & 0x0080_0080 | 0x4300_4300];
            Bf16x2(sign).mul_add(Bf16x2(0xbf80_bf80), Bf16x2(low)).to_bits()
        };
        [pair(word), pair(word >> 8)]
    }

    #[inline(always)]
    fn fp4(word: u32) -> [u32; 4] {
        // The exponent's bias is 127 instead of 1. A product with 2^126 corrects that.
        let pair = |sign: u32, size: u32| {
            let small = Bf16x2(sign & 0x8000_8000 | size & 0x01c0_01c0);
            small.mul_add(Bf16x2(0x7e80_7e80), Bf16x2(0x8000_8000)).to_bits()
        };
        [pair(word << 12, word << 6), pair(word << 8, word << 2), pair(word << 4, word >> 2), pair(word, word >> 6)]
    }

    #[inline(always)]
    fn fp8(word: u32) -> [u32; 2] {
        // The exponent's bias is 127 instead of 7. A product with 2^120 corrects that here. Without it, sums in f32
        // might underflow.
        let scaled = |pair: u32| Bf16x2(pair).mul_add(Bf16x2(0x7b80_7b80), Bf16x2(0x8000_8000)).to_bits();
        let size = |word: u32| word & 0x07f0_07f0;
        let even = (word << 8) & 0x8000_8000 | size(word << 4);
        let odd = word & 0x8000_8000 | size(word >> 4);
        [scaled(even), scaled(odd)]
    }
}
