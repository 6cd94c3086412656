//! Products of one band of a weight with some tokens, written once over [`Lanes`].
//!
//! Functions of [`Lanes`] are called in loops, not in closures, because closures might not be compiled for the
//! instruction set.

#![allow(clippy::needless_range_loop)] // see above

use std::ops::Range;

use super::activations::{Activations, Block, summed};
use super::bits::{Bits, Codes, FiveBits, Fp4, Nibbles, NonLinear, SixBits, ThreeBits, TwoBits, Wide};
use super::lanes::{Lanes, WithLanes};
use super::layout::{PART, Packing, ROWS};
use super::packed::PackedBand;
use super::scales::{
    BothInByte, BytesThenMinima, GroupScale, Half, HalfAndMinimum, PartScales, Power, SignedByte, SignedBytes,
};
use crate::pages::{Line, prefetch};
use checkpoint::quantised::QuantType;

/// Number of chunks of four columns in a part.
const CHUNKS: usize = PART / 4;

/// One band of a weight, the tokens to multiply it with, and the output.
pub(super) struct Band<'a, 'b> {
    pub weight: PackedBand<'a>,
    pub x: &'a Activations,
    /// The first token of `rows`. It begins a block.
    pub first: usize,
    pub rows: Rows<'a, 'b>,
}

/// The band's columns of the output.
pub(super) struct Rows<'a, 'b> {
    /// The tokens' rows of the output, or parts of the rows.
    pub out: &'a mut [&'b mut [f32]],
    /// The index in `out` of the band's first column.
    pub at: usize,
    /// Add to the contents of `out` instead of replacing them.
    pub add: bool,
}

impl WithLanes for Band<'_, '_> {
    fn count(&self) -> usize {
        self.rows.out.len()
    }

    #[inline(always)]
    fn tokens<L: Lanes, const T: usize>(&mut self, lanes: L, token: usize) -> usize {
        let (weight, x) = (self.weight, self.x.block(self.first + token));
        let sums = match weight.kind {
            QuantType::Q8_0 => plain::<L, Wide, Half, T>(lanes, weight, x),
            QuantType::Q4_0 => plain::<L, Nibbles, Half, T>(lanes, weight, x),
            QuantType::Q4_1 => plain::<L, Nibbles, HalfAndMinimum, T>(lanes, weight, x),
            QuantType::Q5_0 => plain::<L, FiveBits, Half, T>(lanes, weight, x),
            QuantType::Q5_1 => plain::<L, FiveBits, HalfAndMinimum, T>(lanes, weight, x),
            QuantType::IQ4_NL => plain::<L, Codes<NonLinear>, Half, T>(lanes, weight, x),
            QuantType::MXFP4 => plain::<L, Codes<Fp4>, Power, T>(lanes, weight, x),
            QuantType::Q2_K => scaled::<L, TwoBits, BothInByte, T>(lanes, weight, x),
            QuantType::Q3_K => scaled::<L, ThreeBits, SignedBytes, T>(lanes, weight, x),
            QuantType::Q4_K => scaled::<L, Nibbles, BytesThenMinima, T>(lanes, weight, x),
            QuantType::Q5_K => scaled::<L, FiveBits, BytesThenMinima, T>(lanes, weight, x),
            QuantType::Q6_K => scaled::<L, SixBits, SignedBytes, T>(lanes, weight, x),
            QuantType::IQ4_XS => scaled::<L, Codes<NonLinear>, SignedByte, T>(lanes, weight, x),
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => zeroed(lanes, weight, x),
            QuantType::Fp8G32 | QuantType::Fp8G128 => unreachable!("activations are not quantised for FP8"),
        };
        self.rows.finish(lanes, sums, token);
        T
    }
}

impl Rows<'_, '_> {
    /// Writes the sums of some tokens, from `token` on, to the output.
    #[inline(always)]
    pub fn finish<L: Lanes, const T: usize>(&mut self, lanes: L, sums: [L::Floats; T], token: usize) {
        for (sums, out) in sums.into_iter().zip(&mut self.out[token..]) {
            let sums = lanes.to_array(sums);
            let out = &mut out[self.at..];
            let out = if out.len() > ROWS { &mut out[..ROWS] } else { out };
            if self.add {
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
            } else {
                out.copy_from_slice(&sums[..out.len()]);
            }
        }
    }
}

/// Prefetches the lines that come `distance` lines after some lines. A band is too short for the processor's own
/// prefetcher, so each band prefetches the next one.
#[inline(always)]
fn prefetch_after(lines: &[Line], distance: usize) {
    for line in lines {
        prefetch((&raw const *line).wrapping_add(distance));
    }
}

/// Adds the products of some chunks of a part to the sums of each token. The range is a constant after inlining.
#[inline(always)]
fn part<L: Lanes, B: Bits, const T: usize>(
    lanes: L,
    mut sums: [L::Ints; T],
    lines: &[Line],
    x: &[[i32; CHUNKS]; T],
    chunks: Range<usize>,
) -> [L::Ints; T] {
    for chunk in chunks {
        let bytes = B::chunk(lanes, lines, chunk);
        for t in 0..T {
            sums[t] = B::dot(lanes, sums[t], bytes, x[t][chunk]);
        }
    }
    sums
}

