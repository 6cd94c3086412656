//! Fragments of matrices: how the elements of a product lie in the registers of a warp's lanes.

use crate::exec::tensor_core::DEPTH;
use crate::lanes::Registers;
use crate::number::{f16_to_f32, f32_to_f16};
use half::f16;

/// The sixteen rows of a first factor, by depth: its registers go down the rows first, then along the depth.
#[inline(always)]
pub(crate) fn first_factor(registers: &Registers, slots: &[u32]) -> [[u16; 16]; DEPTH] {
    let mut a = [[0u16; 16]; DEPTH];
    for (index, &slot) in slots.iter().enumerate() {
        let (down, along) = (index % 2 * 8, index / 2 * 8);
        for (lane, &word) in registers.words[slot as usize].iter().enumerate() {
            let (row, k) = (lane / 4 + down, lane % 4 * 2 + along);
            (a[k][row], a[k + 1][row]) = (word as u16, (word >> 16) as u16);
        }
    }
    a
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
