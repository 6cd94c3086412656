//! Atomics and reductions in memory.

use super::cluster::by_place;
use super::early::check_early;
use super::fence::meet_others;
use super::global::locate_global;
use super::operand::{bits, get_register, set_register};
use super::private::write_of_parameters;
use super::race::{Request, check_global_read, check_global_write};
use super::traffic::{count_global, count_shared};
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_access::LaneAccess;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::number::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, flush};
use crate::program::{Atomic, AtomicOp, Register};
use crate::ptx::ast::Space;
use half::{bf16, f16};

/// Executes an atomic for each lane.
pub(crate) fn atomic(env: &mut BlockEnv<'_>, warp: &mut Warp, atomic: &Atomic, mask: u32) -> Checked<()> {
    by_place(env, warp, (atomic.space, atomic.address), mask, |env, warp, space, mask, at| {
        atomic_in(env, warp, atomic, space, mask, at)
    })
}

#[inline(always)]
fn atomic_in(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    atomic: &Atomic,
    space: Space,
    mask: u32,
    at: &[u64; 32],
) -> Checked<()> {
    let bytes = usize::from(atomic.size);
    match space {
        Space::Shared => count_shared(env.meter, mask, at, bytes),
        Space::Parameters => return Err(write_of_parameters()),
        Space::Local | Space::Param => {
            return Err(Violation::new(FaultKind::Unsupported, "an atomic on local memory"));
        }
        _ => {
            count_global(env.meter, env.memory, mask, at, bytes, ((None, false), true));
            check_early(env, warp, mask, at, (bytes, true))?;
        }
    }
    for lane in lanes(mask) {
        atomic_lane(env, warp, atomic, space, lane, at[lane])?;
        meet_others(env, warp, lane, (space, at[lane]), atomic.order, (true, true));
    }
    Ok(())
}

/// Executes an atomic for one lane, whose address in `space` is `at`.
fn atomic_lane(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    atomic: &Atomic,
    space: Space,
    lane: usize,
    at: u64,
) -> Checked<()> {
    let bytes = usize::from(atomic.size);
    let register = |slot: u32| Register { slot, bits: atomic.size * 8 };
    let value = get_register(warp, register(atomic.value), lane);
    let second = get_register(warp, register(atomic.second), lane);
    let mut place = None;
    let data = if space == Space::Shared {
        let offset = env.block.shared.locate(at, bytes).map_err(|fault| fault.lane(lane))?;
        let who = LaneAccess::new(&warp.clock, lane, true);
        env.block.shared.read(offset, bytes, who).map_err(|fault| fault.lane(lane))?;
        if env.block.shared.take_unwritten() {
            let message = format!("an atomic on offset {offset:#x} of shared memory, which nothing wrote");
            return Err(Violation::new(FaultKind::Uninitialised, message).lane(lane).address(at));
        }
        env.block.shared.write(offset, bytes, who, false).map_err(|fault| fault.lane(lane))?;
        &mut env.block.shared.data[offset..offset + bytes]
    } else {
        let (index, offset) = locate_global(env, at, bytes, lane, true)?;
        let request = Request::for_lane(index, lane, bytes, true);
        check_global_read(env, warp, request, |_| offset)?;
        check_global_write(env, warp, request, |_| offset, |_, _| false)?;
        env.memory.fetch(index, offset, bytes);
        place = Some((index, offset));
        &mut env.memory.buffers[index].data[offset..offset + bytes]
    };
    let old = bits(data);
    let new = match atomic.op {
        AtomicOp::AddF32 if space != Space::Shared => add_flushing(old as u32, value as u32).into(),
        op => apply(op, atomic.size, old, value, second),
    };
    data.copy_from_slice(&new.to_le_bytes()[..bytes]);
    if let Some((index, offset)) = place {
        env.memory.bring(index, offset, bytes);
    }
    if let Some(result) = atomic.result {
        set_register(warp, register(result), lane, old);
    }
    Ok(())
}

/// Adds as in global memory, where subnormals count as zero. In shared memory they do not.
fn add_flushing(a: u32, b: u32) -> u32 {
    flush(flush(f32::from_bits(a)) + flush(f32::from_bits(b))).to_bits()
}

/// Returns the value that an atomic leaves in memory.
fn apply(op: AtomicOp, size: u8, old: u64, value: u64, second: u64) -> u64 {
    let signed = |v: u64| if size == 8 { v as i64 } else { (v as i32).into() };
    let halves = |add: fn(u16, u16) -> u16| {
        let low = add(old as u16, value as u16);
        let high = add((old >> 16) as u16, (value >> 16) as u16);
        u64::from(high) << 16 | u64::from(low)
    };
    let pick = |first: bool, a: u64, b: u64| if first { a } else { b };
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
        AtomicOp::CompareSwap => pick(old == value, second, old),
        AtomicOp::And => old & value,
        AtomicOp::Or => old | value,
        AtomicOp::Xor => old ^ value,
        AtomicOp::Min => old.min(value),
        AtomicOp::Max => old.max(value),
        AtomicOp::MinSigned => pick(signed(old) <= signed(value), old, value),
        AtomicOp::MaxSigned => pick(signed(old) >= signed(value), old, value),
        AtomicOp::Increment => pick(old >= value, 0, old.wrapping_add(1)),
        AtomicOp::Decrement => pick(old == 0 || old > value, value, old.wrapping_sub(1)),
    }
}
