//! Attributes of addresses.

use super::argument::{Out, array};
use super::functions::functions;
use crate::driver::pools;
use crate::driver::process::{self, Handle, handle, with_current};
use crate::driver::result_code::{Result, ResultCode};
use crate::driver::session::Session;
use std::ffi::c_void;

/// Memory kinds, by CUDA's numbers.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// The allocation that an address belongs to.
struct Allocation {
    context: u32,
    ordinal: i32,
    kind: u32,
    start: u64,
    bytes: usize,
    is_managed: bool,
    /// Whether kernels can access it.
    is_mapped: bool,
}

fn allocation_in(context: &Session<'_>, address: u64) -> Option<Allocation> {
    let describe = |(kind, start, bytes, is_mapped)| Allocation {
        context: context.id,
        ordinal: context.ordinal,
        kind,
        start,
        bytes,
        is_managed: context.managed.contains(&start),
        is_mapped,
    };
    let buffer =
        context.buffers.range(..=address).next_back().filter(|&(start, bytes)| address < start + *bytes as u64);
    let buffer = buffer.map(|(&start, &bytes)| (DEVICE, start, bytes, true));
    let pinned = || {
        let (start, bytes, is_mapped) = context.pinned.around(address as usize)?;
        Some((if context.managed.contains(&(start as u64)) { DEVICE } else { HOST }, start as u64, bytes, is_mapped))
    };
    buffer.or_else(pinned).map(describe)
}

/// Finds the allocation of an address in any context, the current one first.
fn allocation(address: u64) -> Result<Allocation> {
    with_current(|context| context.healthy())?;
    let lookup = |id| process::with_id(id, |context| Ok(allocation_in(context, address))).ok().flatten();
    process::all().into_iter().find_map(lookup).ok_or(ResultCode::InvalidValue)
}

/// Writes an attribute of an address. If the address belongs to no allocation, fails, or writes a default value if
/// `allow_unknown` is true.
///
/// # Safety
/// `value` must be null or have room for the attribute.
unsafe fn put(value: *mut c_void, attribute: u32, address: u64, allow_unknown: bool) -> Result<()> {
    if value.is_null() {
        return Err(ResultCode::InvalidValue);
    }
    let allocation = match allocation(address) {
        Err(ResultCode::InvalidValue) if allow_unknown => None,
        allocation => Some(allocation?),
    };
    let allocation = allocation.as_ref();
    let small = |bits: u32| {
        // SAFETY: `value` is not null and has room for the attribute, which has four bytes.
        unsafe { value.cast::<u32>().write_unaligned(bits) }
    };
    let flag = |bit: bool| {
        // SAFETY: as above, but the attribute has one byte.
        unsafe { value.cast::<u8>().write(bit.into()) }
    };
    let large = |bits: u64| {
        // SAFETY: as above, but the attribute has eight bytes.
        unsafe { value.cast::<u64>().write_unaligned(bits) }
    };
    match attribute {
        1 => large(allocation.map_or(0, |allocation| handle(allocation.context, 0).addr() as u64)),
        2 => small(allocation.map_or(0, |allocation| allocation.kind)),
        3 => match allocation {
            Some(allocation) if !allocation.is_mapped => return Err(ResultCode::InvalidValue),
            _ => large(allocation.map_or(0, |_| address)),
        },
        4 => match allocation {
            Some(allocation) if allocation.kind == DEVICE && !allocation.is_managed => {
                return Err(ResultCode::InvalidValue);
            }
            _ => large(address),
        },
        6 => flag(false), // the setting has no effect here
        7 => large(allocation.map_or(0, |allocation| allocation.start)),
        8 => flag(allocation.is_some_and(|allocation| allocation.is_managed)),
        9 => small(allocation.map_or(-2, |allocation| allocation.ordinal) as u32),
        11 => large(allocation.map_or(0, |allocation| allocation.start)),
        12 => large(allocation.map_or(0, |allocation| allocation.bytes as u64)),
        13 => flag(allocation.is_some_and(|allocation| allocation.is_mapped)),
        10 | 14 | 15 | 16 => large(0), // memory is not shared with other processes
        17 => large(
            allocation.and_then(|allocation| pools::pool_of(allocation.start)).map_or(0, |pool| pool.addr() as u64),
        ),
        _ => return Err(ResultCode::InvalidValue),
    }
    Ok(())
}

functions! { pointer_functions($)
    fn cuPointerGetAttribute(value: *mut c_void, attribute: u32, pointer: u64) {
        // SAFETY: the caller guarantees that `value` has room for the attribute.
        unsafe { put(value, attribute, pointer, false) }
    }

    fn cuPointerGetAttributes(count: u32, attributes: *const u32, values: *const *mut c_void, pointer: u64) {
        // SAFETY: the caller guarantees that both arrays have `count` elements.
        let (attributes, values) = unsafe { (array(attributes, count as usize)?, array(values, count as usize)?) };
        attributes.into_iter().zip(values).try_for_each(|(attribute, value)| {
            // SAFETY: the caller guarantees room for each attribute.
            unsafe { put(value, attribute, pointer, true) }
        })
    }

    fn cuPointerSetAttribute(_value: *const c_void, attribute: u32, pointer: u64) {
        const SYNCHRONOUS: u32 = 6;
        if attribute == SYNCHRONOUS { allocation(pointer).map(|_| ()) } else { Err(ResultCode::InvalidValue) }
    }

    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, pointer: u64) {
        let allocation = allocation(pointer)?;
        if !allocation.is_mapped {
            return Err(ResultCode::NotFound); // not an address that kernels can access
        }
        if !start.is_null() {
            start.put(allocation.start)?;
        }
        if bytes.is_null() { Ok(()) } else { bytes.put(allocation.bytes) }
    }

    fn cuMemHostGetFlags(flags: Out<u32>, pointer: *mut c_void) {
        let allocation = allocation(pointer.addr() as u64)?;
        flags.put(if allocation.is_mapped { 2 } else { 0 })
    }
}

/// Attributes 1 and 17 are handles, written as eight bytes.
const _: () = assert!(size_of::<Handle>() == 8);
