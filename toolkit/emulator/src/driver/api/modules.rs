//! Modules, functions and launches.

use super::argument::{Out, Text, array, write_text};
use super::functions::functions;
use crate::arg::Arg;
use crate::driver::options::{
    BLOCKS_PER_MULTIPROCESSOR, SHARED_RESERVED, THREADS_PER_BLOCK, THREADS_PER_MULTIPROCESSOR,
};
use crate::driver::process::{Handle, beside, create_in_current, handle, parts, with, with_current_stream};
use crate::driver::result_code::{Result, ResultCode};
use crate::driver::work::{LaunchRequest, Work};
use crate::exec::{self, LaunchConfig};
use crate::fault::{Fault, FaultKind};
use crate::parameter::Parameter;
use std::ffi::{c_char, c_void};

/// Options of a compilation that the emulator knows: where its errors go, and how much room there is.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;
/// The attribute of a function that is settable: the most dynamic shared memory of its launches.
const MAX_DYNAMIC_SHARED: u32 = 8;

/// Parses PTX and puts the module's handle. `log` is told what is wrong with the PTX.
fn load(module: Out<Handle>, ptx: Text, log: impl FnOnce(&str)) -> Result<()> {
    let ptx = ptx.get()?;
    let mut why = String::new();
    let loaded = create_in_current(|context| {
        context.load_module(ptx).map_err(|(code, text)| {
            context.fault = Some(Fault::of_call(FaultKind::Launch, "load of a module", text.clone()));
            why = text;
            code
        })
    });
    match loaded {
        Ok(loaded) => module.put(loaded),
        Err(code) => {
            log(&why);
            Err(code)
        }
    }
}

/// Copies the arguments of a launch.
///
/// # Safety
/// `args` must be null or have an address for each parameter. Each address must be null or valid for reads of as many bytes as
/// the parameter has.
unsafe fn arguments(parameters: &[Parameter], args: *const *const u8) -> Result<Vec<Arg>> {
    // SAFETY: `args` is null or has an address for each parameter.
    let addresses = unsafe { array(args, parameters.len()) }?;
    let read = |(address, parameter): (*const u8, &Parameter)| {
        // SAFETY: the address is null or valid for reads of as many bytes as the parameter has.
        unsafe { array(address, parameter.size) }.map(Arg::Bytes)
    };
    addresses.into_iter().zip(parameters).map(read).collect()
}

/// The attribute of a launch that is the shape of its clusters.
const CLUSTER_DIMENSION: u32 = 4;
/// Attributes that change no result: none at all, how clusters are spread, priority, and how shared memory is carved out.
const HINTS: [u32; 4] = [0, 5, 8, 14];

/// `CUlaunchConfig`
#[derive(Clone, Copy)]
#[repr(C)]
struct LaunchConfiguration {
    /// Grid, block and bytes of dynamic shared memory.
    numbers: [u32; 7],
    stream: Handle,
    attributes: *const LaunchAttribute,
    count: u32,
}

/// `CUlaunchAttribute`
#[derive(Clone, Copy)]
#[repr(C)]
struct LaunchAttribute {
    id: u32,
    padding: u32,
    value: [u32; 16],
}

/// What a launch asks for.
struct LaunchShape {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: usize,
    cluster: Option<[u32; 3]>,
}

/// Checks a launch and gives it to a stream.
///
/// # Safety
/// `args` must be null or have an address for each parameter of the kernel. Each address must be null or valid for reads of as
/// many bytes as the parameter has.
unsafe fn launch(function: Handle, shape: LaunchShape, stream: Handle, args: *const *const u8) -> Result<()> {
    let function = beside(stream, function)?;
    let LaunchShape { grid, block, dynamic_shared, cluster } = shape;
    with_current_stream(stream, |context, stream| {
        context.healthy()?;
        let function = context.function(function)?;
        let (module, kernel, limit) = (function.module.clone(), function.kernel.clone(), function.dynamic_limit);
        let entry = module.entry(&kernel).ok_or(ResultCode::NotFound)?;
        // SAFETY: there is an argument for each parameter of the kernel, each of the parameter's size.
        let args = unsafe { arguments(entry.parameters(), args) }?;
        if let Err(why) = entry.check() {
            return Err(context.refuse_form(&kernel, &why));
        }
        let config = LaunchConfig { grid, block, dynamic_shared, cluster: exec::cluster_of(entry, cluster) };
        exec::check_launch(entry, config, cluster, &args).map_err(|why| context.refuse(&kernel, why))?;
        if dynamic_shared > limit {
            let why = format!("{dynamic_shared} bytes of dynamic shared memory, of at most {limit}");
            return Err(context.refuse(&kernel, why));
        }
        let request = LaunchRequest { module, kernel, grid, block, dynamic_shared, cluster, args };
        context.submit(stream, Work::Launch(request))
    })
}

