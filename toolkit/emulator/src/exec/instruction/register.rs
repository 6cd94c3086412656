//! Instructions on registers that cannot be expressed as an operation on lanes.

use crate::exec::state::lane_mask::lanes;
use crate::lanes::{LaneOp, Registers, Slots};
use crate::ops::{self, rare::insert_wide_field};
use crate::program::{Carry, CarryOp, Combine, IsSpace, Register};

/// Further results of a comparison: a slot for the complement, and a predicate to combine the result with.
#[derive(Clone, Copy)]
pub(crate) struct Combination {
    /// The slot of the complement.
    pub complement: Option<u32>,
    /// The way to combine the result, the slot of the other predicate, and whether that predicate is negated.
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

/// Computes any function of three bits, given as a truth table.
pub(crate) fn logic3(registers: &mut Registers, slots: Slots, table: u32, mask: u32) {
    let words = &registers.words;
    let (a, b, c) = (words[slots.a as usize], words[slots.b as usize], words[slots.c as usize]);
    let target = &mut registers.words[slots.d as usize];
    lanes(mask).for_each(|lane| target[lane] = ops::logic3(a[lane], b[lane], c[lane], table));
}

/// Inserts `count` bits at bit `at`. Both are slots.
pub(crate) fn insert_field(registers: &mut Registers, slots: Slots, (at, count): (u32, u32), wide: bool, mask: u32) {
    let words = &registers.words;
    let (at, count) = (words[at as usize], words[count as usize]);
    if wide {
        let (a, b) = (registers.wides[slots.a as usize], registers.wides[slots.b as usize]);
        let target = &mut registers.wides[slots.d as usize];
        lanes(mask).for_each(|lane| target[lane] = insert_wide_field(a[lane], b[lane], at[lane], count[lane]));
        return;
    }
    let (a, b) = (words[slots.a as usize], words[slots.b as usize]);
    let target = &mut registers.words[slots.d as usize];
    lanes(mask).for_each(|lane| target[lane] = ops::insert_field(a[lane], b[lane], at[lane], count[lane]));
}

/// Compares, and writes a number where the comparison is true and zero elsewhere.
pub(crate) fn set(registers: &mut Registers, test: LaneOp, slots: Slots, (target, value): (u32, u32), mask: u32) {
    test.run(registers, slots, mask);
    let holds = registers.masks[slots.d as usize];
    let target = &mut registers.words[target as usize];
    lanes(mask).for_each(|lane| target[lane] = if holds >> lane & 1 == 1 { value } else { 0 });
}

/// Adds, subtracts or multiplies with a carry.
pub(crate) fn carry(registers: &mut Registers, sum: &Carry, mask: u32) {
    let slots = sum.slots;
    for lane in lanes(mask) {
        let read = |slot: u32| -> u64 {
            if sum.wide { registers.wides[slot as usize][lane] } else { registers.words[slot as usize][lane].into() }
        };
        let (a, b, c) = (read(slots.a), read(slots.b), read(slots.c));
        let (bits, mask_of) = if sum.wide { (64, u128::from(u64::MAX)) } else { (32, u128::from(u32::MAX)) };
        let product = || match (sum.signed, sum.wide) {
            (true, true) => (i128::from(a as i64) * i128::from(b as i64)) as u128,
            (true, false) => (i64::from(a as i32) * i64::from(b as i32)) as u64 as u128,
            (false, _) => u128::from(a) * u128::from(b),
        };
        let taken = u128::from(sum.takes && registers.masks[sum.carry as usize] >> lane & 1 == 1);
        let (result, left) = match sum.op {
            CarryOp::Add => {
                let total = u128::from(a) + u128::from(c) + taken;
                (total, total >> bits != 0)
            }
            CarryOp::Subtract => {
                let less = u128::from(c) + taken;
                (u128::from(a).wrapping_sub(less), u128::from(a) < less)
            }
            CarryOp::LowProduct | CarryOp::HighProduct => {
                let shift = if sum.op == CarryOp::HighProduct { bits } else { 0 };
                let total = (product() >> shift & mask_of) + u128::from(c) + taken;
                (total, total >> bits != 0)
            }
        };
        if sum.leaves {
            let carries = &mut registers.masks[sum.carry as usize];
            *carries = *carries & !(1 << lane) | u32::from(left) << lane;
        }
        if sum.wide {
            registers.wides[slots.d as usize][lane] = result as u64;
        } else {
            registers.words[slots.d as usize][lane] = result as u32;
        }
    }
}

/// Tests whether generic addresses are in a space.
pub(crate) fn is_space(registers: &mut Registers, question: &IsSpace, mask: u32) {
    let &IsSpace { shift, test, slots, upper, bits, ref windows, inside } = question;
    shift.run(registers, Slots { d: upper, a: slots.a, b: bits, c: 0 }, mask);
    let old = registers.masks[slots.d as usize];
    let mut found = 0;
    for &window in windows {
        test.run(registers, Slots { d: slots.d, a: upper, b: window, c: 0 }, mask);
        found |= registers.masks[slots.d as usize] & mask;
    }
    registers.masks[slots.d as usize] = old & !mask | (if inside { found } else { !found }) & mask;
}

/// Writes one number to all lanes of a register.
pub(crate) fn broadcast(registers: &mut Registers, target: Register, value: u64, mask: u32) {
    if mask == u32::MAX {
        if target.bits == 64 {
            registers.wides[target.slot as usize].fill(value);
        } else {
            registers.words[target.slot as usize].fill(value as u32);
        }
        return;
    }
    for lane in lanes(mask) {
        if target.bits == 64 {
            registers.wides[target.slot as usize][lane] = value;
        } else {
            registers.words[target.slot as usize][lane] = value as u32;
        }
    }
}

/// Splits a wide register into narrow ones.
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

/// Joins narrow registers into a wide one.
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
