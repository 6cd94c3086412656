//! Fragments of matrices: the layout of a product's elements in the registers of a warp's lanes.

use crate::exec::tensor_core::{Before, Bits, DEPTH, Sums};
use crate::lanes::Registers;
use crate::number::{f16_to_f32, f32_to_f16};
use half::f16;

/// Returns the eight halves in four words.
#[inline(always)]
fn halves(words: &[u32]) -> [u16; 8] {
    std::array::from_fn(|half| (words[half / 2] >> (half % 2 * 16)) as u16)
}

/// Reads the sixteen rows of a first factor. Its registers are ordered down the rows first, then along the depth.
#[inline(always)]
pub(crate) fn first_factor(registers: &Registers, slots: &[u32], rows: &mut Bits<16>) {
    if slots.len() < 4 {
        *rows = [[0; DEPTH]; 16];
    }
    for (index, &slot) in slots.iter().enumerate() {
        let (down, along) = (index % 2 * 8, index / 2 * 8);
        for (row, words) in registers.words[slot as usize].chunks_exact(4).enumerate() {
            rows[row + down][along..along + 8].copy_from_slice(&halves(words));
        }
    }
}

/// Reads the eight columns of a second factor, in the order of [`position`]. Its registers are ordered along the depth.
#[inline(always)]
pub(crate) fn second_factor(registers: &Registers, slots: &[u32], columns: &mut Bits<8>) {
    if slots.len() < 2 {
        *columns = [[0; DEPTH]; 8];
    }
    for (index, &slot) in slots.iter().enumerate() {
        for (column, words) in registers.words[slot as usize].chunks_exact(4).enumerate() {
            columns[position(column)][8 * index..8 * index + 8].copy_from_slice(&halves(words));
        }
    }
}

/// Returns the index of a column if even columns come first, as in registers of sums.
#[inline(always)]
pub(crate) fn position(column: usize) -> usize {
    column % 2 * 4 + column / 2
}

/// Calls `action` with the sums of four registers, or of two registers of packed halves.
#[inline(always)]
pub(crate) fn with_row_sums(registers: &Registers, slots: &[u32], are_halves: bool, action: impl FnOnce(Before<'_>)) {
    if !are_halves {
        return action(std::array::from_fn(|index| &registers.words[slots[index] as usize].0));
    }
    let sums: Sums = std::array::from_fn(|index| {
        let half = |word: u32| f16::from_bits((word >> (index % 2 * 16)) as u16);
        registers.words[slots[index / 2] as usize].map(|word| f16_to_f32(half(word)).to_bits())
    });
    action(sums.each_ref())
}

/// Writes sums to four registers, or to two registers of packed halves.
#[inline(always)]
pub(crate) fn store_row_sums(registers: &mut Registers, slots: &[u32], are_halves: bool, sums: &Sums) {
    for (index, &slot) in slots.iter().enumerate() {
        let words = &mut registers.words[slot as usize];
        if are_halves {
            let bits = |sum: u32| u32::from(f32_to_f16(f32::from_bits(sum)).to_bits());
            let halves = sums[2 * index].iter().zip(&sums[2 * index + 1]);
            words.iter_mut().zip(halves).for_each(|(word, (&low, &high))| *word = bits(low) | bits(high) << 16);
        } else {
            words.0 = sums[index];
        }
    }
}

/// Returns the row and column of a lane's sum in one of four registers.
#[inline(always)]
pub(crate) fn place(lane: usize, index: usize) -> (usize, usize) {
    (lane / 4 + index / 2 * 8, lane % 4 * 2 + index % 2)
}

/// Reads sums of sixteen rows and eight columns from four registers, or from two registers of packed halves.
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

/// Writes sums of sixteen rows and eight columns to four registers, or to two registers of packed halves.
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
