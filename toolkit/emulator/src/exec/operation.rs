//! Instructions that need more than a lane's registers and leave the flow of control alone.

use super::access::lanes;
use super::machine::Machine;
use super::warp::Warp;
use crate::fault::Checked;
use crate::ops;
use crate::program::{Combine, Instruction, Op, Register};

impl Machine<'_> {
    pub(super) fn operation(&mut self, warp: &mut Warp, instruction: &Instruction, mask: u32) -> Checked<()> {
        match &instruction.op {
            Op::Load(access) => self.load(warp, access, mask)?,
            Op::Store(access) => self.store(warp, access, mask)?,
            Op::Parameter { offset, access } => self.load_parameter(warp, access, *offset, mask),
            Op::Atomic(atomic) => self.atomic(warp, atomic, mask)?,
            Op::Collective { op, members } => self.collective(warp, op, *members, mask)?,
            Op::LoadMatrix { address, registers, transposed } => {
                self.load_matrix(warp, *address, registers, *transposed)?;
            }
            Op::Mma(mma) => {
                super::tensor::mma(&mut warp.registers, mma);
                self.stats[self.pc].tensor_flops += 2 * 16 * 8 * mma.depth as u64;
            }
            Op::AsyncCopy(copy) => self.start_copy(warp, copy, mask)?,
            Op::AsyncCommit => {
                let group = std::mem::take(&mut warp.copies);
                warp.groups.push_back(group);
            }
            Op::AsyncWait(pending) => self.wait_copies(warp, *pending)?,
            Op::Compare { test, slots, complement, combine } => {
                let old = warp.registers.masks[slots.d as usize];
                let third = combine.map(|(how, slot, negated)| {
                    let third = warp.registers.masks[slot as usize];
                    (how, if negated { !third } else { third })
                });
                test.run(&mut warp.registers, *slots, u32::MAX);
                let result = warp.registers.masks[slots.d as usize];
                let combined = |value: u32| match third {
                    Some((Combine::And, third)) => value & third,
                    Some((Combine::Or, third)) => value | third,
                    Some((Combine::Xor, third)) => value ^ third,
                    None => value,
                };
                warp.registers.masks[slots.d as usize] = old & !mask | combined(result) & mask;
                if let Some(slot) = complement {
                    let target = &mut warp.registers.masks[*slot as usize];
                    *target = *target & !mask | combined(!result) & mask;
                }
            }
            Op::Logic3 { slots, table } => {
                let words = &warp.registers.words;
                let (a, b, c) = (words[slots.a as usize], words[slots.b as usize], words[slots.c as usize]);
                let target = &mut warp.registers.words[slots.d as usize];
                lanes(mask).for_each(|lane| target[lane] = ops::logic3(a[lane], b[lane], c[lane], *table));
            }
            Op::InsertField { slots, at, count } => {
                let words = &warp.registers.words;
                let (a, b) = (words[slots.a as usize], words[slots.b as usize]);
                let (at, count) = (words[*at as usize], words[*count as usize]);
                let target = &mut warp.registers.words[slots.d as usize];
                lanes(mask).for_each(|lane| target[lane] = ops::insert_field(a[lane], b[lane], at[lane], count[lane]));
            }
            Op::Fence { wide } => self.fence(warp, *wide, mask),
            Op::ProxyFence => warp.clock.proxy_fence(warp.id, mask),
            Op::Mbarrier(mbarrier) => self.mbarrier(warp, mbarrier, mask)?,
            Op::BulkCopy(copy) => self.bulk_copy(warp, copy, mask)?,
            Op::BulkCommit => warp.commit_stores(mask),
            Op::BulkWait { pending, read } => self.wait_stores(warp, mask, *pending, *read)?,
            Op::ProductFence => warp.product_fence = true,
            Op::Product(product) => self.start_product(warp, product)?,
            Op::ProductCommit => warp.commit_products(),
            Op::ProductWait(pending) => self.wait_products(warp, *pending),
            Op::Unpack { source, parts } => unpack(warp, *source, parts, mask),
            Op::Pack { target, parts } => pack(warp, *target, parts, mask),
            Op::Clock(target) => {
                for lane in lanes(mask) {
                    if target.bits == 64 {
                        warp.registers.wides[target.slot as usize][lane] = self.executed;
                    } else {
                        warp.registers.words[target.slot as usize][lane] = self.executed as u32;
                    }
                }
            }
            Op::ActiveMask(target) => {
                let slot = &mut warp.registers.words[*target as usize];
                lanes(mask).for_each(|lane| slot[lane] = mask);
            }
            _ => {}
        }
        Ok(())
    }
}

fn unpack(warp: &mut Warp, source: Register, parts: &[Register], mask: u32) {
    let bits = u32::from(source.bits) / parts.len() as u32;
    let registers = &mut warp.registers;
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

fn pack(warp: &mut Warp, target: Register, parts: &[Register], mask: u32) {
    let bits = u32::from(target.bits) / parts.len() as u32;
    let registers = &mut warp.registers;
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
