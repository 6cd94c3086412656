//! Activations quantised in groups, to 8-bit integers and a scale per group.

use super::Projector;
use super::layout::PART;
use crate::math::compiled;
use crate::tensor::CpuTensor;
use checkpoint::quantised::{MAX_GROUP, QuantType};

/// A group whose magnitudes are all below this counts as zero. The inverse of its scale would be infinite.
const TINY: f32 = 1e-30;
/// Adding this to a number below 2^22 in magnitude leaves the nearest integer in the lowest bits. Ties go to the even
/// integer.
const ROUND: f32 = (3 << 22) as f32;

/// Tokens in a block.
pub(super) const BLOCK: usize = 16;

/// The rows of a matrix of activations, quantised, in memory from the pool.
///
/// Tokens are in blocks of sixteen. The last block may have fewer. Within a block, each part's integers, each group's
/// scales and each word of sums are stored token by token. Padding after the last block may be read. Its contents are
/// unspecified.
pub(super) struct Activations {
    tokens: usize,
    /// Integers. The 32 columns of a part are contiguous for each token.
    quants: CpuTensor,
    /// One scale per group.
    scales: CpuTensor,
    /// Sums of the integers of each part, half part or group (see [`summed`]). They are 32-bit integers, or 16-bit
    /// integers, two to a word, if they are [`paired`].
    sums: CpuTensor,
    /// Number of parts, scales and words of sums per token.
    widths: [usize; 3],
}

/// A block of quantised activations.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    /// The integers of parts, four columns to a word.
    words: &'a [[i32; PART / 4]],
    scales: &'a [f32],
    sums: &'a [i32],
    /// Number of tokens in the block.
    height: usize,
    /// The token within the block at which this view begins.
    first: usize,
}

/// Number of columns whose integers are summed together: the columns that share a scale or a zero in the weight.
pub(super) const fn summed(kind: QuantType) -> usize {
    match kind {
        QuantType::Q2_K | QuantType::Q3_K | QuantType::Q6_K => PART / 2,
        // All integers of a group share one zero.
        QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => kind.group(),
        _ => PART,
    }
}

/// Whether sums have 16 bits, two to a word. These sums, of at most 32 bytes each, are multiplied with minima of parts.
const fn paired(kind: QuantType) -> bool {
    matches!(kind, QuantType::Q2_K | QuantType::Q4_K | QuantType::Q5_K)
}

impl Activations {
    /// Quantises all rows of `x` for a weight of type `kind`.
    pub fn new(x: &CpuTensor, kind: QuantType, projector: &Projector<'_>) -> Self {
        let (tokens, cols) = (x.rows(), x.cols());
        let words_of_sums = summed(kind) * if paired(kind) { 2 } else { 1 };
        let widths = [cols / PART, cols / kind.group(), cols / words_of_sums];
        let words = |i: usize, size: usize| projector.pool.tensor(tokens * widths[i] + BLOCK, size);
        let (mut quants, mut scales, mut sums) = (words(0, PART / 4), words(1, 1), words(2, 1));
        let outputs = bytemuck::cast_slice_mut::<f32, [i8; PART]>(quants.as_mut_slice()).chunks_mut(BLOCK * widths[0]);
        let outputs = outputs.zip(scales.as_mut_slice().chunks_mut(BLOCK * widths[1]));
        let outputs = outputs.zip(sums.as_mut_slice().chunks_mut(BLOCK * widths[2]));
        let tasks: Vec<_> = x.as_slice().chunks((BLOCK * cols).max(1)).zip(outputs).collect();
        projector.threads.each(tasks.into_iter(), |(x, ((quants, scales), sums))| {
            compiled(
                projector.arch,
                #[inline(always)]
                || {
                    let height = x.len() / cols;
                    let mut whole = [0; MAX_GROUP];
                    let whole = &mut whole[..kind.group()];
                    for (token, x) in x.chunks_exact(cols).enumerate() {
                        for (group, x) in x.chunks_exact(kind.group()).enumerate() {
                            scales[group * height + token] = quantise(x, whole);
                            let parts = whole.as_chunks::<PART>().0;
                            for (i, part) in parts.iter().enumerate() {
                                quants[(group * parts.len() + i) * height + token] = *part;
                            }
                            let first = group * (kind.group() / summed(kind));
                            for (i, quants) in whole.chunks_exact(summed(kind)).enumerate() {
                                let mut sum = 0;
                                for &quant in quants {
                                    sum += i32::from(quant);
                                }
                                let i = first + i;
                                if paired(kind) {
                                    let sums: &mut [i16] = bytemuck::cast_slice_mut(sums);
                                    sums[(i / 2 * height + token) * 2 + i % 2] = sum as i16;
                                } else {
                                    let sums: &mut [i32] = bytemuck::cast_slice_mut(sums);
                                    sums[i * height + token] = sum;
                                }
                            }
                        }
                    }
                },
            );
        });
        Activations { tokens, quants, scales, sums, widths }
    }

