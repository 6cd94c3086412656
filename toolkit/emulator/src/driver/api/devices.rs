//! Devices and their primary contexts.

use super::argument::{Out, TextArgument, write_text};
use super::functions::functions;
use crate::driver::pools;
use crate::driver::process::{self, Handle, handle};
use crate::driver::result_code::{Result, ResultCode};
use std::ffi::c_char;

/// The device attribute for the PCI bus number.
const BUS: u32 = 33;
/// Peer-to-peer attributes, by CUDA's numbers.
const PERFORMANCE_RANK: u32 = 1;
const ACCESS_SUPPORTED: u32 = 2;
const ATOMICS_SUPPORTED: u32 = 3;
const ARRAY_ACCESS_SUPPORTED: u32 = 4;
/// The first 15 bytes of a device's UUID. The last byte is the device ordinal.
const UUID: &[u8; 15] = b"Quire emulator.";

/// The PCI bus id of a device. Each device is on a bus of its own.
fn bus_id(device: i32) -> String {
    format!("0000:{device:02x}:00.0")
}

fn put_uuid(uuid: Out<[u8; 16]>, device: i32) -> Result<()> {
    process::device(device)?;
    let mut bytes = [0; 16];
    bytes[..15].copy_from_slice(UUID);
    bytes[15] = device as u8;
    uuid.put(bytes)
}

functions! { device_functions($)
    fn cuDeviceGetCount(count: Out<i32>) {
        count.put(process::device(0)?.devices as i32)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        process::device(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, room: i32, device: i32) {
        process::device(device)?;
        // SAFETY: the caller guarantees that `name` has room for `room` bytes.
        unsafe { write_text(name, room.max(0) as usize, "Quire emulator") }
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        bytes.put(process::device(device)?.memory)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        let options = process::device(device)?;
        value.put(if attribute == BUS { device } else { options.attribute(attribute).ok_or(ResultCode::InvalidValue)? })
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let (own_major, own_minor) = process::device(device)?.capability;
        major.put(own_major as i32)?;
        minor.put(own_minor as i32)
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        put_uuid(uuid, device)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        put_uuid(uuid, device)
    }

    fn cuDeviceGetPCIBusId(text: *mut c_char, room: i32, device: i32) {
        process::device(device)?;
        // SAFETY: the caller guarantees that `text` has room for `room` bytes.
        unsafe { write_text(text, room.max(0) as usize, &bus_id(device)) }
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: TextArgument) {
        let (text, devices) = (text.get()?, process::device(0)?.devices as i32);
        device.put((0..devices).find(|&device| bus_id(device) == text).ok_or(ResultCode::InvalidDevice)?)
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, device: i32, peer: i32) {
        process::device(device)?;
        let has_access = process::device(peer)?.peer_access && device != peer;
        value.put(match attribute {
            ACCESS_SUPPORTED | ATOMICS_SUPPORTED => has_access.into(),
            PERFORMANCE_RANK | ARRAY_ACCESS_SUPPORTED => 0,
            _ => return Err(ResultCode::InvalidValue),
        })
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) {
        process::device(device)?;
        pool.put(pools::default_of(device))
    }

    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) {
        process::device(device)?;
        pool.put(pools::current_of(device))
    }

    fn cuDeviceSetMemPool(device: i32, pool: Handle) {
        process::device(device)?;
        pools::set_current(device, pool)
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let (set, is_active) = process::primary_state(device)?;
        flags.put(set)?;
        active.put(is_active.into())
    }

    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) {
        context.put(handle(process::retain_primary(device)?, 0))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        process::release_primary(device, false)
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        process::release_primary(device, true)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        process::set_primary_flags(device, flags)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        process::device(device)?;
        let has_access = process::device(peer)?.peer_access;
        can.put((has_access && device != peer).into())
    }
}
