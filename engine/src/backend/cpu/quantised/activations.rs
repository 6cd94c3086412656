//! Activations, quantised a group at a time to integers of 8 bits and a scale.

use super::Projector;
use super::packed::PART;
use crate::backend::cpu::tensor::CpuTensor;
use crate::quantised::QuantType;

/// Below this, all of a group counts as zero: the inverse of its scale would be infinite.
const TINY: f32 = 1e-30;
/// Added to a number below 2^22 in magnitude, it leaves the nearest integer in the lowest bits: the even one of two.
const ROUND: f32 = (3 << 22) as f32;

/// The rows of a matrix of activations, quantised, in memory of the pool.
pub(super) struct Activations {
    /// `[M, K]`, integers.
    quants: CpuTensor,
    /// `[M, K / group]`
    scales: CpuTensor,
    /// `[M, K / sum]`: sums of the integers of parts, or of half parts, as integers; in 16 bits if they are [`paired`].
    sums: CpuTensor,
}

/// Quantised activations of some tokens, from one on.
#[derive(Clone, Copy)]
pub(super) struct ActivationsView<'a> {
    /// Four columns are one word.
    words: &'a [i32],
    scales: &'a [f32],
    sums: &'a [i32],
    /// Words, scales and sums of a token.
    strides: [usize; 3],
}

/// One token's.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub words: &'a [i32],
    pub scales: &'a [f32],
    pub sums: &'a [i32],
}

/// Columns whose integers are summed together: those that have a scale of their own in the weight.
pub(super) const fn summed(kind: QuantType) -> usize {
    match kind {
        QuantType::Q6_K => PART / 2,
        // A group's integers have one zero.
        QuantType::Int4G32 | QuantType::Int4G64 | QuantType::Int4G128 => kind.group(),
        _ => PART,
    }
}

/// Whether sums are in 16 bits, two in a word: those that are multiplied with minima. They are sums of 32 bytes.
const fn paired(kind: QuantType) -> bool {
    matches!(kind, QuantType::Q4_K | QuantType::Q5_K)
}

impl Activations {
    /// Quantises all rows of `x` for a weight of this type.
    pub fn new(x: &CpuTensor, kind: QuantType, with: &Projector<'_>) -> Self {
        let (rows, cols) = (x.rows(), x.cols());
        let words_of_sums = summed(kind) * if paired(kind) { 2 } else { 1 };
        let [mut quants, mut scales, mut sums] =
            [cols / 4, cols / kind.group(), cols / words_of_sums].map(|cols| with.pool.tensor(rows, cols));
        let chunk = rows.div_ceil(with.threads.parts(rows * cols * 2, rows));
        let widths = [quants.cols(), scales.cols(), sums.cols()].map(|width| (width * chunk).max(1));
        let outputs = quants.as_mut_slice().chunks_mut(widths[0]);
        let outputs = outputs.zip(scales.as_mut_slice().chunks_mut(widths[1]));
        let outputs = outputs.zip(sums.as_mut_slice().chunks_mut(widths[2]));
        let tasks: Vec<_> = x.as_slice().chunks((cols * chunk).max(1)).zip(outputs).collect();
        with.threads.each(tasks.into_iter(), |(x, ((quants, scales), sums))| {
            let quants: &mut [i8] = bytemuck::cast_slice_mut(quants);
            with.arch.dispatch(
                #[inline(always)]
                || {
                    // Rows are whole numbers of groups, so that groups need not be told apart by rows.
                    let groups = x.chunks_exact(kind.group()).zip(quants.chunks_exact_mut(kind.group()));
                    let sums = sums.chunks_exact_mut(kind.group() / words_of_sums);
                    for (((x, quants), scale), sums) in groups.zip(scales).zip(sums) {
                        *scale = quantise(x, quants);
                        let each = quants.chunks_exact(summed(kind));
                        let each = each.map(|quants| quants.iter().map(|&quant| i32::from(quant)).sum::<i32>());
                        if paired(kind) {
                            let sums: &mut [i16] = bytemuck::cast_slice_mut(sums);
                            sums.iter_mut().zip(each).for_each(|(to, sum)| *to = sum as i16);
                        } else {
                            let sums: &mut [i32] = bytemuck::cast_slice_mut(sums);
                            sums.iter_mut().zip(each).for_each(|(to, sum)| *to = sum);
                        }
                    }
                },
            );
        });
        Activations { quants, scales, sums }
    }

    pub fn view(&self) -> ActivationsView<'_> {
        ActivationsView {
            words: bytemuck::cast_slice(self.quants.as_slice()),
            scales: self.scales.as_slice(),
            sums: bytemuck::cast_slice(self.sums.as_slice()),
            strides: [self.quants.cols(), self.scales.cols(), self.sums.cols()],
        }
    }
}

impl<'a> ActivationsView<'a> {
    /// The tokens from `token` on.
    #[inline(always)]
    pub fn from(self, token: usize) -> Self {
        let [words, scales, sums] = self.strides.map(|stride| stride * token);
        ActivationsView {
            words: &self.words[words..],
            scales: &self.scales[scales..],
            sums: &self.sums[sums..],
            strides: self.strides,
        }
    }

    #[inline(always)]
    pub fn token(self, token: usize) -> Token<'a> {
        let [words, scales, sums] = self.strides;
        Token {
            words: &self.words[token * words..][..words],
            scales: &self.scales[token * scales..][..scales],
            sums: &self.sums[token * sums..][..sums],
        }
    }
}

/// Rounds a group to integers times a scale, which is returned. If an element is not finite, the scale is no number, so
/// that neither is any result.
#[inline(always)]
fn quantise(x: &[f32], quants: &mut [i8]) -> f32 {
    let (mut most, mut check) = ([0f32; 16], [0f32; 16]);
    for x in x.as_chunks::<16>().0 {
        for i in 0..16 {
            most[i] = if x[i].abs() > most[i] { x[i].abs() } else { most[i] };
            // Zero, unless an element is infinite or no number.
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
        // Halves become even.
        let halves: Vec<f32> = (0..32).map(|i| if i == 0 { 127.0 } else { i as f32 - 15.5 }).collect();
        quantise(&halves, &mut quants);
        assert_eq!(quants[15..19], [0, 0, 2, 2]);
    }

    #[test]
    fn what_is_no_number_is_not_hidden() {
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
