//! Fragments of matrices: how the elements of a product lie in the registers of a warp's lanes.

use crate::exec::tensor_core::Bits;
use crate::exec::tensor_core::DEPTH;
use crate::lanes::Registers;
use crate::number::{f16_to_f32, f32_to_f16};
use half::f16;

/// The sixteen rows of a first factor: its registers go down the rows first, then along the depth.
#[inline(always)]
pub(crate) fn first_factor(registers: &Registers, slots: &[u32]) -> Bits<16> {
    let mut rows = [[0u16; DEPTH]; 16];
    for (index, &slot) in slots.iter().enumerate() {
        let (down, along) = (index % 2 * 8, index / 2 * 8);
        for (row, words) in registers.words[slot as usize].chunks_exact(4).enumerate() {
            for (pair, &word) in words.iter().enumerate() {
                rows[row + down][along + 2 * pair] = word as u16;
                rows[row + down][along + 2 * pair + 1] = (word >> 16) as u16;
            }
        }
    }
    rows
}

/// The eight columns of a second factor: its registers go along the depth. They come in the order of [`load_row_sums`].
#[inline(always)]
pub(crate) fn second_factor(registers: &Registers, slots: &[u32]) -> Bits<8> {
    let mut columns = [[0u16; DEPTH]; 8];
    for (index, &slot) in slots.iter().enumerate() {
        for (column, words) in registers.words[slot as usize].chunks_exact(4).enumerate() {
            let along = &mut columns[position(column)][8 * index..8 * index + 8];
            for (pair, &word) in words.iter().enumerate() {
                along[2 * pair] = word as u16;
                along[2 * pair + 1] = (word >> 16) as u16;
            }
        }
    }
    columns
}

/// Where a column comes among eight of which the even ones come first, as registers of sums have them.
#[inline(always)]
pub(crate) fn position(column: usize) -> usize {
    column % 2 * 4 + column / 2
}

/// Reads sums of sixteen rows and eight columns from four registers, or from two of packed halves. Of a row, the even columns
/// come first.
#[inline(always)]
pub(crate) fn load_row_sums(registers: &Registers, slots: &[u32], halves: bool) -> [[f32; 8]; 16] {
    let mut sums = [[0f32; 8]; 16];
    for (index, &slot) in slots.iter().enumerate() {
        for (row, words) in registers.words[slot as usize].chunks_exact(4).enumerate() {
            for (pair, &word) in words.iter().enumerate() {
                if halves {
                    let sums = &mut sums[row + index * 8];
                    sums[pair] = f16_to_f32(f16::from_bits(word as u16));
                    sums[pair + 4] = f16_to_f32(f16::from_bits((word >> 16) as u16));
                } else {
                    sums[row + index / 2 * 8][index % 2 * 4 + pair] = f32::from_bits(word);
                }
            }
        }
    }
    sums
}

/// Writes such sums to four registers, or to two of packed halves.
#[inline(always)]
pub(crate) fn store_row_sums(registers: &mut Registers, slots: &[u32], halves: bool, sums: &[[f32; 8]; 16]) {
    for (index, &slot) in slots.iter().enumerate() {
        for (row, words) in registers.words[slot as usize].chunks_exact_mut(4).enumerate() {
            for (pair, word) in words.iter_mut().enumerate() {
                *word = if halves {
                    let bits = |value: f32| u32::from(f32_to_f16(value).to_bits());
                    bits(sums[row + index * 8][pair]) | bits(sums[row + index * 8][pair + 4]) << 16
                } else {
                    sums[row + index / 2 * 8][index % 2 * 4 + pair].to_bits()
                };
            }
        }
    }
}

/// Row and column of the sum that a lane has in one of four registers.
#[inline(always)]
pub(crate) fn place(lane: usize, index: usize) -> (usize, usize) {
    (lane / 4 + index / 2 * 8, lane % 4 * 2 + index % 2)
}

/// Reads sums of sixteen rows and eight columns from four registers, or from two of packed halves.
#[inline(always)]
pub(crate) fn load_sums(registers: &Registers, slots: &[u32], halves: bool, sums: &mut [[f32; 8]; 16]) {
    for (index, &slot) in slots.iter().enumerate() {
        for (lane, &word) in registers.words[slot as usize].iter().enumerate() {
            if halves {
                let (row, column) = place(lane, 2 * index);
                sums[row][column] = f16_to_f32(f16::from_bits(word as u16));
                sums[row][column + 1] = f16_to_f32(f16::from_bits((word >> 16) as u16));
            } else {
                let (row, column) = place(lane, index);
                sums[row][column] = f32::from_bits(word);
            }
        }
    }
}

/// Writes sums of sixteen rows and eight columns to four registers, or to two of packed halves.
#[inline(always)]
pub(crate) fn store_sums(registers: &mut Registers, slots: &[u32], halves: bool, sums: &[[f32; 8]; 16]) {
    for (index, &slot) in slots.iter().enumerate() {
        for (lane, word) in registers.words[slot as usize].iter_mut().enumerate() {
            *word = if halves {
                let (row, column) = place(lane, 2 * index);
                let bits = |value: f32| u32::from(f32_to_f16(value).to_bits());
                bits(sums[row][column]) | bits(sums[row][column + 1]) << 16
            } else {
                let (row, column) = place(lane, index);
                sums[row][column].to_bits()
            };
        }
    }
}
