//! Products of halves, many at a time: bit for bit those of [`multiply_add`], for numbers of common sizes, and a few times as fast.
//!
//! The product of two halves is exact in f32, and so is what it becomes when it is scaled by a power of two. Scaled so that the
//! last bit that is kept is one, it is cut by a conversion to an integer.

use super::{DEPTH, Factors, KEPT, ZERO, multiply_add};
use crate::number::{bf16_to_f32, f16_to_f32};
use crate::program::Factor;
use half::{bf16, f16};

/// Exponents of factors whose products, and those scaled, are normal numbers of f32.
const COMMON: std::ops::RangeInclusive<i32> = -49..=60;
/// The exponent of a sum up to which all products of such factors are zeros.
const TINY: i32 = -100;

/// Rows of a first factor, by row and depth, or columns of a second one, by column and depth.
pub(crate) type Bits<const S: usize> = [[u16; DEPTH]; S];

/// Factors as f32, and their exponents: `A` of them side by side, for each of `B`.
#[derive(Clone)]
struct Split<const A: usize, const B: usize> {
    values: [[f32; A]; B],
    exponents: [[i32; A]; B],
}

impl<const A: usize, const B: usize> Split<A, B> {
    /// Finds the exponents. None if some are not common, or a number is not finite.
    #[inline(always)]
    fn of(factor: Factor, values: [[f32; A]; B]) -> Option<Self> {
        // Subnormals keep the exponent of the least normal number.
        let least = if factor == Factor::F16 { -14 } else { -126 };
        let (mut exponents, mut uncommon) = ([[0; A]; B], false);
        for (exponents, values) in exponents.iter_mut().zip(&values) {
            for (exponent, value) in exponents.iter_mut().zip(values) {
                let bits = (value.to_bits() & 0x7fff_ffff) as i32;
                let size = ((bits >> 23) - 127).max(least);
                *exponent = if bits == 0 { ZERO } else { size };
                uncommon |= (bits != 0) & ((size < *COMMON.start()) | (size > *COMMON.end()));
            }
        }
        (!uncommon).then_some(Self { values, exponents })
    }
}

#[inline(always)]
fn widen(factor: Factor, bits: u16) -> f32 {
    match factor {
        Factor::Bf16 => bf16_to_f32(bf16::from_bits(bits)),
        _ => f16_to_f32(f16::from_bits(bits)),
    }
}

/// A first factor, ready to be multiplied.
pub(crate) struct Rows {
    factor: Factor,
    bits: Bits<16>,
    split: Option<Split<DEPTH, 16>>,
}

impl Rows {
    /// Takes over the bits. With `fast` a product may be computed many at a time.
    #[inline(always)]
    pub fn new(factor: Factor, bits: Bits<16>, fast: bool) -> Self {
        let split = if fast {
            let mut values = [[0f32; DEPTH]; 16];
            for (values, bits) in values.iter_mut().zip(&bits) {
                for (value, &bits) in values.iter_mut().zip(bits) {
                    *value = widen(factor, bits);
                }
            }
            Split::of(factor, values)
        } else {
            None
        };
        Self { factor, bits, split }
    }

    /// Adds the product with eight columns to the sums.
    #[inline(always)]
    pub fn multiply_add(&self, columns: &Bits<8>, sums: &mut [[f32; 8]; 16]) {
        let mut finite = true;
        for row in sums.iter() {
            for sum in row {
                finite &= sum.to_bits() & 0x7f80_0000 != 0x7f80_0000;
            }
        }
        if let Some(a) = self.split.as_ref().filter(|_| finite) {
            let mut values = [[0f32; 8]; DEPTH];
            for (column, bits) in columns.iter().enumerate() {
                for (k, &bits) in bits.iter().enumerate() {
                    values[k][column] = widen(self.factor, bits);
                }
            }
            if let Some(b) = Split::of(self.factor, values) {
                return multiply_add_common(a, &b, sums);
            }
        }
        multiply_add_any(self.factor, &self.bits, columns, sums);
    }
}

/// The product of any numbers.
#[inline(never)]
fn multiply_add_any(factor: Factor, a: &Bits<16>, b: &Bits<8>, sums: &mut [[f32; 8]; 16]) {
    let a = Factors::new(factor, std::array::from_fn(|k| std::array::from_fn(|row| a[row][k])));
    let b = Factors::new(factor, std::array::from_fn(|k| std::array::from_fn(|column| b[column][k])));
    multiply_add(factor, &a, &b, sums);
}

