//! Matrix fragments: `ldmatrix` and `mma.sync`.
//!
//! The products of a row and a column are exact; they and the accumulator are aligned to the largest exponent, cut to 25 bits
//! below it, summed exactly, and the sum is cut to f32. That is how the tensor cores of the H100 were measured to round.

use super::access::addresses;
use super::machine::Machine;
use super::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::lanes::Registers;
use crate::number::{bf16_to_f32, f16_to_f32, f32_to_f16};
use crate::program::{Address, Factor, Mma};
use half::{bf16, f16};

/// Bits kept below the largest product's leading bit.
const KEPT: i32 = 25;

impl Machine<'_> {
    pub(super) fn load_matrix(
        &mut self,
        warp: &mut Warp,
        address: Address,
        registers: &[u32],
        transposed: bool,
    ) -> Checked<()> {
        if warp.live != u32::MAX {
            return Err(Violation::new(FaultKind::MissingLanes, "a matrix load needs all 32 lanes"));
        }
        let mut at = addresses(warp, address);
        at.iter_mut().for_each(|at| {
            if *at >> crate::WINDOW_BITS == crate::SHARED_WINDOW >> crate::WINDOW_BITS {
                *at -= crate::SHARED_WINDOW;
            }
        });
        for (matrix, &register) in registers.iter().enumerate() {
            let mut rows = [[0u16; 8]; 8];
            self.count_shared(0xff << (8 * matrix), &at, 16);
            for (row, values) in rows.iter_mut().enumerate() {
                let lane = 8 * matrix + row;
                let offset = self.shared.locate(at[lane], 16).map_err(|fault| fault.lane(lane))?;
                let who = Self::who(warp, lane, false);
                self.shared.read(offset, 16, who).map_err(|fault| fault.lane(lane))?;
                for (value, bytes) in values.iter_mut().zip(self.shared.data[offset..offset + 16].chunks_exact(2)) {
                    *value = u16::from_le_bytes([bytes[0], bytes[1]]);
                }
            }
            for lane in 0..32 {
                let (row, column) = (lane / 4, lane % 4 * 2);
                let pair = if transposed {
                    [rows[column][row], rows[column + 1][row]]
                } else {
                    [rows[row][column], rows[row][column + 1]]
                };
                warp.registers.words[register as usize][lane] = u32::from(pair[0]) | u32::from(pair[1]) << 16;
            }
        }
        Ok(())
    }
}

/// A number as an integer and the exponent its leading bit would have were it normal.
#[derive(Clone, Copy, Default)]
struct Split {
    mantissa: i32,
    exponent: i32,
}

/// Splits a float into a mantissa of `bits` fraction bits and an exponent; the float must have no more.
#[inline(always)]
fn split(value: f32, bits: u32) -> Split {
    let raw = value.to_bits();
    let (field, fraction) = ((raw >> 23 & 255) as i32, raw & 0x7f_ffff);
    let mantissa = (if field == 0 { fraction } else { fraction | 0x80_0000 } >> (23 - bits)) as i32;
    // Subnormal halves keep the exponent of the least normal one, as the hardware aligns them.
    let least = if bits == 10 { -14 } else { -126 };
    let exponent = field.max(1) - 127;
    let mantissa = mantissa >> (least - exponent).clamp(0, 31);
    let exponent = if mantissa == 0 { -500 } else { exponent.max(least) };
    Split { mantissa: if value.is_sign_negative() { -mantissa } else { mantissa }, exponent }
}

/// A sum in units of two to `exponent`, cut to f32 toward zero.
#[inline(always)]
fn cut(sum: i64, exponent: i32) -> f32 {
    if sum == 0 {
        return 0.0;
    }
    let sign = if sum < 0 { 1 << 31 } else { 0 };
    let size = sum.unsigned_abs();
    let top = exponent + 63 - size.leading_zeros() as i32;
    if top > 127 {
        return f32::from_bits(sign | 0x7f80_0000);
    }
    let shift = (top - 23).max(-149) - exponent;
    let mantissa = match shift {
        64.. => 0,
        0..64 => size >> shift,
        _ => size << -shift,
    } as u32;
    let field = if top < -126 { 0 } else { (top + 127) as u32 };
    f32::from_bits(sign | if field == 0 { mantissa } else { field << 23 | mantissa & 0x7f_ffff })
}

