//! Quantising weights to Q4_K, Q6_K and MXFP4 by a search for the scales with the least squared error.
//!
//! A group's few numbers allow a direct search. Each candidate scale rounds the elements to integers. Given the
//! integers, the best scale and minimum are the solution of a linear problem. Of all candidates, the one with the least
//! error wins.
//!
//! Root mean square errors of normally distributed weights, relative to the weights (llama.cpp without an importance
//! matrix):
//!
//! | type | this search | llama.cpp |
//! | --- | --- | --- |
//! | Q4_K | 6.95 % | 6.96 % |
//! | Q6_K | 1.69 % | 1.74 % |
//! | MXFP4 | 11.1 % | 11.6 % |

use half::f16;

use super::tables::{E2M1, half_power};

/// Candidates differ by this fraction of a step at the ends of the range.
const STEP: f32 = 0.1;
/// Candidates of Q4_K on each side of the one that fits the range.
const AFFINE: i32 = 10;
/// The same for Q6_K.
const SYMMETRIC: i32 = 9;

/// The scale and the minimum of a part: an element is `scale * quant - min`.
#[derive(Clone, Copy, Default)]
struct Line {
    scale: f32,
    min: f32,
}

/// Rounds a group of 256 elements to 4 bits, with a scale and a minimum for every 32 elements.
pub(super) fn q4_k(x: &[f32], to: &mut Vec<u8>) {
    const LEVELS: f32 = 15.0;
    let parts = x.as_chunks::<32>().0;
    let lines: [Line; 8] = std::array::from_fn(|j| affine(&parts[j], LEVELS));
    let most = |number: fn(&Line) -> f32| lines.iter().map(number).fold(0f32, f32::max);
    let scale = f16::from_f32(most(|line| line.scale) / 63.0);
    let min_scale = f16::from_f32(most(|line| line.min) / 63.0);
    let small = |number: f32, unit: f16| (number * inverse(unit.to_f32())).round().clamp(0.0, 63.0) as u8;
    let scales = lines.map(|line| small(line.scale, scale));
    let mins = lines.map(|line| small(line.min, min_scale));
    to.extend(scale.to_le_bytes());
    to.extend(min_scale.to_le_bytes());
    to.extend((0..4).map(|j| scales[j] | scales[j + 4] >> 4 << 6));
    to.extend((0..4).map(|j| mins[j] | mins[j + 4] >> 4 << 6));
    to.extend((4..8).map(|j| scales[j] & 15 | (mins[j] & 15) << 4));
    let quants = |j: usize| {
        let inverse = inverse(scale.to_f32() * f32::from(scales[j]));
        let min = min_scale.to_f32() * f32::from(mins[j]);
        parts[j].map(|x| ((x + min) * inverse).round().clamp(0.0, LEVELS) as u8)
    };
    for pair in 0..4 {
        let (low, high) = (quants(2 * pair), quants(2 * pair + 1));
        to.extend(low.iter().zip(high).map(|(low, high)| low | high << 4));
    }
}