/// The product of numbers of common sizes with finite sums.
#[inline(always)]
fn multiply_add_common(a: &Split<DEPTH, 16>, b: &Split<8, DEPTH>, sums: &mut [[f32; 8]; 16]) {
    for row in 0..16 {
        let before = sums[row];
        let mut largest = [0; 8];
        for column in 0..8 {
            largest[column] = (before[column].to_bits() >> 23 & 255) as i32 - 127;
        }
        for k in 0..DEPTH {
            let exponent = a.exponents[row][k];
            for column in 0..8 {
                largest[column] = largest[column].max(exponent + b.exponents[k][column]);
            }
        }
        let (mut scale, mut unit) = ([0f32; 8], [0f32; 8]);
        for column in 0..8 {
            let kept = largest[column].max(TINY) - KEPT;
            scale[column] = f32::from_bits(((127 - kept) as u32) << 23);
            unit[column] = f32::from_bits(((127 + kept) as u32) << 23);
        }
        let mut products = [0i32; 8];
        for k in 0..DEPTH {
            let factor = a.values[row][k];
            for column in 0..8 {
                let scaled = factor * b.values[k][column] * scale[column];
                // SAFETY: the exponents of the factors, and so of the product, are at most `largest`, scaled `KEPT`: it is finite
                // and less than 2^(KEPT + 2), which fits.
                products[column] = products[column].wrapping_add(unsafe { scaled.to_int_unchecked::<i32>() });
            }
        }
        for column in 0..8 {
            let c = before[column] * scale[column];
            // SAFETY: the exponent of the sum is at most `largest`, scaled `KEPT`, or less than -99, scaled less than that.
            let c = unsafe { c.to_int_unchecked::<i32>() };
            let sum = f64::from(products[column]) + f64::from(c);
            // Cut to 24 bits it is exact in f32; none is subnormal, but it may become infinite.
            let cut = f64::from_bits(sum.to_bits() & !0x1fff_ffff) as f32 * unit[column];
            sums[row][column] = if largest[column] > TINY { cut } else { before[column] + 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bits_as_one_at_a_time() {
        let mut state = 3u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let mut fast = 0;
        for round in 0..6000 {
            let factor = if round % 2 == 0 { Factor::F16 } else { Factor::Bf16 };
            let kind = round / 2 % 10;
            let mut number = || {
                let bits = random();
                // Any bits; numbers of similar sizes; small and subnormal ones; many zeros; whole numbers.
                match (kind, factor) {
                    (0, _) => bits as u16,
                    (1 | 2, Factor::F16) => (bits & 0x8fff) as u16 | 0x3000,
                    (1 | 2, _) => (bits & 0x87ff) as u16 | 0x3c00,
                    (3, Factor::F16) => (bits & 0x87ff) as u16,
                    (3, _) => (bits & 0x81ff) as u16 | if bits & 0x10000 == 0 { 0 } else { 0x2700 },
                    (4, _) => {
                        if bits & 0x70000 == 0 {
                            bits as u16 & 0xbfff
                        } else {
                            bits as u16 & 0x8000
                        }
                    }
                    (5, Factor::F16) => f16::from_f32((bits % 17) as f32 - 8.0).to_bits(),
                    (5, _) => bf16::from_f32((bits % 17) as f32 - 8.0).to_bits(),
                    // All as large as they can be: the sum of their products is as well.
                    (6, Factor::F16) => 0x3fff,
                    (6, _) => 0x3fff,
                    (7, Factor::F16) => (bits & 0xbfff) as u16,
                    _ => (bits & 0x9fff) as u16 | 0x2000,
                }
            };
            let a: Bits<16> = std::array::from_fn(|_| std::array::from_fn(|_| number()));
            let b: Bits<8> = std::array::from_fn(|_| std::array::from_fn(|_| number()));
            let before: [[f32; 8]; 16] = std::array::from_fn(|_| {
                std::array::from_fn(|_| {
                    let bits = random();
                    match round / 20 % 5 {
                        0 => 0.0,
                        1 => f32::from_bits(bits & 0x807f_ffff | 0x3f80_0000),
                        2 => f32::from_bits(bits & 0x80ff_ffff),
                        3 => f32::from_bits(bits << 1 & 0xfeff_ffff),
                        _ => f32::from_bits(bits << 1),
                    }
                })
            });
            let rows = Rows::new(factor, a, true);
            fast += u32::from(rows.split.is_some());
            let (mut found, mut wanted) = (before, before);
            rows.multiply_add(&b, &mut found);
            multiply_add_any(factor, &a, &b, &mut wanted);
            let bits = |sums: [[f32; 8]; 16]| sums.map(|row| row.map(f32::to_bits));
            assert_eq!(bits(found), bits(wanted), "round {round}");
        }
        assert!((3000..6000).contains(&fast), "{fast} of 6000 are of common sizes");
    }
}
