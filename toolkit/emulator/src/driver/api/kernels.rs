//! Functions, which are kernels of loaded modules, and what can be asked of them.

use super::argument::Out;
use super::functions::functions;
use crate::driver::libraries::with_function;
use crate::driver::options::THREADS_PER_BLOCK;
use crate::driver::process::{Handle, handle};
use crate::driver::result_code::{Result, ResultCode};
use std::ffi::c_char;

/// The most dynamic shared memory of a function's launches, which can be set.
const MAX_DYNAMIC_SHARED: u32 = 8;
/// How much of the memory that it shares with the L1 cache shared memory should have.
const CARVEOUT: u32 = 9;
/// The shape of clusters that every launch must have, where the kernel does not declare it.
const REQUIRED_CLUSTER_WIDTH: u32 = 11;
const REQUIRED_CLUSTER_DEPTH: u32 = 13;
/// Permission for clusters of more than eight blocks, which launches here have in any case, and how clusters are spread.
const NON_PORTABLE_CLUSTERS: u32 = 14;
const CLUSTER_SCHEDULING: u32 = 15;
/// Registers that a thread is said to have where the PTX does not say how many it may: PTX itself has as many as it likes.
const REGISTERS_OF_A_THREAD: u32 = 32;
/// A function is loaded as soon as it is there.
const LOADED: u32 = 1;

/// Puts an attribute of a function or a library's kernel.
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
            7 => 0, // the mode of caches
            MAX_DYNAMIC_SHARED => function.dynamic_limit as u32,
            CARVEOUT => return Ok(-1), // as the driver likes
            10..=15 => 0,              // clusters, as far as they are not declared
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

/// Puts the place and the size of a parameter.
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
