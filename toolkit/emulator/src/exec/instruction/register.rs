//! Instructions on registers alone that no operation on lanes can express.

use crate::exec::state::lane_mask::lanes;
use crate::lanes::{LaneOp, Registers, Slots};
use crate::ops;
use crate::program::{Combine, Register};

/// A comparison's further results: a slot for the complement, and a predicate that the result is combined with.
#[derive(Clone, Copy)]
pub(crate) struct Combination {
    /// The slot of the complement.
    pub complement: Option<u32>,
    /// How the result is combined, the slot of the other predicate, and whether that one is negated.
    pub combine: Option<(Combine, u32, bool)>,
}

/// Compares, and combines the result with another predicate.
pub(crate) fn compare(registers: &mut Registers, test: LaneOp, slots: Slots, combination: Combination, mask: u32) {
    let old = registers.masks[slots.d as usize];
    let third = combination.combine.map(|(how, slot, negated)| {
        let third = registers.masks[slot as usize];
        (how, if negated { !third } else { third })
    });
    test.run(registers, slots, u32::MAX);
    let result = registers.masks[slots.d as usize];
    let combined = |value: u32| match third {
        Some((Combine::And, third)) => value & third,
        Some((Combine::Or, third)) => value | third,
        Some((Combine::Xor, third)) => value ^ third,
        None => value,
    };
    registers.masks[slots.d as usize] = old & !mask | combined(result) & mask;
    if let Some(slot) = combination.complement {
        let target = &mut registers.masks[slot as usize];
        *target = *target & !mask | combined(!result) & mask;
    }
}

/// Any function of three bits, given as a table.
pub(crate) fn logic3(registers: &mut Registers, slots: Slots, table: u32, mask: u32) {
    let words = &registers.words;
    let (a, b, c) = (words[slots.a as usize], words[slots.b as usize], words[slots.c as usize]);
    let target = &mut registers.words[slots.d as usize];
    lanes(mask).for_each(|lane| target[lane] = ops::logic3(a[lane], b[lane], c[lane], table));
}

/// Inserts `count` bits at bit `at`; both are slots.
pub(crate) fn insert_field(registers: &mut Registers, slots: Slots, (at, count): (u32, u32), mask: u32) {
    let words = &registers.words;
    let (a, b) = (words[slots.a as usize], words[slots.b as usize]);
    let (at, count) = (words[at as usize], words[count as usize]);
    let target = &mut registers.words[slots.d as usize];
    lanes(mask).for_each(|lane| target[lane] = ops::insert_field(a[lane], b[lane], at[lane], count[lane]));
}

/// Writes one number to all lanes of a register.
pub(crate) fn broadcast(registers: &mut Registers, target: Register, value: u64, mask: u32) {
    for lane in lanes(mask) {
        if target.bits == 64 {
            registers.wides[target.slot as usize][lane] = value;
        } else {
            registers.words[target.slot as usize][lane] = value as u32;
        }
    }
}

/// Cuts a wide register into narrow ones.
pub(crate) fn unpack(registers: &mut Registers, source: Register, parts: &[Register], mask: u32) {
    let bits = u32::from(source.bits) / parts.len() as u32;
    for (index, part) in parts.iter().enumerate().filter(|(_, part)| part.bits != 0) {
        for lane in lanes(mask) {
            let value = if source.bits == 64 {
                registers.wides[source.slot as usize][lane]
            } else {
                registers.words[source.slot as usize][lane].into()
            };
            let value = value >> (index as u32 * bits) & ((1 << bits) - 1);
            registers.words[part.slot as usize][lane] = value as u32;
        }
    }
}

/// Joins narrow registers to a wide one.
pub(crate) fn pack(registers: &mut Registers, target: Register, parts: &[Register], mask: u32) {
    let bits = u32::from(target.bits) / parts.len() as u32;
    for lane in lanes(mask) {
        let value = parts.iter().enumerate().fold(0, |value, (index, part)| {
            let word = u64::from(registers.words[part.slot as usize][lane]) & ((1 << bits) - 1);
            value | word << (index as u32 * bits)
        });
        if target.bits == 64 {
            registers.wides[target.slot as usize][lane] = value;
        } else {
            registers.words[target.slot as usize][lane] = value as u32;
        }
    }
}
