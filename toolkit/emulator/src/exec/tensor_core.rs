//! Products of the tensor cores: sixteen rows by eight columns.
//!
//! The product of a row element and a column element is exact. All products and the accumulator are aligned to the
//! largest exponent and cut to 25 bits below it. Their sum is exact, and is then cut to f32. In measurements, the
//! tensor cores of an H100 rounded like this.
//!
//! The innermost loops run over the eight columns and have no branches, which lets them vectorise. [`halves`] computes
//! most products in a faster way.

pub(crate) mod halves;
#[cfg(target_arch = "x86_64")]
mod wide;
#[cfg(target_arch = "x86_64")]
mod wider;

use crate::number::{bf16_to_f32, f16_to_f32};
use crate::program::Factor;
use half::{bf16, f16};

/// Bits kept below the largest exponent.
const KEPT: i32 = 25;
/// The most steps of depth of one product.
pub(crate) const DEPTH: usize = 16;
/// The exponent of zero, which is less than that of every product.
const ZERO: i32 = -500;

/// The bits of rows of a first factor, by row and depth, or of columns of a second factor, by column and depth.
pub(crate) type Bits<const S: usize> = [[u16; DEPTH]; S];

/// The bits of sums of sixteen rows and eight columns, in the layout of four registers of a warp. Each lane holds two
/// columns of a row, and the same columns of the row eight below.
pub(crate) type Sums = [[u32; 32]; 4];
/// The sums before a product, borrowed from their registers.
pub(crate) type Before<'a> = [&'a [u32; 32]; 4];

/// Factors of a product, split into mantissa and exponent. Each step of depth has `S` rows or columns.
pub(crate) struct Factors<const S: usize, B = u16> {
    bits: [[B; S]; DEPTH],
    mantissa: [[i32; S]; DEPTH],
    exponent: [[i32; S]; DEPTH],
    finite: [bool; S],
}

impl<const S: usize, B: Copy + Into<u32>> Factors<S, B> {
    /// Splits the bits of factors. Unused steps of depth must be zeros.
    #[inline(always)]
    pub fn new(factor: Factor, bits: [[B; S]; DEPTH]) -> Self {
        // Fraction bits, largest exponent field, and exponent bias.
        let (fraction, special, bias) = layout(factor);
        let sign = (special + 1) << fraction;
        let mut factors = Self { bits, mantissa: [[0; S]; DEPTH], exponent: [[0; S]; DEPTH], finite: [true; S] };
        for k in 0..DEPTH {
            for side in 0..S {
                let raw = bits[k][side].into() as i32;
                let (field, low) = (raw >> fraction & special, raw & ((1 << fraction) - 1));
                // Subnormals keep the exponent of the smallest normal number, because the hardware aligns them so.
                let size = if field == 0 { low } else { low | 1 << fraction };
                factors.mantissa[k][side] = if raw & sign == 0 { size } else { -size };
                factors.exponent[k][side] = if size == 0 { ZERO } else { field.max(1) - bias };
                factors.finite[side] &= field != special;
            }
        }
        factors
    }
}

/// Returns the number of fraction bits, the largest exponent field, and the exponent bias.
#[inline(always)]
fn layout(factor: Factor) -> (i32, i32, i32) {
    match factor {
        Factor::F16 => (10, 31, 15),
        Factor::Bf16 => (7, 255, 127),
        Factor::Tf32 => (10, 255, 127),
    }
}

/// Adds the product of rows and columns to the sums.
#[inline(always)]
pub(crate) fn multiply_add<B: Copy + Into<u32>>(
    factor: Factor,
    a: &Factors<16, B>,
    b: &Factors<8, B>,
    sums: &mut [[f32; 8]; 16],
) {
    let up = KEPT - 2 * layout(factor).0;
    let columns_finite = b.finite.iter().all(|&finite| finite);
    for (row, sums) in sums.iter_mut().enumerate() {
        let before = *sums;
        let mut largest = [0i32; 8];
        let (mut c_mantissa, mut c_exponent) = ([0i32; 8], [0i32; 8]);
        for column in 0..8 {
            let raw = sums[column].to_bits() as i32;
            let (field, low) = (raw >> 23 & 255, raw & 0x7f_ffff);
            let size = if field == 0 { low } else { low | 0x80_0000 };
            c_mantissa[column] = if raw < 0 { -size } else { size };
            c_exponent[column] = if size == 0 { ZERO } else { field.max(1) - 127 };
            largest[column] = c_exponent[column];
        }
        for k in 0..DEPTH {
            for column in 0..8 {
                largest[column] = largest[column].max(a.exponent[k][row] + b.exponent[k][column]);
            }
        }
        // Each product is shifted to at most 27 bits, so that the sum of sixteen fits 32 bits.
        let mut sum = [0i32; 8];
        for k in 0..DEPTH {
            for column in 0..8 {
                let product = a.mantissa[k][row] * b.mantissa[k][column];
                let down = (largest[column] - a.exponent[k][row] - b.exponent[k][column]).min(31);
                let size = ((product.unsigned_abs() << up) >> down) as i32;
                let sign = product >> 31;
                sum[column] = sum[column].wrapping_add((size ^ sign) - sign);
            }
        }
        for column in 0..8 {
            let down = (largest[column] - c_exponent[column]).min(31);
            let size = ((c_mantissa[column].unsigned_abs() << (KEPT - 23)) >> down) as i32;
            let c = if c_mantissa[column] < 0 { -size } else { size };
            let unit = f64::from_bits(((largest[column].max(ZERO) - KEPT + 1023) as u64) << 52);
            sums[column] = cut((f64::from(sum[column]) + f64::from(c)) * unit);
        }
        if !(a.finite[row] && columns_finite && before.iter().all(|sum| sum.is_finite())) {
            for (column, c) in before.into_iter().enumerate() {
                // The other columns keep the sums computed above.
                if !(a.finite[row] && b.finite[column] && c.is_finite()) {
                    sums[column] = special(factor, a, row, b, column, c);
                }
            }
        }
    }
}

