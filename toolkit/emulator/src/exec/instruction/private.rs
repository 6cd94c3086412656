//! Memory private to a thread: loads and stores of local memory, and loads of the kernel's parameters.

use super::operand::{gather, get_register, scatter};
use super::poison;
use super::register::broadcast;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::Access;
use crate::window::WINDOW_BITS;

/// Returns the offset of a lane's access in the warp's private memory. Each lane has `size` bytes of it.
fn private_offset(size: usize, address: u64, bytes: usize, lane: usize) -> Checked<usize> {
    let fault =
        |kind, message: String| Err(Violation::new(kind, message).lane(lane).address(address).buffer("local memory"));
    if address.saturating_add(bytes as u64) > size as u64 {
        let message = format!("{bytes} bytes at offset {address:#x} of local memory, which has {size} bytes");
        return fault(FaultKind::OutOfBounds, message);
    }
    if !address.is_multiple_of(bytes as u64) {
        let message = format!("{bytes} bytes at offset {address:#x} of local memory: not a multiple of {bytes}");
        return fault(FaultKind::Misaligned, message);
    }
    Ok(lane * size + address as usize)
}

/// Executes a load from local memory. Each lane has `size` bytes of it.
pub(crate) fn load_private(size: usize, warp: &mut Warp, access: &Access, mask: u32, at: &[u64; 32]) -> Checked<()> {
    let bytes = access.bytes();
    for lane in lanes(mask) {
        let offset = private_offset(size, at[lane], bytes, lane)?;
        let mut data = [0; 32];
        data[..bytes].copy_from_slice(&warp.private[offset..offset + bytes]);
        scatter(warp, access, lane, &data[..bytes]);
        if warp.poison.is_some() {
            poison::loaded_from_private(warp, access, lane, offset);
        }
    }
    Ok(())
}

/// Executes a store to local memory. Each lane has `size` bytes of it.
pub(crate) fn store_private(size: usize, warp: &mut Warp, access: &Access, mask: u32, at: &[u64; 32]) -> Checked<()> {
    let bytes = access.bytes();
    for lane in lanes(mask) {
        let offset = private_offset(size, at[lane], bytes, lane)?;
        let mut data = [0; 32];
        gather(warp, access, lane, &mut data[..bytes]);
        warp.private[offset..offset + bytes].copy_from_slice(&data[..bytes]);
        if warp.poison.is_some() {
            poison::stored_to_private(warp, access, lane, offset);
        }
    }
    Ok(())
}

/// Executes a load from the kernel's parameters, which is the same for all lanes.
pub(crate) fn load_parameter(parameters: &[u8], warp: &mut Warp, access: &Access, offset: usize, mask: u32) {
    let bytes = &parameters[offset..offset + access.bytes()];
    let Some(first) = lanes(mask).next() else { return };
    scatter(warp, access, first, bytes);
    for &register in access.registers.iter().filter(|register| register.bits != 0) {
        let value = get_register(warp, register, first);
        broadcast(&mut warp.registers, register, value, mask);
    }
}

/// Executes a load from the kernel's parameters by address. Only the offset in the parameter window counts.
pub(crate) fn load_parameters(
    parameters: &[u8],
    warp: &mut Warp,
    access: &Access,
    mask: u32,
    at: &[u64; 32],
) -> Checked<()> {
    let bytes = access.bytes();
    for lane in lanes(mask) {
        let offset = at[lane] as usize & ((1 << WINDOW_BITS) - 1);
        let Some(data) = parameters.get(offset..offset + bytes) else {
            let message = format!(
                "{bytes} bytes at offset {offset} of the kernel's parameters, which have {} bytes",
                parameters.len()
            );
            return Err(Violation::new(FaultKind::OutOfBounds, message).lane(lane));
        };
        if !offset.is_multiple_of(bytes) {
            let message =
                format!("{bytes} bytes at offset {offset} of the kernel's parameters: not a multiple of {bytes}");
            return Err(Violation::new(FaultKind::Misaligned, message).lane(lane));
        }
        scatter(warp, access, lane, data);
    }
    Ok(())
}

/// Returns the fault of a kernel that writes its parameters.
#[cold]
pub(crate) fn write_of_parameters() -> Box<Violation> {
    Violation::new(FaultKind::OutOfBounds, "a write to the kernel's parameters, which can only be read")
}