/// Multiplies a band whose groups consist of one part with one scale, and perhaps a minimum.
#[inline(always)]
fn plain<L: Lanes, B: Bits, S: GroupScale, const T: usize>(
    lanes: L,
    weight: PackedBand<'_>,
    x: Block<'_>,
) -> [L::Floats; T] {
    let kind = weight.kind;
    let mut totals = [lanes.zeros(); T];
    let groups = weight.lines.chunks_exact(kind.lines()).zip(S::entries(&weight));
    let x_groups = x.each_words::<T>().zip(x.each_sums::<T>().zip(x.each_scales::<T>()));
    for ((lines, entry), (words, (x_sums, x_scales))) in groups.zip(x_groups) {
        prefetch_after(lines, weight.lines.len());
        let mut sums = [lanes.splat(0); T];
        for t in 0..T {
            sums[t] = B::begin(lanes, kind, x_sums[t]);
        }
        let sums = part::<L, B, T>(lanes, sums, lines, words, 0..CHUNKS);
        let scale = S::scale(lanes, entry);
        for t in 0..T {
            totals[t] = lanes.mul_add(sums[t], lanes.mul(scale, x_scales[t]), totals[t]);
        }
        if const { S::HAS_MINIMUM } {
            let minimum = S::minimum(lanes, entry);
            for t in 0..T {
                let x_sum = lanes.splat(x_sums[t]);
                totals[t] = lanes.mul_add(x_sum, lanes.mul(minimum, -x_scales[t]), totals[t]);
            }
        }
    }
    totals
}

/// Multiplies a band of 4-bit groups with a scale and a zero per group.
#[inline(always)]
fn zeroed<L: Lanes, const T: usize>(lanes: L, weight: PackedBand<'_>, x: Block<'_>) -> [L::Floats; T] {
    let kind = weight.kind;
    let parts = kind.group() / PART;
    let mut totals = [lanes.zeros(); T];
    let groups = weight.lines.chunks_exact(parts * kind.lines()).zip(weight.wide_scales.iter().zip(weight.parts));
    let mut words = x.each_words::<T>();
    let x_groups = x.each_sums::<T>().zip(x.each_scales::<T>());
    for ((lines, (scale, zero)), (x_sums, x_scales)) in groups.zip(x_groups) {
        let zero = lanes.widen(zero);
        let mut sums = [lanes.splat(0); T];
        for t in 0..T {
            sums[t] = lanes.multiply(zero, lanes.splat(-x_sums[t]), sums[t]);
        }
        prefetch_after(lines, weight.lines.len());
        for (lines, words) in lines.chunks_exact(kind.lines()).zip(words.by_ref()) {
            sums = part::<L, Nibbles, T>(lanes, sums, lines, words, 0..CHUNKS);
        }
        let scale = lanes.floats(scale);
        for t in 0..T {
            totals[t] = lanes.mul_add(sums[t], lanes.mul(scale, x_scales[t]), totals[t]);
        }
    }
    totals
}

/// Multiplies a band whose groups have eight parts. Each part or half of a part has a scale, and perhaps a minimum.
#[inline(always)]
fn scaled<L: Lanes, B: Bits, S: PartScales, const T: usize>(
    lanes: L,
    weight: PackedBand<'_>,
    x: Block<'_>,
) -> [L::Floats; T] {
    let kind = weight.kind;
    let parts = kind.group() / PART;
    // With minima, each word contains two sums.
    let words_of_sums = kind.group() / summed(kind) / if const { S::HAS_MINIMA } { 2 } else { 1 };
    let groups = weight.lines.chunks_exact(parts * kind.lines()).zip(weight.scales.chunks_exact(kind.scales()));
    let mut totals = [lanes.zeros(); T];
    for (group, ((lines, scales), small)) in groups.zip(weight.parts.chunks_exact(kind.parts())).enumerate() {
        let x_scales = x.scales::<T>(group);
        let mut whole = [lanes.splat(0); T];
        prefetch_after(lines, weight.lines.len());
        for (p, lines) in lines.chunks_exact(kind.lines()).enumerate() {
            let words = x.words(group * parts + p);
            for span in 0..const { CHUNKS / S::CHUNKS } {
                let at = p * const { CHUNKS / S::CHUNKS } + span;
                let mut sums = [lanes.splat(0); T];
                if const { !S::HAS_MINIMA } {
                    let x_sums = x.sums::<T>(group * words_of_sums + at);
                    for t in 0..T {
                        sums[t] = B::begin(lanes, kind, x_sums[t]);
                    }
                }
                let chunks = span * S::CHUNKS..(span + 1) * S::CHUNKS;
                let sums = part::<L, B, T>(lanes, sums, lines, words, chunks);
                let scale = S::scale(lanes, small, at);
                for t in 0..T {
                    whole[t] = lanes.multiply(sums[t], scale, whole[t]);
                }
            }
        }
        let scale = lanes.halves(&scales[0]);
        for t in 0..T {
            totals[t] = lanes.mul_add(whole[t], lanes.mul(scale, x_scales[t]), totals[t]);
        }
        if const { S::HAS_MINIMA } {
            let scale = lanes.halves(&scales[1]);
            let mut mins = [lanes.splat(0); T];
            for pair in 0..words_of_sums {
                let pairs = S::minima(lanes, small, pair);
                let x_sums = x.sums::<T>(group * words_of_sums + pair);
                for t in 0..T {
                    mins[t] = lanes.dot_pairs(mins[t], pairs, x_sums[t]);
                }
            }
            for t in 0..T {
                totals[t] = lanes.mul_add(mins[t], lanes.mul(scale, -x_scales[t]), totals[t]);
            }
        }
    }
    totals
}
