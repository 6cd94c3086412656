//! Products of one band of a weight with some tokens, written once over [`Lanes`].
//!
//! Functions of [`Lanes`] are called in loops, not in closures, because closures might not be compiled for the
//! instruction set.

#![allow(clippy::needless_range_loop)] // see above

use super::activations::{Activations, Block, summed};
use super::lanes::{Lanes, WithLanes};
use super::packed::{PART, PackedBand, Packing, ROWS};
use crate::pages::Line;
use checkpoint::quantised::QuantType;

/// Number of bands that a single token is multiplied with at a time.
pub(super) const STREAMS: usize = 4;
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
        let x = self.x.block(self.first + token);
        let sums = match self.weight.kind {
            QuantType::Q8_0 => plain::<L, Wide, T, 1>(lanes, [self.weight], x)[0],
            QuantType::Q4_0 => plain::<L, Nibbles, T, 1>(lanes, [self.weight], x)[0],
            QuantType::Q4_K => scaled::<L, Nibbles, T, true>(lanes, self.weight, x),
            QuantType::Q5_K => scaled::<L, FiveBits, T, true>(lanes, self.weight, x),
            QuantType::Q6_K => scaled::<L, SixBits, T, false>(lanes, self.weight, x),
            QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => zeroed(lanes, self.weight, x),
            QuantType::Fp8G32 | QuantType::Fp8G128 => unreachable!("activations are not quantised for FP8"),
        };
        self.rows.finish(lanes, sums, token);
        T
    }
}

/// Adjacent bands to multiply with one token. Multiplying a band takes less time than fetching it from memory. Each
/// band is a separate stream, and a processor fetches several streams faster than one.
pub(super) struct Bands<'a, 'b> {
    /// The bands' type must be [supported](Bands::supports).
    pub weights: [PackedBand<'a>; STREAMS],
    pub x: Block<'a>,
    pub rows: Rows<'a, 'b>,
}

impl Bands<'_, '_> {
    /// Whether this type is supported: its groups consist of one part with one scale.
    pub const fn supports(kind: QuantType) -> bool {
        matches!(kind, QuantType::Q8_0 | QuantType::Q4_0)
    }
}

impl WithLanes for Bands<'_, '_> {
    fn count(&self) -> usize {
        1
    }

    #[inline(always)]
    fn tokens<L: Lanes, const T: usize>(&mut self, lanes: L, token: usize) -> usize {
        // One sum per band, for the only token.
        let sums = if self.weights[0].kind == QuantType::Q8_0 {
            plain::<L, Wide, 1, STREAMS>(lanes, self.weights, self.x)
        } else {
            plain::<L, Nibbles, 1, STREAMS>(lanes, self.weights, self.x)
        };
        for sums in sums {
            self.rows.finish(lanes, sums, token);
            self.rows.at += ROWS;
        }
        1
    }

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        self.tokens::<L, 1>(lanes, 0);
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

/// The layout of a part's integers in its lines.
trait Bits {
    /// Extracts the four columns of chunk `chunk` for all rows.
    fn chunk<L: Lanes>(lanes: L, lines: &[Line], chunk: usize) -> L::Bytes;

    /// Adds the products of four columns of the weight with four columns of a token.
    #[inline(always)]
    fn dot<L: Lanes>(lanes: L, sum: L::Ints, bytes: L::Bytes, x: i32) -> L::Ints {
        lanes.dot(sum, bytes, x)
    }

