//! Functions (kernels of loaded modules) and their attributes.

use super::argument::Out;
use super::functions::functions;
use crate::driver::libraries::with_function;
use crate::driver::options::THREADS_PER_BLOCK;
use crate::driver::process::{Handle, handle};
use crate::driver::result_code::{Result, ResultCode};
use std::ffi::c_char;

/// The settable attribute for the most dynamic shared memory of a launch.
const MAX_DYNAMIC_SHARED: u32 = 8;
/// The attribute for the preferred share of L1 memory that is used as shared memory.
const CARVEOUT: u32 = 9;
/// The first and last attribute of the required cluster shape.
const REQUIRED_CLUSTER_WIDTH: u32 = 11;
const REQUIRED_CLUSTER_DEPTH: u32 = 13;
/// The attributes that allow clusters of more than eight blocks (always allowed here) and choose the cluster scheduling
/// policy.
const NON_PORTABLE_CLUSTERS: u32 = 14;
const CLUSTER_SCHEDULING: u32 = 15;
/// The reported registers per thread if the PTX sets no maximum. PTX itself has unlimited registers.
const REGISTERS_OF_A_THREAD: u32 = 32;
/// The loading state, by CUDA's numbers. Every function is already loaded.
const LOADED: u32 = 1;

/// Returns an attribute of a function or a library's kernel to the caller.
pub(super) fn attribute(value: Out<i32>, attribute: u32, function: Handle) -> Result<()> {
    let found = with_function(function, |context, function| {
        let (major, minor) = context.device_options.capability;
        let function = context.function(function)?;
        let entry = function.entry()?;
        let bound = entry.bounds().max_threads.map_or(THREADS_PER_BLOCK, |bound| bound.iter().product());
        Ok(match attribute {
            0 => bound,
            1 => entry.static_shared() as u32,
            2 => 0, // constant memory
            3 => entry.local() as u32,
            4 => entry.bounds().max_registers.unwrap_or(REGISTERS_OF_A_THREAD),
            5 | 6 => major * 10 + minor,
            7 => 0, // the cache mode
            MAX_DYNAMIC_SHARED => function.dynamic_limit as u32,
            CARVEOUT => return Ok(-1), // the driver's default
            10..=15 => 0,              // cluster attributes, not set
            _ => return Err(ResultCode::InvalidValue),
        } as i32)
    })?;
    value.put(found)
}

/// Sets an attribute of a function or a library's kernel.
pub(super) fn set_attribute(function: Handle, attribute: u32, value: i32) -> Result<()> {
    with_function(function, |context, function| {
        context.healthy()?;
        let most = context.device_options.shared_opt_in();
        let function = context.function(function)?;
        let room = most.saturating_sub(function.entry()?.static_shared());
        match (attribute, usize::try_from(value)) {
            (CARVEOUT | NON_PORTABLE_CLUSTERS | CLUSTER_SCHEDULING, _) => Ok(()),
            (REQUIRED_CLUSTER_WIDTH..=REQUIRED_CLUSTER_DEPTH, _) => Err(ResultCode::NotSupported),
            (MAX_DYNAMIC_SHARED, Ok(bytes)) if bytes <= room => {
                function.dynamic_limit = bytes;
                Ok(())
            }
            _ => Err(ResultCode::InvalidValue),
        }
    })
}

/// Returns the offset and the size of a kernel parameter to the caller.
pub(super) fn parameter(function: Handle, index: usize, offset: Out<usize>, size: Out<usize>) -> Result<()> {
    let (own_offset, own_size) = with_function(function, |context, function| {
        let parameters = context.function(function)?.entry()?.parameters();
        parameters.get(index).map(|parameter| (parameter.offset, parameter.size)).ok_or(ResultCode::InvalidValue)
    })?;
    offset.put(own_offset)?;
    if size.is_null() { Ok(()) } else { size.put(own_size) }
}

functions! { kernel_functions($)
    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: Handle) {
        self::attribute(value, attribute, function)
    }

    fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) {
        set_attribute(function, attribute, value)
    }

    fn cuFuncSetCacheConfig(function: Handle, _config: u32) {
        with_function(function, |context, function| context.function(function).map(|_| ()))
    }

    fn cuFuncSetSharedMemConfig(function: Handle, _config: u32) {
        with_function(function, |context, function| context.function(function).map(|_| ()))
    }

    fn cuFuncLoad(function: Handle) {
        with_function(function, |context, function| context.function(function).map(|_| ()))
    }

    fn cuFuncIsLoaded(state: Out<u32>, function: Handle) {
        with_function(function, |context, function| context.function(function).map(|_| ()))?;
        state.put(LOADED)
    }

    fn cuFuncGetModule(module: Out<Handle>, function: Handle) {
        let found = with_function(function, |context, function| {
            let id = context.function(function)?.module_id;
            Ok(handle(context.id, id))
        })?;
        module.put(found)
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: Handle) {
        name.put(with_function(function, |context, function| Ok(context.function(function)?.c_name.as_ptr()))?)
    }

    fn cuFuncGetParamInfo(function: Handle, index: usize, offset: Out<usize>, size: Out<usize>) {
        parameter(function, index, offset, size)
    }
}