/// The factors' fraction bits are such that a product's shift to [`KEPT`] bits fits 32 bits.
#[inline(always)]
fn dot(a: &[Split], b: &[Split], fraction: i32, c: f32) -> f32 {
    let c = split(c, 23);
    let largest = a.iter().zip(b).map(|(a, b)| a.exponent + b.exponent).fold(c.exponent, i32::max);
    if largest < -300 {
        return 0.0;
    }
    let mut sum = 0i64;
    for (a, b) in a.iter().zip(b) {
        let product = a.mantissa * b.mantissa;
        let down = (largest - a.exponent - b.exponent).clamp(0, 31);
        let size = ((product.unsigned_abs() << (KEPT - 2 * fraction)) >> down) as i32;
        sum += i64::from(if product < 0 { -size } else { size });
    }
    let size = (i64::from(c.mantissa).unsigned_abs() << (KEPT - 23)) >> (largest - c.exponent).clamp(0, 63);
    sum += if c.mantissa < 0 { -(size as i64) } else { size as i64 };
    cut(sum, largest - KEPT)
}

/// `mma.sync.m16n8k16` or `m16n8k8` on a warp's fragments.
pub(super) fn mma(registers: &mut Registers, mma: &Mma) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
        fn avx2(registers: &mut Registers, mma: &Mma) {
            multiply(registers, mma);
        }
        if crate::lanes::has_avx2() {
            // SAFETY: the features the function needs have just been found.
            unsafe { avx2(registers, mma) };
            return;
        }
    }
    multiply(registers, mma);
}

#[inline(always)]
fn multiply(registers: &mut Registers, mma: &Mma) {
    let (factor, depth) = (mma.factor, mma.depth);
    let fraction = if factor == Factor::F16 { 10 } else { 7 };
    let value = |bits: u32| match factor {
        Factor::F16 => f16_to_f32(f16::from_bits(bits as u16)),
        Factor::Bf16 => bf16_to_f32(bf16::from_bits(bits as u16)),
    };
    let words = &registers.words;
    let (mut a, mut b) = ([[0f32; 16]; 16], [[0f32; 16]; 8]);
    for lane in 0..32 {
        let (group, pair) = (lane / 4, lane % 4 * 2);
        for half in 0..2 {
            for (index, &slot) in mma.a.iter().enumerate() {
                // Registers go down the rows first, then along the depth.
                a[group + index % 2 * 8][pair + half + index / 2 * 8] =
                    value(words[slot as usize][lane] >> (16 * half));
            }
            for (index, &slot) in mma.b.iter().enumerate() {
                b[group][pair + half + index * 8] = value(words[slot as usize][lane] >> (16 * half));
            }
        }
    }
    let finite = a.iter().flatten().chain(b.iter().flatten()).all(|value| value.is_finite());
    // Half-precision subnormals are normal f32 numbers, so their mantissa is already shifted up: they lose no bits.
    let parts = |row: &[f32; 16]| -> [Split; 16] { std::array::from_fn(|k| split(row[k], fraction as u32)) };
    let (split_a, split_b) = (a.each_ref().map(parts), b.each_ref().map(parts));
    let result = |row: usize, column: usize, c: f32| {
        if finite && c.is_finite() {
            return dot(&split_a[row][..depth], &split_b[column][..depth], fraction, c);
        }
        let products = a[row].iter().zip(&b[column]).map(|(a, b)| f64::from(*a) * f64::from(*b));
        (f64::from(c) + products.sum::<f64>()) as f32
    };
    let mut d = [[0f32; 32]; 4];
    for (index, values) in d.iter_mut().enumerate() {
        for (lane, value) in values.iter_mut().enumerate() {
            let (row, column) = (lane / 4 + index / 2 * 8, lane % 4 * 2 + index % 2);
            let c = if mma.half_sum {
                f16_to_f32(f16::from_bits((words[mma.c[index / 2] as usize][lane] >> (16 * (index % 2))) as u16))
            } else {
                f32::from_bits(words[mma.c[index] as usize][lane])
            };
            *value = result(row, column, c);
        }
    }
    for lane in 0..32 {
        if mma.half_sum {
            for (pair, &slot) in mma.d.iter().enumerate() {
                let bits = |half: usize| u32::from(f32_to_f16(d[2 * pair + half][lane]).to_bits());
                registers.words[slot as usize][lane] = bits(0) | bits(1) << 16;
            }
        } else {
            for (index, &slot) in mma.d.iter().enumerate() {
                registers.words[slot as usize][lane] = d[index][lane].to_bits();
            }
        }
    }
}
