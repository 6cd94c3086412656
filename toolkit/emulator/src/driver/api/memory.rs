//! Device memory, page-locked host memory, and simple copies.

use super::argument::Out;
use super::functions::functions;
use crate::driver::context::DEFAULT_STREAM;
use crate::driver::host::owner_of_mapped;
use crate::driver::process::{Handle, join_current, with_current, with_current_stream};
use crate::driver::queue::Until;
use crate::driver::result_code::{Result, ResultCode};
use crate::driver::session::Session;
use crate::host_bytes::HostBytes;
use std::ffi::c_void;

/// Checks and wraps host memory that a function received.
///
/// # Safety
/// The bytes must be valid for reads until the copy is done, and for writes too if the copy is to the host.
pub(super) unsafe fn host(address: *const c_void, bytes: usize) -> Result<HostBytes> {
    // SAFETY: this function's contract.
    unsafe { HostBytes::new(address.expose_provenance(), bytes) }.ok_or(ResultCode::InvalidValue)
}

/// Runs a copy or fill in the default stream and waits for it.
pub(super) fn now(action: impl FnOnce(&mut Session<'_>) -> Result<()>) -> Result<()> {
    with_current(|context| {
        context.check_waiting()?;
        action(context)?;
        context.run(Until::Stream(DEFAULT_STREAM))
    })
}

/// The pitch of a pitched buffer is a multiple of this many bytes.
const PITCH: usize = 512;
/// The flag of page-locked memory that kernels can access.
const MAPPED: u32 = 2;

fn allocate_host(pointer: Out<*mut c_void>, bytes: usize, flags: u32) -> Result<()> {
    let address = with_current(|context| {
        context.check_waiting()?;
        let owner = context.id;
        context.pinned.allocate(bytes, (flags & MAPPED != 0).then_some(owner))
    })?;
    pointer.put(std::ptr::with_exposed_provenance_mut(address))
}

functions! { memory_functions($)
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (used, all) = with_current(|context| {
            context.healthy()?;
            Ok((context.allocated(), context.device_options.memory))
        })?;
        free.put(all - used)?;
        total.put(all)
    }

    fn cuMemAlloc_v2(pointer: Out<u64>, bytes: usize) {
        pointer.put(with_current(|context| context.allocate(bytes))?)
    }

    fn cuMemAllocPitch_v2(pointer: Out<u64>, pitch: Out<usize>, width: usize, height: usize, _element: u32) {
        let row = width.checked_next_multiple_of(PITCH).ok_or(ResultCode::InvalidValue)?;
        let bytes = row.checked_mul(height).ok_or(ResultCode::InvalidValue)?;
        pointer.put(with_current(|context| context.allocate(bytes))?)?;
        pitch.put(row)
    }

    fn cuMemAllocManaged(pointer: Out<u64>, bytes: usize, _flags: u32) {
        pointer.put(with_current(|context| context.allocate_managed(bytes))?)
    }

    fn cuMemPrefetchAsync(_pointer: u64, _bytes: usize, _device: i32, stream: Handle) {
        with_current_stream(stream, |context, _| context.healthy())
    }

    fn cuMemPrefetchAsync_v2(_pointer: u64, _bytes: usize, _location: u64, _flags: u32, stream: Handle) {
        with_current_stream(stream, |context, _| context.healthy())
    }

    fn cuMemAdvise(_pointer: u64, _bytes: usize, _advice: u32, _device: i32) {
        with_current(|context| context.healthy())
    }

    fn cuMemAdvise_v2(_pointer: u64, _bytes: usize, _advice: u32, _location: u64) {
        with_current(|context| context.healthy())
    }

    fn cuMemFree_v2(pointer: u64) {
        if pointer == 0 {
            return Ok(());
        }
        with_current(|context| context.free(pointer))
    }

    fn cuMemAllocHost_v2(pointer: Out<*mut c_void>, bytes: usize) {
        allocate_host(pointer, bytes, 0)
    }

    fn cuMemHostAlloc(pointer: Out<*mut c_void>, bytes: usize, flags: u32) {
        allocate_host(pointer, bytes, flags)
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, pointer: *mut c_void, _flags: u32) {
        with_current(|context| context.healthy())?;
        // Launches that communicate through this memory must be able to run at the same time.
        join_current(owner_of_mapped(pointer.addr()).ok_or(ResultCode::InvalidValue)?)?;
        device.put(pointer.addr() as u64)
    }

    fn cuMemFreeHost(pointer: *mut c_void) {
        with_current(|context| {
            context.finish()?;
            context.pinned.free(pointer.addr())?;
            context.healthy()
        })
    }

    fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: u32) {
        // SAFETY: the caller guarantees that the host memory stays valid until it is unregistered.
        let memory = unsafe { host(pointer, bytes) }?;
        with_current(|context| {
            let owner = context.id;
            context.pinned.register(memory, (flags & MAPPED != 0).then_some(owner))
        })
    }

    fn cuMemHostUnregister(pointer: *mut c_void) {
        with_current(|context| {
            context.finish()?;
            context.pinned.unregister(pointer.addr())?;
            context.healthy()
        })
    }

    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) {
        // SAFETY: the caller guarantees that the host memory is valid until the copy is done.
        let from = unsafe { host(from, bytes) }?;
        now(|context| context.upload(DEFAULT_STREAM, to, from))
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) {
        // SAFETY: the caller guarantees that the host memory is valid until the copy is done.
        let to = unsafe { host(to, bytes) }?;
        now(|context| context.download_to(DEFAULT_STREAM, to, from))
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        with_current(|context| context.copy(DEFAULT_STREAM, to, from, bytes))
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) {
        // SAFETY: the caller guarantees that the host memory is valid until the copy is done.
        let from = unsafe { host(from, bytes) }?;
        with_current_stream(stream, |context, stream| context.upload(stream, to, from))
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) {
        // SAFETY: the caller guarantees that the host memory is valid until the copy is done.
        let to = unsafe { host(to, bytes) }?;
        with_current_stream(stream, |context, stream| context.download_to(stream, to, from))
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) {
        with_current_stream(stream, |context, stream| context.copy(stream, to, from, bytes))
    }
}
