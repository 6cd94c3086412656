//! Atomics and reductions in memory.

use super::access::{addresses, bits, get_register, lanes, set_register};
use super::machine::Machine;
use super::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::number::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, flush};
use crate::program::{Atomic, AtomicOp, Register};
use crate::ptx::ast::Space;
use half::{bf16, f16};

impl Machine<'_> {
    pub(super) fn atomic(&mut self, warp: &mut Warp, atomic: &Atomic, mask: u32) -> Checked<()> {
        let mut at = addresses(warp, atomic.address);
        let bytes = usize::from(atomic.size);
        self.by_space(warp, atomic.space, mask, &mut at, |machine, warp, space, mask, at| {
            match space {
                Space::Shared => machine.count_shared(mask, at, bytes),
                Space::Local | Space::Param => {
                    return Err(Violation::new(FaultKind::Unsupported, "an atomic on local memory"));
                }
                _ => machine.count_global(mask, at, bytes),
            }
            for lane in lanes(mask) {
                machine.atomic_lane(warp, atomic, space, lane, at[lane])?;
                machine.meet_others(warp, lane, (space, at[lane]), atomic.order, (true, true));
            }
            Ok(())
        })
    }

    fn atomic_lane(&mut self, warp: &mut Warp, atomic: &Atomic, space: Space, lane: usize, at: u64) -> Checked<()> {
        let bytes = usize::from(atomic.size);
        let register = |slot: u32| Register { slot, bits: atomic.size * 8 };
        let value = get_register(warp, register(atomic.value), lane);
        let second = get_register(warp, register(atomic.second), lane);
        let data = if space == Space::Shared {
            let offset = self.block.shared.locate(at, bytes).map_err(|fault| fault.lane(lane))?;
            let who = Self::who(warp, lane, true);
            self.block.shared.read(offset, bytes, who).map_err(|fault| fault.lane(lane))?;
            self.block.shared.write(offset, bytes, who, false).map_err(|fault| fault.lane(lane))?;
            &mut self.block.shared.data[offset..offset + bytes]
        } else {
            let (index, offset) = self.global(at, bytes, lane, true)?;
            let who = (1 << lane, bytes);
            self.check_global_read(warp, index, who, |_| offset, true)?;
            self.check_global_write(warp, index, who, |_| offset, true, |_, _| false)?;
            &mut self.memory.buffers[index].data[offset..offset + bytes]
        };
        let old = bits(data);
        let new = match atomic.op {
            AtomicOp::AddF32 if space != Space::Shared => add_flushing(old as u32, value as u32).into(),
            op => apply(op, atomic.size, old, value, second),
        };
        data.copy_from_slice(&new.to_le_bytes()[..bytes]);
        if let Some(result) = atomic.result {
            set_register(warp, register(result), lane, old);
        }
        Ok(())
    }
}

/// An addition in global memory, where subnormals count as zero; in shared memory they do not.
fn add_flushing(a: u32, b: u32) -> u32 {
    flush(flush(f32::from_bits(a)) + flush(f32::from_bits(b))).to_bits()
}

/// What an atomic leaves in memory.
fn apply(op: AtomicOp, size: u8, old: u64, value: u64, second: u64) -> u64 {
    let signed = |v: u64| if size == 8 { v as i64 } else { (v as i32).into() };
    let halves = |add: fn(u16, u16) -> u16| {
        let low = add(old as u16, value as u16);
        let high = add((old >> 16) as u16, (value >> 16) as u16);
        u64::from(high) << 16 | u64::from(low)
    };
    match op {
        AtomicOp::Add => old.wrapping_add(value),
        AtomicOp::AddF32 => (f32::from_bits(old as u32) + f32::from_bits(value as u32)).to_bits().into(),
        AtomicOp::AddF64 => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
        AtomicOp::AddF16x2 => {
            halves(|a, b| f32_to_f16(f16_to_f32(f16::from_bits(a)) + f16_to_f32(f16::from_bits(b))).to_bits())
        }
        AtomicOp::AddBf16x2 => {
            halves(|a, b| f32_to_bf16(bf16_to_f32(bf16::from_bits(a)) + bf16_to_f32(bf16::from_bits(b))).to_bits())
        }
        AtomicOp::Exchange => value,
        AtomicOp::CompareSwap => {
            if old == value {
                second
            } else {
                old
            }
        }
        AtomicOp::And => old & value,
        AtomicOp::Or => old | value,
        AtomicOp::Xor => old ^ value,
        AtomicOp::Min => old.min(value),
        AtomicOp::Max => old.max(value),
        AtomicOp::MinSigned => {
            if signed(old) <= signed(value) {
                old
            } else {
                value
            }
        }
        AtomicOp::MaxSigned => {
            if signed(old) >= signed(value) {
                old
            } else {
                value
            }
        }
        AtomicOp::Increment => {
            if old >= value {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Decrement => {
            if old == 0 || old > value {
                value
            } else {
                old - 1
            }
        }
    }
}
