//! Loads and stores of global memory.

use super::early::check_early;
use super::operand::{gather, gather_row, scatter, scatter_row};
use super::poison;
use super::race::{Request, check_global_read, check_global_write};
use super::traffic::count_global;
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::memory::{DeviceAddress, Memory};
use crate::program::Access;
use crate::vectors::widest;

/// Returns whether all 32 lanes access contiguous memory, in order.
#[inline(always)]
pub(crate) fn in_a_row(mask: u32, at: &[u64; 32], bytes: usize) -> bool {
    mask == u32::MAX && at[31].wrapping_sub(at[0]) == 31 * bytes as u64 && in_steps(at, bytes as u64)
}

widest! {
    /// Returns whether each number is greater than the one before it by `step`.
    fn in_steps(numbers: &[u64; 32], step: u64) -> bool {
        let mut differs = 0;
        for (next, number) in numbers[1..].iter().zip(&numbers[..31]) {
            differs |= next.wrapping_sub(*number) ^ step;
        }
        differs == 0
    }
}

/// Returns the bytes that a lane stores.
fn stored(warp: &Warp, access: &Access, lane: usize) -> [u8; 32] {
    let mut data = [0; 32];
    gather(warp, access, lane, &mut data[..access.bytes()]);
    data
}

/// Returns the index of the buffer that contains all bytes of a request. `None` if there is no such buffer, or if an
/// address is not aligned.
///
/// `in_a_row` says that all lanes access contiguous memory, in order.
#[inline(always)]
pub(crate) fn common_buffer(memory: &Memory, mask: u32, at: &[u64; 32], bytes: usize, in_a_row: bool) -> Option<usize> {
    let (mut low, mut high, mut any) = (at[0], at[31], at[0]);
    if !in_a_row && mask == u32::MAX {
        for &at in at {
            (low, high, any) = (low.min(at), high.max(at), any | at);
        }
    } else if !in_a_row {
        (low, high, any) = (u64::MAX, 0, 0);
        for lane in 0..32 {
            let active = mask >> lane & 1 == 1;
            low = low.min(if active { at[lane] } else { u64::MAX });
            high = high.max(if active { at[lane] } else { 0 });
            any |= if active { at[lane] } else { 0 };
        }
    }
    let index = memory.find(low)?;
    let buffer = &memory.buffers[index];
    let end = buffer.base + buffer.data.len() as u64;
    let fits = low >= buffer.base && high <= end.wrapping_sub(bytes as u64) && bytes as u64 <= end - buffer.base;
    (fits && any & (bytes as u64 - 1) == 0 && buffer.live && memory.is_plain(buffer)).then_some(index)
}

/// Checks one lane's access. Returns its buffer and the offset there.
pub(crate) fn locate_global(
    env: &BlockEnv<'_>,
    address: DeviceAddress,
    bytes: usize,
    lane: usize,
    read: bool,
) -> Checked<(usize, usize)> {
    let (index, offset) = env.memory.locate(address, bytes).map_err(|fault| fault.lane(lane))?;
    let buffer = &env.memory.buffers[index];
    let fault =
        |kind, message: String| Err(Violation::new(kind, message).lane(lane).address(address).buffer(&buffer.name));
    if !address.is_multiple_of(bytes as u64) {
        let message =
            format!("{bytes} bytes at {address:#x}, offset {offset} of `{}`: not a multiple of {bytes}", buffer.name);
        return fault(FaultKind::Misaligned, message);
    }
    if read && env.launch.options.check_initialised && !buffer.written.contains_range(offset, bytes) {
        let message = format!("{bytes} bytes at offset {offset} of `{}` that nothing wrote", buffer.name);
        return fault(FaultKind::Uninitialised, message);
    }
    Ok((index, offset))
}