    /// Returns the initial value of sums. It corrects for the stored integers being unsigned: `zero` represents 0.
    #[inline(always)]
    fn begin<L: Lanes>(lanes: L, zero: u8, sum: i32) -> L::Ints {
        lanes.splat(-i32::from(zero) * sum)
    }
}

/// 8-bit integers.
struct Wide;
/// 4-bit integers. The upper halves of bytes contain the columns from the sixteenth on.
struct Nibbles;
/// 5-bit integers. One additional line contains the fifth bit of each chunk.
struct FiveBits;
/// 6-bit integers. Two additional lines contain the upper two bits of each chunk.
struct SixBits;

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
    fn begin<L: Lanes>(lanes: L, _: u8, sum: i32) -> L::Ints {
        lanes.begin_wide(sum)
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
        lanes.join(Nibbles::chunk(lanes, lines, chunk), high)
    }
}

impl Bits for SixBits {
    #[inline(always)]
    fn chunk<L: Lanes>(lanes: L, lines: &[Line], chunk: usize) -> L::Bytes {
        let high = lanes.bits(lanes.load(&lines[4 + chunk / 4]), chunk % 4 * 2, 3);
        lanes.join(Nibbles::chunk(lanes, lines, chunk), high)
    }
}

/// Adds the products of `N` chunks of a part, from chunk `first` on, to the sums of each token.
#[inline(always)]
fn part<L: Lanes, B: Bits, const T: usize, const N: usize>(
    lanes: L,
    mut sums: [L::Ints; T],
    lines: &[Line],
    x: &[[i32; CHUNKS]; T],
    first: usize,
) -> [L::Ints; T] {
    for chunk in first..first + N {
        let bytes = B::chunk(lanes, lines, chunk);
        for t in 0..T {
            sums[t] = B::dot(lanes, sums[t], bytes, x[t][chunk]);
        }
    }
    sums
}

/// Multiplies some bands whose groups consist of one part with one scale.
#[inline(always)]
fn plain<L: Lanes, B: Bits, const T: usize, const N: usize>(
    lanes: L,
    weights: [PackedBand<'_>; N],
    x: Block<'_>,
) -> [[L::Floats; T]; N] {
    let kind = weights[0].kind;
    let mut totals = [[lanes.zeros(); T]; N];
    let mut groups = weights.map(|weight| weight.lines.chunks_exact(kind.lines()).zip(weight.scales));
    for group in 0..weights[0].scales.len() {
        let (x_sums, x_scales) = (x.sums::<T>(group), x.scales::<T>(group));
        for n in 0..N {
            let Some((lines, scale)) = groups[n].next() else { break };
            let mut sums = [lanes.splat(0); T];
            for t in 0..T {
                sums[t] = B::begin(lanes, kind.zero(), x_sums[t]);
            }
            let sums = part::<L, B, T, CHUNKS>(lanes, sums, lines, x.words(group), 0);
            let scale = lanes.halves(scale);
            for t in 0..T {
                totals[n][t] = lanes.mul_add(sums[t], lanes.mul(scale, x_scales[t]), totals[n][t]);
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
    for (group, (lines, (scale, zero))) in groups.enumerate() {
        let zero = lanes.widen(zero);
        let (x_sums, x_scales) = (x.sums::<T>(group), x.scales::<T>(group));
        let mut sums = [lanes.splat(0); T];
        for t in 0..T {
            sums[t] = lanes.multiply(zero, lanes.splat(-x_sums[t]), sums[t]);
        }
        for (p, lines) in lines.chunks_exact(kind.lines()).enumerate() {
            sums = part::<L, Nibbles, T, CHUNKS>(lanes, sums, lines, x.words(group * parts + p), 0);
        }
        let scale = lanes.floats(scale);
        for t in 0..T {
            totals[t] = lanes.mul_add(sums[t], lanes.mul(scale, x_scales[t]), totals[t]);
        }
    }
    totals
}

/// Multiplies a band whose groups have eight parts. Each part has a scale and a minimum, or else each half of a part
/// has a scale.
#[inline(always)]
fn scaled<L: Lanes, B: Bits, const T: usize, const MINIMA: bool>(
    lanes: L,
    weight: PackedBand<'_>,
    x: Block<'_>,
) -> [L::Floats; T] {
    /// Chunks in half a part, which has a scale of its own in Q6_K.
    const HALF: usize = CHUNKS / 2;
    let kind = weight.kind;
    let parts = kind.group() / PART;
    let sums_of_group = kind.group() / summed(kind);
    let groups = weight.lines.chunks_exact(parts * kind.lines()).zip(weight.scales.chunks_exact(kind.scales()));
    let mut totals = [lanes.zeros(); T];
    for (group, ((lines, scales), small)) in groups.zip(weight.parts.chunks_exact(kind.parts())).enumerate() {
        // With minima, each word contains two sums.
        let words_of_sums = if const { MINIMA } { sums_of_group / 2 } else { sums_of_group };
        let x_scales = x.scales::<T>(group);
        let mut whole = [lanes.splat(0); T];
        for (p, lines) in lines.chunks_exact(kind.lines()).enumerate() {
            if const { MINIMA } {
                let words = x.words(group * parts + p);
                let sums = part::<L, B, T, CHUNKS>(lanes, [lanes.splat(0); T], lines, words, 0);
                let scale = lanes.widen(&small[p]);
                for t in 0..T {
                    whole[t] = lanes.multiply(sums[t], scale, whole[t]);
                }
            } else {
                for half in 0..2 {
                    let at = 2 * p + half;
                    let x_sums = x.sums::<T>(group * words_of_sums + at);
                    let mut sums = [lanes.splat(0); T];
                    for t in 0..T {
                        sums[t] = B::begin(lanes, kind.zero(), x_sums[t]);
                    }
                    let sums = part::<L, B, T, HALF>(lanes, sums, lines, x.words(group * parts + p), half * HALF);
                    let scale = lanes.widen_signed(&small[at]);
                    for t in 0..T {
                        whole[t] = lanes.multiply(sums[t], scale, whole[t]);
                    }
                }
            }
        }
        let scale = lanes.halves(&scales[0]);
        for t in 0..T {
            totals[t] = lanes.mul_add(whole[t], lanes.mul(scale, x_scales[t]), totals[t]);
        }
        if const { MINIMA } {
            let scale = lanes.halves(&scales[1]);
            let mut mins = [lanes.splat(0); T];
            for (p, [first, second]) in small[parts..].as_chunks().0.iter().enumerate() {
                let pairs = lanes.pairs(first, second);
                let x_sums = x.sums::<T>(group * words_of_sums + p);
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
