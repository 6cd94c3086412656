//! Products of a warp with factors of tf32, 8-bit floating-point or 8-bit integers.

use super::fragment::{load_sums, place, store_sums};
use crate::exec::tensor_core::{DEPTH, Factors, multiply_add};
use crate::lanes::Registers;
use crate::ops::fp8::{e4m3_to_f16, e5m2_to_f16};
use crate::program::{Factor, FactorKind, Mma};

/// The most steps of depth.
pub(super) const MAX_DEPTH: usize = 32;

/// Returns the bits of a factor's elements, by depth. Registers of a first factor are ordered down its rows first, then
/// along the depth.
fn elements<const S: usize>(registers: &Registers, slots: &[u32], bits: usize, first: bool) -> [[u32; S]; MAX_DEPTH] {
    let (mut found, per) = ([[0; S]; MAX_DEPTH], 32 / bits);
    for (index, &slot) in slots.iter().enumerate() {
        let (down, along) = if first { (index % 2 * 8, index / 2) } else { (0, index) };
        for (lane, &word) in registers.words[slot as usize].iter().enumerate() {
            for element in 0..per {
                let k = (along * 4 + lane % 4) * per + element;
                found[k][lane / 4 + down] = word >> (element * bits) & u32::MAX >> (32 - bits);
            }
        }
    }
    found
}

/// Converts numbers of eight bits to halves, from step `from` of the depth.
fn halves<const S: usize>(bits: &[[u32; S]; MAX_DEPTH], from: usize, e5m2: bool) -> [[u16; S]; DEPTH] {
    let convert = if e5m2 { e5m2_to_f16 } else { e4m3_to_f16 };
    std::array::from_fn(|k| bits[from + k].map(|bits| convert(bits as u8).to_bits()))
}

/// Adds the product of two factors to sums. The factors are given as the bits of their elements, by depth.
pub(super) fn multiply_floats(
    kind: FactorKind,
    depth: usize,
    a: &[[u32; 16]; MAX_DEPTH],
    b: &[[u32; 8]; MAX_DEPTH],
    sums: &mut [[f32; 8]; 16],
) {
    match kind {
        FactorKind::Half(factor) => {
            let a = Factors::new(factor, std::array::from_fn(|k| a[k].map(|bits| bits as u16)));
            let b = Factors::new(factor, std::array::from_fn(|k| b[k].map(|bits| bits as u16)));
            multiply_add(factor, &a, &b, sums);
        }
        FactorKind::Tf32 => {
            // Only the upper nineteen bits count.
            let a = Factors::new(Factor::Tf32, std::array::from_fn(|k| a[k].map(|bits| bits >> 13)));
            let b = Factors::new(Factor::Tf32, std::array::from_fn(|k| b[k].map(|bits| bits >> 13)));
            multiply_add(Factor::Tf32, &a, &b, sums);
        }
        // Hopper GPUs widen fp8 to halves, and multiply sixteen steps at a time.
        FactorKind::Fp8([a_type, b_type]) => {
            for from in (0..depth).step_by(DEPTH) {
                let a = Factors::new(Factor::F16, halves(a, from, a_type));
                let b = Factors::new(Factor::F16, halves(b, from, b_type));
                multiply_add(Factor::F16, &a, &b, sums);
            }
        }
        FactorKind::Integer { .. } => {}
    }
}

/// Adds products of 8-bit integers to an old sum.
pub(super) fn add_integers(
    old: u32,
    pairs: impl Iterator<Item = (u32, u32)>,
    signed: [bool; 2],
    saturates: bool,
) -> u32 {
    let value = |bits: u32, signed: bool| if signed { i64::from(bits as u8 as i8) } else { i64::from(bits as u8) };
    let products: i64 = pairs.map(|(a, b)| value(a, signed[0]) * value(b, signed[1])).sum();
    let sum = i64::from(old as i32) + products;
    let kept = if saturates { sum.clamp(i32::MIN.into(), i32::MAX.into()) } else { sum };
    kept as u32
}

/// Executes `mma.sync` on a warp's fragments.
pub(crate) fn other_mma(registers: &mut Registers, mma: &Mma<FactorKind>) {
    let bits = mma.kind.bits();
    let a = elements::<16>(registers, &mma.a, bits, true);
    let b = elements::<8>(registers, &mma.b, bits, false);
    if let FactorKind::Integer { signed, saturates } = mma.kind {
        for (index, (&d, &c)) in mma.d.iter().zip(&mma.c).enumerate() {
            let old = registers.words[c as usize];
            registers.words[d as usize].0 = std::array::from_fn(|lane| {
                let (row, column) = place(lane, index);
                let pairs = (0..mma.depth).map(|k| (a[k][row], b[k][column]));
                add_integers(old[lane], pairs, signed, saturates)
            });
        }
        return;
    }
    let mut sums = [[0f32; 8]; 16];
    load_sums(registers, &mma.c, mma.half_sum, &mut sums);
    multiply_floats(mma.kind, mma.depth, &a, &b, &mut sums);
    store_sums(registers, &mma.d, mma.half_sum, &sums);
}
