//! Stream-ordered allocation and memory pools.

use super::argument::{Out, array};
use super::functions::functions;
use crate::driver::pools::{self, LAST_SWITCH};
use crate::driver::process::{self, Handle, with_current, with_current_stream};
use crate::driver::result_code::{Result, ResultCode};
use std::ffi::c_void;

/// The allocation type for device memory, by CUDA's number.
const PINNED: u32 = 1;
/// The location type for a device, by CUDA's number.
const DEVICE: u32 = 1;
/// The access flags for reads and writes.
const READ_WRITE: u32 = 3;

/// The beginning of `CUmemPoolProps`. The emulator ignores the rest.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PoolProperties {
    allocation: u32,
    handle_types: u32,
    location: MemoryLocation,
}

/// `CUmemLocation`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemoryLocation {
    kind: u32,
    id: i32,
}

/// `CUmemAccessDesc`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemoryAccess {
    location: MemoryLocation,
    flags: u32,
}

fn allocate(pointer: Out<u64>, bytes: usize, pool: Option<Handle>, stream: Handle) -> Result<()> {
    let pool = pool.map_or_else(|| with_current(|context| Ok(pools::current_of(context.ordinal))), Ok)?;
    let device = pools::device_of(pool)?;
    let address = with_current_stream(stream, |context, stream| {
        // Memory of another device would need peer access.
        if context.ordinal == device { context.allocate_in(stream, bytes) } else { Err(ResultCode::NotSupported) }
    })?;
    pools::note_allocated(pool, address, bytes);
    pointer.put(address)
}

functions! { pool_functions($)
    fn cuMemAllocAsync(pointer: Out<u64>, bytes: usize, stream: Handle) {
        allocate(pointer, bytes, None, stream)
    }

    fn cuMemAllocFromPoolAsync(pointer: Out<u64>, bytes: usize, pool: Handle, stream: Handle) {
        allocate(pointer, bytes, Some(pool), stream)
    }

    fn cuMemFreeAsync(pointer: u64, stream: Handle) {
        if pointer == 0 {
            return Ok(());
        }
        with_current_stream(stream, |context, stream| context.free_in(stream, pointer))
    }

    fn cuMemPoolCreate(pool: Out<Handle>, properties: *const PoolProperties) {
        // SAFETY: the caller passes null or properties.
        let [properties] = unsafe { array(properties, 1) }?[..] else { return Err(ResultCode::InvalidValue) };
        let PoolProperties { allocation, handle_types, location } = properties;
        if allocation != PINNED || location.kind != DEVICE {
            return Err(ResultCode::InvalidValue);
        }
        if handle_types != 0 {
            return Err(ResultCode::NotSupported); // pools cannot be shared with other processes
        }
        process::device(location.id)?;
        pool.put(pools::create(location.id))
    }

    fn cuMemPoolDestroy(pool: Handle) {
        pools::destroy(pool)
    }

    fn cuMemPoolTrimTo(pool: Handle, _keep: usize) {
        pools::device_of(pool).map(|_| ())
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: *mut c_void) {
        let found = pools::attribute(pool, attribute)?;
        if value.is_null() {
            return Err(ResultCode::InvalidValue);
        }
        if attribute <= LAST_SWITCH {
            // SAFETY: the caller guarantees room for an `int` for these attributes, and the pointer is not null.
            unsafe { value.cast::<i32>().write_unaligned(found as i32) };
        } else {
            // SAFETY: the caller guarantees room for eight bytes for the other attributes, and the pointer is not null.
            unsafe { value.cast::<u64>().write_unaligned(found) };
        }
        Ok(())
    }

    fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: *const c_void) {
        let value = if attribute <= LAST_SWITCH {
            // SAFETY: the caller passes null or an `int` for these attributes.
            unsafe { array(value.cast::<i32>(), 1) }?[0] as u64
        } else {
            // SAFETY: the caller passes null or eight bytes for the other attributes.
            unsafe { array(value.cast::<u64>(), 1) }?[0]
        };
        pools::set_attribute(pool, attribute, value)
    }

    fn cuMemPoolSetAccess(pool: Handle, accesses: *const MemoryAccess, count: usize) {
        let device = pools::device_of(pool)?;
        // SAFETY: the caller passes `count` descriptions.
        let accesses = unsafe { array(accesses, count) }?;
        let own = |access: &MemoryAccess| (access.location.id, access.flags) == (device, READ_WRITE);
        // Peers access pool memory like any other memory, through `cuCtxEnablePeerAccess`.
        if accesses.iter().all(own) { Ok(()) } else { Err(ResultCode::NotSupported) }
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: Handle, location: *const MemoryLocation) {
        let device = pools::device_of(pool)?;
        // SAFETY: the caller passes null or a location.
        let [location] = unsafe { array(location, 1) }?[..] else { return Err(ResultCode::InvalidValue) };
        flags.put(if location.id == device { READ_WRITE } else { 0 })
    }
}
