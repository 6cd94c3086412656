//! Matrix fragments: `ldmatrix` and `mma.sync`.

use super::access::{addresses, shared_offset};
use super::machine::Machine;
use super::product::{DEPTH, Factors, multiply_add};
use super::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::lanes::Registers;
use crate::number::{f16_to_f32, f32_to_f16};
use crate::program::{Address, Mma};
use half::f16;

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
        let at = addresses(warp, address).map(shared_offset);
        for (matrix, &register) in registers.iter().enumerate() {
            let mut rows = [[0u16; 8]; 8];
            self.count_shared(0xff << (8 * matrix), &at, 16);
            for (row, values) in rows.iter_mut().enumerate() {
                let lane = 8 * matrix + row;
                let offset = self.block.shared.locate(at[lane], 16).map_err(|fault| fault.lane(lane))?;
                let who = Self::who(warp, lane, false);
                self.block.shared.read(offset, 16, who).map_err(|fault| fault.lane(lane))?;
                for (value, bytes) in values.iter_mut().zip(self.block.shared.data[offset..offset + 16].chunks_exact(2))
                {
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
    let mut b = [[0u16; 8]; DEPTH];
    for (index, &slot) in mma.b.iter().enumerate() {
        for (lane, &word) in registers.words[slot as usize].iter().enumerate() {
            let (column, k) = (lane / 4, lane % 4 * 2 + index * 8);
            (b[k][column], b[k + 1][column]) = (word as u16, (word >> 16) as u16);
        }
    }
    let mut sums = [[0f32; 8]; 16];
    load_sums(registers, &mma.c, mma.half_sum, &mut sums);
    let (a, b) = (Factors::new(mma.factor, first_factor(registers, &mma.a)), Factors::new(mma.factor, b));
    multiply_add(mma.factor, &a, &b, &mut sums);
    store_sums(registers, &mma.d, mma.half_sum, &sums);
}

/// The sixteen rows of a first factor, by depth: its registers go down the rows first, then along the depth.
#[inline(always)]
pub(super) fn first_factor(registers: &Registers, slots: &[u32]) -> [[u16; 16]; DEPTH] {
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
fn place(lane: usize, index: usize) -> (usize, usize) {
    (lane / 4 + index / 2 * 8, lane % 4 * 2 + index % 2)
}

/// Sums of sixteen rows and eight columns, from four registers, or from two of packed halves.
#[inline(always)]
pub(super) fn load_sums(registers: &Registers, slots: &[u32], halves: bool, sums: &mut [[f32; 8]; 16]) {
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

#[inline(always)]
pub(super) fn store_sums(registers: &mut Registers, slots: &[u32], halves: bool, sums: &[[f32; 8]; 16]) {
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