/// Returns the line of a part for integers from 0 to `levels`. Its scale and minimum are not negative.
fn affine(x: &[f32; 32], levels: f32) -> Line {
    let (lowest, highest) = x.iter().fold((0f32, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    let range = highest - lowest;
    let mut best = Line { scale: range / levels, min: -lowest };
    if range <= 0.0 {
        return Line { scale: 0.0, ..best };
    }
    let mut least = error(x, levels, best);
    for step in -AFFINE..=AFFINE {
        let candidate = Line { scale: range / (levels + STEP * step as f32), min: -lowest };
        let Some(line) = fitted(x, levels, candidate) else { continue };
        let error = error(x, levels, line);
        if error < least {
            (best, least) = (line, error);
        }
    }
    best
}

/// Returns the line that fits the integers of another line best. `None` if it would not increase.
fn fitted(x: &[f32; 32], levels: f32, line: Line) -> Option<Line> {
    let quants = rounded(x, levels, line);
    let (l, ll) = (total(&quants), total(&product(&quants, &quants)));
    let (sum, lx) = (total(x), total(&product(&quants, x)));
    let count = x.len() as f32;
    let determinant = count * ll - l * l;
    let mut line = Line { scale: (count * lx - l * sum) / determinant, min: (l * lx - ll * sum) / determinant };
    if line.min < 0.0 {
        line = Line { scale: lx / ll, min: 0.0 };
    }
    (line.scale.is_finite() && line.scale > 0.0 && line.min.is_finite()).then_some(line)
}

fn rounded(x: &[f32; 32], levels: f32, line: Line) -> [f32; 32] {
    let inverse = inverse(line.scale);
    x.map(|x| nearest(((x + line.min) * inverse).clamp(0.0, levels)))
}

/// The squared error of elements that are rounded to a line.
fn error(x: &[f32; 32], levels: f32, line: Line) -> f32 {
    let quants = rounded(x, levels, line);
    let errors: [f32; 32] = std::array::from_fn(|i| line.scale * quants[i] - line.min - x[i]);
    total(&product(&errors, &errors))
}

/// Rounds a group of 256 elements to 6 bits, with a scale for every 16 elements.
pub(super) fn q6_k(x: &[f32], to: &mut Vec<u8>) {
    let parts = x.as_chunks::<16>().0;
    let wide: [f32; 16] = std::array::from_fn(|j| symmetric(&parts[j]));
    // The range of integers has one more negative one.
    let scale = f16::from_f32(largest(&wide) / -128.0);
    let unit = inverse(scale.to_f32());
    let scales = wide.map(|wide| (wide * unit).round().clamp(-128.0, 127.0) as i8);
    let mut quants = [0u8; 256];
    for ((x, &small), quants) in parts.iter().zip(&scales).zip(quants.as_chunks_mut::<16>().0) {
        let inverse = inverse(scale.to_f32() * f32::from(small));
        *quants = x.map(|x| ((x * inverse).round().clamp(-32.0, 31.0) + 32.0) as u8);
    }
    for half in quants.chunks_exact(128) {
        to.extend((0..64).map(|i| half[i] & 15 | (half[i + 64] & 15) << 4));
    }
    for half in quants.chunks_exact(128) {
        to.extend((0..32).map(|i| (0..4).fold(0, |bits, j| bits | half[32 * j + i] >> 4 << (2 * j))));
    }
    to.extend(scales.map(|scale| scale as u8));
    to.extend(scale.to_le_bytes());
}

/// Returns the scale of a part for integers from -32 to 31.
fn symmetric(x: &[f32; 16]) -> f32 {
    let most = largest(x);
    // The squared error is the elements' own square less the gain.
    let (mut best, mut greatest) = (0.0, 0.0);
    for step in -SYMMETRIC..=SYMMETRIC {
        let inverse = -(32.0 + STEP * step as f32) * inverse(most);
        let quants = x.map(|x| nearest((x * inverse).clamp(-32.0, 31.0)));
        let (lx, ll) = (total(&product(&quants, x)), total(&product(&quants, &quants)));
        let gain = lx * lx / ll;
        if gain > greatest {
            (best, greatest) = (lx / ll, gain);
        }
    }
    best
}

/// Returns the nearest integer of a number of moderate size, and of two the even one.
fn nearest(x: f32) -> f32 {
    // The sum leaves no bits for a fraction.
    const SHIFT: f32 = (3 << 22) as f32;
    (x + SHIFT) - SHIFT
}

fn product<const N: usize>(a: &[f32; N], b: &[f32; N]) -> [f32; N] {
    std::array::from_fn(|i| a[i] * b[i])
}

/// Adds numbers in four chains, which a vector holds.
fn total<const N: usize>(x: &[f32; N]) -> f32 {
    let mut sums = [0f32; 4];
    for x in x.as_chunks::<4>().0 {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += x;
        }
    }
    sums.iter().sum()
}

/// Rounds 32 elements to FP4 with a power of two as their scale. If the largest element is above 6 scales, a larger
/// scale may have a smaller error.
pub(super) fn mxfp4(x: &[f32], to: &mut Vec<u8>) {
    let most = largest(x).abs();
    // With this exponent, the largest element is at least 4 and less than 8 scales.
    let first = ((most.to_bits() >> 23) as u8).saturating_sub(2);
    let errors = [first, first + 1].map(|exponent| {
        let scale = half_power(exponent);
        let decoded = |x: f32| scale * f32::from(E2M1[usize::from(e2m1(x, scale))]);
        x.iter().map(|&x| (f64::from(decoded(x)) - f64::from(x)).powi(2)).sum::<f64>()
    });
    let exponent = if errors[1] < errors[0] { first + 1 } else { first };
    let code = |i: usize| e2m1(x[i], half_power(exponent));
    to.push(exponent);
    to.extend((0..16).map(|i| code(i) | code(i + 16) << 4));
}

/// Returns the FP4 code of the doubled number closest to `x / scale`. Ties go to the smaller magnitude.
fn e2m1(x: f32, scale: f32) -> u8 {
    const MIDDLES: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
    let size = x.abs() / scale;
    let code = MIDDLES.iter().filter(|middle| size > **middle).count() as u8;
    if x < 0.0 && code > 0 { code | 8 } else { code }
}

/// Returns the inverse of a scale, or 0 for 0.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Returns the element of greatest magnitude, the first of several.
pub(super) fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0f32, |most, &x| if x.abs() > most.abs() { x } else { most })
}

#[cfg(test)]
#[path = "search/tests.rs"]
mod tests;