/// Executes a load from global memory.
pub(crate) fn load_global(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    access: &Access,
    mask: u32,
    at: &[u64; 32],
) -> Checked<()> {
    let bytes = access.bytes();
    let row = in_a_row(mask, at, bytes);
    let common = common_buffer(env.memory, mask, at, bytes, row);
    count_global(env.meter, env.memory, mask, at, bytes, ((common, row), false));
    check_early(env, warp, mask, at, (bytes, false))?;
    if let Some(index) = common {
        let buffer = &env.memory.buffers[index];
        let offset = |lane: usize| (at[lane] - buffer.base) as usize;
        let check = env.launch.options.check_initialised;
        let bad = check
            && if row {
                !buffer.written.contains_range(offset(0), 32 * bytes)
            } else {
                lanes(mask).any(|lane| !buffer.written.contains_small(offset(lane), bytes))
            };
        if !bad {
            let strong = access.order.is_some();
            check_global_read(env, warp, Request { buffer: index, mask, bytes, strong, in_a_row: row }, offset)?;
            if row {
                scatter_row(warp, access, &buffer.data[offset(0)..offset(0) + 32 * bytes]);
                return Ok(());
            }
            if access.size == 4 && mask == u32::MAX {
                for (part, register) in access.registers.iter().enumerate().filter(|(_, r)| r.bits == 32) {
                    let target = &mut warp.registers.words[register.slot as usize];
                    for lane in 0..32 {
                        let at = offset(lane) + 4 * part;
                        let data = &buffer.data[at..at + 4];
                        target[lane] = u32::from_le_bytes([data[0], data[1], data[2], data[3]]);
                    }
                }
                if access.registers.iter().all(|register| matches!(register.bits, 0 | 32)) {
                    return Ok(());
                }
            }
            for lane in lanes(mask) {
                let at = offset(lane);
                scatter(warp, access, lane, &buffer.data[at..at + bytes]);
            }
            return Ok(());
        }
    }
    for lane in lanes(mask) {
        let (index, offset) = locate_global(env, at[lane], bytes, lane, true)?;
        let request = Request::for_lane(index, lane, bytes, access.order.is_some());
        check_global_read(env, warp, request, |_| offset)?;
        env.memory.fetch(index, offset, bytes);
        scatter(warp, access, lane, &env.memory.buffers[index].data[offset..offset + bytes]);
    }
    Ok(())
}

/// Executes a store to global memory.
pub(crate) fn store_global(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    access: &Access,
    mask: u32,
    at: &[u64; 32],
) -> Checked<()> {
    let bytes = access.bytes();
    if warp.poison.is_some() {
        poison::check_stored(env.launch.program, warp, access, mask)?;
    }
    let row = in_a_row(mask, at, bytes);
    let common = common_buffer(env.memory, mask, at, bytes, row);
    count_global(env.meter, env.memory, mask, at, bytes, ((common, row), true));
    check_early(env, warp, mask, at, (bytes, true))?;
    let strong = access.order.is_some();
    if let Some(index) = common {
        let base = env.memory.buffers[index].base;
        let offset = |lane: usize| (at[lane] - base) as usize;
        let request = Request { buffer: index, mask, bytes, strong, in_a_row: row };
        check_global_write(env, warp, request, offset, |old, mask| {
            lanes(mask).all(|lane| stored(warp, access, lane)[..bytes] == old[offset(lane)..offset(lane) + bytes])
        })?;
        let buffer = &mut env.memory.buffers[index];
        if row {
            let start = offset(0);
            buffer.written.insert_range(start, 32 * bytes);
            gather_row(warp, access, &mut buffer.data[start..start + 32 * bytes]);
        } else {
            for lane in lanes(mask) {
                buffer.written.insert_small(offset(lane), bytes);
                gather(warp, access, lane, &mut buffer.data[offset(lane)..offset(lane) + bytes]);
            }
        }
        return Ok(());
    }
    for lane in lanes(mask) {
        let (index, offset) = locate_global(env, at[lane], bytes, lane, false)?;
        let data = stored(warp, access, lane);
        let request = Request::for_lane(index, lane, bytes, strong);
        env.memory.fetch(index, offset, bytes);
        check_global_write(env, warp, request, |_| offset, |old, _| old[offset..offset + bytes] == data[..bytes])?;
        let buffer = &mut env.memory.buffers[index];
        buffer.written.insert_small(offset, bytes);
        buffer.data[offset..offset + bytes].copy_from_slice(&data[..bytes]);
        env.memory.bring(index, offset, bytes);
    }
    Ok(())
}
