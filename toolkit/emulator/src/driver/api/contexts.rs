//! The driver itself, devices and contexts.

use super::argument::{Out, write_text};
use super::functions::functions;
use crate::driver::current;
use crate::driver::process::{self, Handle, handle, parts};
use crate::driver::result_code::ResultCode;
use std::ffi::c_char;

/// The version of CUDA that the emulator claims: the first that knows PTX 8.0, which it takes.
const VERSION: i32 = 12_000;

/// The version of the driver API that it follows: CUDA 11.4.
const API_VERSION: u32 = 11_040;
/// Greatest and least priority of a stream.
pub(super) const PRIORITIES: [i32; 2] = [-5, 0];

functions! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(ResultCode::InvalidValue);
        }
        process::initialise();
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.put(VERSION)
    }

    fn cuGetErrorName(code: u32, name: Out<*const c_char>) {
        name.put(ResultCode::describe(code).ok_or(ResultCode::InvalidValue)?.0.as_ptr())
    }

    fn cuGetErrorString(code: u32, text: Out<*const c_char>) {
        text.put(ResultCode::describe(code).ok_or(ResultCode::InvalidValue)?.1.as_ptr())
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        count.put(process::device(0)?.devices as i32)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        process::device(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, room: i32, device: i32) {
        process::device(device)?;
        // SAFETY: the function requires that `name` has room for `room` bytes.
        unsafe { write_text(name, room.max(0) as usize, "Quire emulator") }
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        bytes.put(process::device(device)?.memory)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        value.put(process::device(device)?.attribute(attribute).ok_or(ResultCode::InvalidValue)?)
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

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, _flags: u32) {
        process::device(device).map(|_| ())
    }

    fn cuCtxCreate_v2(context: Out<Handle>, _flags: u32, device: i32) {
        let id = process::create(device)?;
        process::push(id)?;
        context.put(handle(id, 0))
    }

    fn cuCtxDestroy_v2(context: Handle) {
        process::destroy(parts(context).0)
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        process::push(parts(context).0)
    }

    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        let id = process::pop()?;
        if context.is_null() { Ok(()) } else { context.put(handle(id, 0)) }
    }

    fn cuCtxSetCurrent(context: Handle) {
        process::set_current((!context.is_null()).then_some(parts(context).0))
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        context.put(current::get().map_or(std::ptr::null_mut(), |id| handle(id, 0)))
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        device.put(process::with_current(|context| context.healthy().map(|()| context.ordinal))?)
    }

    fn cuCtxGetApiVersion(_context: Handle, version: Out<u32>) {
        version.put(API_VERSION)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        greatest.put(PRIORITIES[0])?;
        least.put(PRIORITIES[1])
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        process::device(device)?;
        let has_access = process::device(peer)?.peer_access;
        can.put((has_access && device != peer).into())
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) {
        if flags != 0 {
            return Err(ResultCode::InvalidValue);
        }
        process::enable_peer(parts(peer).0)
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        process::disable_peer(parts(peer).0)
    }

    fn cuCtxSynchronize() {
        process::with_current(|context| context.synchronize())
    }
}
