//! Initialisation, version, errors, contexts and peer access.

use super::argument::Out;
use super::functions::functions;
use crate::driver::current;
use crate::driver::process::{self, Handle, handle, parts};
use crate::driver::result_code::{Result, ResultCode};
use std::ffi::{c_char, c_void};

/// The CUDA version that the emulator reports: 12.8, the first with PTX 8.7, which the emulator supports.
const VERSION: i32 = 12_080;

/// The driver API version that a context reports.
const API_VERSION: u32 = 3_020;
/// The greatest and least priority of a stream.
pub(super) const PRIORITIES: [i32; 2] = [-5, 0];

/// Creates a context and makes it current.
fn create(context: Out<Handle>, flags: u32, device: i32) -> Result<()> {
    let id = process::create(device)?;
    process::push(id)?;
    process::with_current(|context| {
        context.settings.flags = flags;
        Ok(())
    })?;
    context.put(handle(id, 0))
}

functions! { context_functions($)
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(ResultCode::InvalidValue);
        }
        process::initialise()
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

    fn cuCtxCreate_v2(context: Out<Handle>, flags: u32, device: i32) {
        create(context, flags, device)
    }

    fn cuCtxCreate_v3(context: Out<Handle>, _affinity: *const c_void, affinities: i32, flags: u32, device: i32) {
        if affinities == 0 { create(context, flags, device) } else { Err(ResultCode::NotSupported) }
    }

    fn cuCtxCreate_v4(context: Out<Handle>, parameters: *const c_void, flags: u32, device: i32) {
        if parameters.is_null() { create(context, flags, device) } else { Err(ResultCode::NotSupported) }
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
    fn cuCtxGetId(context: Handle, id: Out<u64>) {
        let own = if context.is_null() { current::get().ok_or(ResultCode::InvalidContext)? } else { parts(context).0 };
        id.put(own.into())
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.put(process::with_current(|context| Ok(context.settings.flags))?)
    }

    fn cuCtxSetFlags(flags: u32) {
        process::with_current(|context| {
            context.settings.flags = flags;
            Ok(())
        })
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        value.put(process::with_current(|context| {
            context.settings.limits.get(limit as usize).copied().ok_or(ResultCode::InvalidValue)
        })?)
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        process::with_current(|context| {
            *context.settings.limits.get_mut(limit as usize).ok_or(ResultCode::InvalidValue)? = value;
            Ok(())
        })
    }

    fn cuCtxGetCacheConfig(config: Out<u32>) {
        config.put(process::with_current(|context| Ok(context.settings.cache))?)
    }

    fn cuCtxSetCacheConfig(config: u32) {
        process::with_current(|context| {
            context.settings.cache = config;
            Ok(())
        })
    }

    fn cuCtxGetSharedMemConfig(config: Out<u32>) {
        config.put(process::with_current(|context| Ok(context.settings.banks))?)
    }

    fn cuCtxSetSharedMemConfig(config: u32) {
        process::with_current(|context| {
            context.settings.banks = config;
            Ok(())
        })
    }

    fn cuCtxResetPersistingL2Cache() {
        process::with_current(|context| context.healthy())
    }

    fn cuProfilerStart() {
        process::with_current(|context| context.healthy())
    }

    fn cuProfilerStop() {
        process::with_current(|context| context.healthy())
    }
}