    /// Returns the tokens from `token` to the end of its block.
    #[inline(always)]
    pub fn block(&self, token: usize) -> Block<'_> {
        let before = token / BLOCK * BLOCK;
        let [words, scales, sums] = self.widths.map(|width| width * before);
        Block {
            words: &bytemuck::cast_slice(self.quants.as_slice())[words..],
            scales: &self.scales.as_slice()[scales..],
            sums: &bytemuck::cast_slice(self.sums.as_slice())[sums..],
            height: BLOCK.min(self.tokens - before),
            first: token - before,
        }
    }
}

impl<'a> Block<'a> {
    /// Returns the integers of a part for the first `T` tokens.
    #[inline(always)]
    pub fn words<const T: usize>(self, part: usize) -> &'a [[i32; PART / 4]; T] {
        first(&self.words[part * self.height + self.first..])
    }

    /// Returns the scales of a group for the first `T` tokens.
    #[inline(always)]
    pub fn scales<const T: usize>(self, group: usize) -> &'a [f32; T] {
        first(&self.scales[group * self.height + self.first..])
    }

    /// Returns word `i` of sums, which contains one sum or two, for the first `T` tokens.
    #[inline(always)]
    pub fn sums<const T: usize>(self, i: usize) -> &'a [i32; T] {
        first(&self.sums[i * self.height + self.first..])
    }

    /// Iterates over what [`Self::words`] returns for each part. A loop over it has fewer instructions, because it computes
    /// no indices and checks fewer bounds. Decoding waits for memory, and with fewer instructions between loads the
    /// processor has more loads in flight.
    #[inline(always)]
    pub fn each_words<const T: usize>(self) -> impl Iterator<Item = &'a [[i32; PART / 4]; T]> {
        self.each(self.words)
    }

    /// Iterates over what [`Self::scales`] returns for each group.
    #[inline(always)]
    pub fn each_scales<const T: usize>(self) -> impl Iterator<Item = &'a [f32; T]> {
        self.each(self.scales)
    }

    /// Iterates over what [`Self::sums`] returns for each word of sums.
    #[inline(always)]
    pub fn each_sums<const T: usize>(self) -> impl Iterator<Item = &'a [i32; T]> {
        self.each(self.sums)
    }

    #[inline(always)]
    fn each<E, const T: usize>(self, all: &'a [E]) -> impl Iterator<Item = &'a [E; T]> {
        all[self.first..].chunks(self.height).map(first)
    }
}

#[inline(always)]
fn first<E, const T: usize>(slice: &[E]) -> &[E; T] {
    let Some(first) = slice.first_chunk() else { unreachable!("a block has sixteen tokens or padding after them") };
    first
}

/// Quantises a group to integers and returns their scale. If an element is not finite, the scale is NaN, and so is
/// every result that uses it.
#[inline(always)]
fn quantise(x: &[f32], quants: &mut [i8]) -> f32 {
    let (mut most, mut check) = ([0f32; 16], [0f32; 16]);
    for x in x.as_chunks::<16>().0 {
        for i in 0..16 {
            most[i] = if x[i].abs() > most[i] { x[i].abs() } else { most[i] };
            // Zero, unless an element is infinite or NaN.
            check[i] += x[i] * 0.0;
        }
    }
    let most = most.iter().fold(0f32, |most, &x| most.max(x));
    if check.iter().any(|&check| check != 0.0) {
        quants.fill(0);
        return f32::NAN;
    }
    if most < TINY {
        quants.fill(0);
        return 0.0;
    }
    let inverse = 127.0 / most;
    for (quant, x) in quants.iter_mut().zip(x) {
        *quant = (x * inverse + ROUND).to_bits() as i8;
    }
    most / 127.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_rounded_to_the_nearest_integers() {
        let x: Vec<f32> = (0..32).map(|i| (i as f32 - 15.0) * 0.37).collect();
        let mut quants = [0; 32];
        let scale = quantise(&x, &mut quants);
        assert_eq!(quants[31], 127);
        for (x, quant) in x.iter().zip(quants) {
            assert!((x - scale * f32::from(quant)).abs() <= scale * 0.5001, "{x} {quant} {scale}");
        }
        // Ties go to the even integer.
        let halves: Vec<f32> = (0..32).map(|i| if i == 0 { 127.0 } else { i as f32 - 15.5 }).collect();
        quantise(&halves, &mut quants);
        assert_eq!(quants[15..19], [0, 0, 2, 2]);
    }

    #[test]
    fn a_non_finite_element_gives_a_nan_scale() {
        let mut quants = [1; 32];
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 32];
            x[17] = odd;
            assert!(quantise(&x, &mut quants).is_nan());
        }
        for small in [0.0, 1e-45, -1e-31] {
            assert_eq!((quantise(&[small; 32], &mut quants), quants), (0.0, [0; 32]));
        }
    }
}