functions! {
    fn cuModuleLoadData(module: Out<Handle>, ptx: Text) {
        load(module, ptx, |_| ())
    }

    fn cuModuleLoadDataEx(module: Out<Handle>, ptx: Text, count: u32, names: *const u32, values: *const *mut c_void) {
        // SAFETY: the function requires that both arrays have `count` elements.
        let (names, values) = unsafe { (array(names, count as usize)?, array(values, count as usize)?) };
        let option = |name| names.iter().position(|&other| other == name).map(|index| values[index]);
        load(module, ptx, |why| {
            if let (Some(log), Some(room)) = (option(ERROR_LOG), option(ERROR_LOG_SIZE)) {
                // SAFETY: the function requires that the buffer of the option has as many bytes as the other option says.
                // Without room there is no log.
                let _ = unsafe { write_text(log.cast::<c_char>(), room.addr(), why) };
            }
        })
    }

    fn cuModuleUnload(module: Handle) {
        with(module, |context, module| context.unload_module(module))
    }

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) {
        let name = name.get()?;
        let id = with(module, |context, module| context.find_function(module, name))?;
        function.put(handle(parts(module).0, id))
    }

    fn cuModuleGetGlobal_v2(pointer: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) {
        let name = name.get()?;
        let (address, size) = with(module, |context, module| {
            let module = context.module(module)?.clone();
            let variable = module.variables.iter().find(|variable| variable.name == name).ok_or(ResultCode::NotFound)?;
            Ok((context.device().variable(&module, name).ok_or(ResultCode::NotFound)?, variable.size))
        })?;
        if !bytes.is_null() {
            bytes.put(size)?;
        }
        if pointer.is_null() { Ok(()) } else { pointer.put(address) }
    }

    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: Handle) {
        let found = with(function, |context, function| {
            let (major, minor) = context.device_options.capability;
            let function = context.function(function)?;
            let entry = function.entry()?;
            let bound = entry.bounds().max_threads.map_or(THREADS_PER_BLOCK, |bound| bound.iter().product());
            Ok(match attribute {
                0 => bound,
                1 => entry.static_shared() as u32,
                2 => 0, // constant memory
                3 => entry.local() as u32,
                4 => return Err(ResultCode::NotSupported), // registers: PTX has as many as it likes
                5 | 6 => major * 10 + minor,
                MAX_DYNAMIC_SHARED => function.dynamic_limit as u32,
                _ => return Err(ResultCode::InvalidValue),
            })
        })?;
        value.put(found as i32)
    }

    fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) {
        with(function, |context, function| {
            context.healthy()?;
            let most = context.device_options.shared_opt_in();
            let function = context.function(function)?;
            let room = most.saturating_sub(function.entry()?.static_shared());
            match (attribute, usize::try_from(value)) {
                (MAX_DYNAMIC_SHARED, Ok(bytes)) if bytes <= room => {
                    function.dynamic_limit = bytes;
                    Ok(())
                }
                _ => Err(ResultCode::InvalidValue),
            }
        })
    }

    fn cuFuncSetCacheConfig(function: Handle, _config: u32) {
        with(function, |context, function| context.function(function).map(|_| ()))
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<i32>, function: Handle, threads: i32, dynamic_shared: usize,
    ) {
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(ResultCode::InvalidValue)?;
        let fit = with(function, |context, function| {
            let room = context.device_options.shared_per_multiprocessor();
            let static_shared = context.function(function)?.entry()?.static_shared();
            let by_shared = room / (static_shared + dynamic_shared + SHARED_RESERVED);
            let by_threads = THREADS_PER_MULTIPROCESSOR / threads.next_multiple_of(32);
            Ok(by_threads.min(BLOCKS_PER_MULTIPROCESSOR).min(by_shared as u32))
        })?;
        blocks.put(fit as i32)
    }

    fn cuLaunchKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        dynamic_shared: u32, stream: Handle, args: *const *const u8, extra: *const *const c_void,
    ) {
        if !extra.is_null() {
            return Err(ResultCode::NotSupported);
        }
        let shape = LaunchShape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared: dynamic_shared as usize,
            cluster: None,
        };
        // SAFETY: the function requires an argument for each parameter of the kernel, each of the parameter's size.
        unsafe { launch(function, shape, stream, args) }
    }

    fn cuLaunchKernelEx(
        config: *const LaunchConfiguration, function: Handle, args: *const *const u8, extra: *const *const c_void,
    ) {
        if !extra.is_null() {
            return Err(ResultCode::NotSupported);
        }
        // SAFETY: the function requires a configuration.
        let [config] = unsafe { array(config, 1) }?[..] else { return Err(ResultCode::InvalidValue) };
        // SAFETY: the function requires that the array has so many attributes.
        let attributes = unsafe { array(config.attributes, config.count as usize) }?;
        let mut cluster = None;
        for attribute in attributes {
            match attribute.id {
                CLUSTER_DIMENSION => cluster = Some([0, 1, 2].map(|axis| attribute.value[axis])),
                id if HINTS.contains(&id) => {}
                _ => return Err(ResultCode::NotSupported),
            }
        }
        let [grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared] = config.numbers;
        let shape = LaunchShape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared: dynamic_shared as usize,
            cluster,
        };
        // SAFETY: the function requires an argument for each parameter of the kernel, each of the parameter's size.
        unsafe { launch(function, shape, config.stream, args) }
    }
}