/// Rounds f64 to f32, toward zero. Values beyond the largest finite number become infinity.
#[inline(always)]
fn cut(value: f64) -> f32 {
    // Subnormal numbers have fewer bits. Adding a number whose last bit is the smallest subnormal rounds to these bits,
    // to nearest. If that went away from zero, it is undone.
    let tiny = {
        const STEP: f64 = f64::from_bits((1023 - 149 + 52) << 52);
        let nearest = (value.abs() + STEP) - STEP;
        let down = if nearest > value.abs() { nearest - f64::from_bits((1023 - 149) << 52) } else { nearest };
        down.copysign(value)
    };
    let normal = f64::from_bits(value.to_bits() & !0x1fff_ffff);
    let kept = if value.abs() < f64::from(f32::MIN_POSITIVE) { tiny } else { normal };
    if value == 0.0 { 0.0 } else { kept as f32 }
}

/// Computes a sum that contains infinities or NaN.
#[cold]
fn special<B: Copy + Into<u32>>(
    factor: Factor,
    a: &Factors<16, B>,
    row: usize,
    b: &Factors<8, B>,
    column: usize,
    c: f32,
) -> f32 {
    let value = |bits: B| match factor {
        Factor::F16 => f16_to_f32(f16::from_bits(bits.into() as u16)),
        Factor::Bf16 => bf16_to_f32(bf16::from_bits(bits.into() as u16)),
        Factor::Tf32 => f32::from_bits(bits.into() << 13),
    };
    let products = (0..DEPTH).map(|k| f64::from(value(a.bits[k][row])) * f64::from(value(b.bits[k][column])));
    let sum = (f64::from(c) + products.sum::<f64>()) as f32;
    if sum.is_nan() { f32::from_bits(0x7fff_ffff) } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_cut_toward_zero() {
        assert_eq!(cut(1.0 + f64::from(f32::EPSILON) * 0.75), 1.0);
        assert_eq!(cut(-1.0 - f64::from(f32::EPSILON) * 1.75), -1.0 - f32::EPSILON);
        assert_eq!(cut(3.5 * f64::from(f32::from_bits(1))), f32::from_bits(3));
        assert_eq!(cut(-3.5 * f64::from(f32::from_bits(1))), -f32::from_bits(3));
        assert_eq!(cut(f64::from(f32::MAX) * 2.0), f32::INFINITY);
        assert_eq!(cut(-0.0).to_bits(), 0);
    }

    /// Computes one sum by the same rule, with whole numbers in f64.
    fn reference(a: &[f32], b: &[f32], c: f32) -> f32 {
        let exponent = |v: f32, least: i32| v.abs().log2().floor().max(least as f32) as i32;
        let terms: Vec<(f64, i32)> = a
            .iter()
            .zip(b)
            .map(|(&x, &y)| (f64::from(x) * f64::from(y), exponent(x, -14) + exponent(y, -14)))
            .chain([(f64::from(c), exponent(c, -126))])
            .filter(|term| term.0 != 0.0)
            .collect();
        let Some(largest) = terms.iter().map(|term| term.1).max() else { return 0.0 };
        let unit = 2f64.powi(largest - 25);
        cut(terms.iter().map(|term| (term.0 / unit).trunc()).sum::<f64>() * unit)
    }

    #[test]
    fn products_of_halves_match_the_reference() {
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        for round in 0..200 {
            // Any half except infinities and NaN. In some rounds they have similar sizes, in some they are subnormal.
            let mut half = || {
                let bits = random() as u16;
                let exponent = match round % 4 {
                    0 => bits >> 10 & 31,
                    1 => 13 + (bits >> 10 & 3),
                    2 => bits >> 10 & 1,
                    _ => 15,
                };
                bits & 0x83ff | exponent.min(30) << 10
            };
            let a: [[u16; 16]; DEPTH] = std::array::from_fn(|_| std::array::from_fn(|_| half()));
            let b: [[u16; 8]; DEPTH] = std::array::from_fn(|_| std::array::from_fn(|_| half()));
            let c: [[f32; 8]; 16] = std::array::from_fn(|_| {
                std::array::from_fn(|_| f16::from_bits(half()).to_f32() * [1.0, 0.0, 1e-9][round % 3])
            });
            let mut d = c;
            multiply_add(Factor::F16, &Factors::new(Factor::F16, a), &Factors::new(Factor::F16, b), &mut d);
            // A column with a NaN leaves the other columns as they are.
            let (mut with_nan, mut poisoned) = (c, b);
            poisoned[5][3] = 0x7e00;
            multiply_add(
                Factor::F16,
                &Factors::new(Factor::F16, a),
                &Factors::new(Factor::F16, poisoned),
                &mut with_nan,
            );
            for (row, values) in d.iter().enumerate() {
                for (column, value) in with_nan[row].into_iter().enumerate() {
                    assert!(if column == 3 { value.is_nan() } else { value == values[column] });
                }
                for (column, &value) in values.iter().enumerate() {
                    let x: Vec<f32> = a.iter().map(|k| f16::from_bits(k[row]).to_f32()).collect();
                    let y: Vec<f32> = b.iter().map(|k| f16::from_bits(k[column]).to_f32()).collect();
                    assert_eq!(value, reference(&x, &y, c[row][column]));
                }
            }
        }
    }
}
