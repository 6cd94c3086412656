//! Kernel launches.

use super::argument::array;
use super::functions::functions;
use super::launch_configuration::{LaunchConfiguration, LaunchShape};
use super::occupancy::blocks_that_fit;
use crate::arg::Arg;
use crate::driver::libraries;
use crate::driver::process::{Handle, id_in_context_of, with_current_stream};
use crate::driver::result_code::{Result, ResultCode};
use crate::driver::work::{LaunchRequest, Work};
use crate::exec::{self, LaunchConfig};
use crate::parameter::Parameter;
use std::ffi::c_void;

/// Copies the arguments of a launch.
///
/// # Safety
/// `extra` must be null or a list as `cuLaunchKernel` takes it. If it is null, `args` must be null or contain an
/// address for each parameter. Each address must be null or valid for reads of the parameter's size.
unsafe fn arguments(parameters: &[Parameter], args: *const *const u8, extra: *const *const c_void) -> Result<Vec<Arg>> {
    // SAFETY: this function's contract for `extra`.
    if let Some(buffer) = unsafe { buffer(extra) }? {
        let part = |parameter: &Parameter| buffer.get(parameter.offset..parameter.offset + parameter.size);
        let args = parameters.iter().map(|parameter| part(parameter).map(|bytes| Arg::Bytes(bytes.to_vec())));
        return args.collect::<Option<_>>().ok_or(ResultCode::InvalidValue);
    }
    // SAFETY: `extra` is null, so `args` is null or contains an address for each parameter.
    let addresses = unsafe { array(args, parameters.len()) }?;
    let read = |(address, parameter): (*const u8, &Parameter)| {
        // SAFETY: the address is null or valid for reads of the parameter's size.
        unsafe { array(address, parameter.size) }.map(Arg::Bytes)
    };
    addresses.into_iter().zip(parameters).map(read).collect()
}

/// The lowest compute capability with launches that begin before the previous one ends.
const DEPENDENT_CAPABILITY: (u32, u32) = (9, 0);

/// Whether all blocks of a grid can be resident together.
fn fits(multiprocessors: u32, occupancy: u32, grid: [u32; 3]) -> bool {
    grid.iter().map(|&n| u64::from(n)).product::<u64>() <= u64::from(multiprocessors) * u64::from(occupancy)
}

/// Checks a launch and queues it in a stream.
///
/// # Safety
/// The contract of [`arguments`], for the parameters of the kernel.
unsafe fn launch(
    function: Handle,
    shape: LaunchShape,
    stream: Handle,
    args: *const *const u8,
    extra: *const *const c_void,
) -> Result<()> {
    let function = id_in_context_of(stream, libraries::function_of(function)?)?;
    let LaunchShape { grid, block, dynamic_shared, cluster, cooperative, dependent } = shape;
    with_current_stream(stream, |context, stream| {
        context.healthy()?;
        let function = context.function(function)?;
        let (module, kernel, limit) = (function.module.clone(), function.kernel.clone(), function.dynamic_limit);
        let entry = module.entry(&kernel).ok_or(ResultCode::NotFound)?;
        // SAFETY: this function's contract: each parameter of the kernel has an argument of its size.
        let args = unsafe { arguments(entry.parameters(), args, extra) }?;
        if let Err(why) = entry.check() {
            return Err(context.refuse_form(&kernel, &why));
        }
        let config = LaunchConfig { grid, block, dynamic_shared, cluster: exec::cluster_of(entry, cluster) };
        exec::check_launch(entry, config, cluster, &args).map_err(|why| context.refuse(&kernel, why))?;
        if dynamic_shared > limit {
            let why = format!("{dynamic_shared} bytes of dynamic shared memory exceed the limit of {limit}");
            return Err(context.refuse(&kernel, why));
        }
        if dependent && context.device_options.capability < DEPENDENT_CAPABILITY {
            context.refuse(&kernel, "programmatic stream serialisation, which needs compute capability 9.0");
            return Err(ResultCode::NotSupported);
        }
        let occupancy = blocks_that_fit(&context.device_options, entry, block.iter().product(), dynamic_shared);
        if cooperative && !fits(context.device_options.multiprocessors, occupancy, grid) {
            let why = format!(
                "a cooperative launch of {grid:?} blocks does not fit the device: {occupancy} blocks fit a multiprocessor"
            );
            context.refuse(&kernel, why);
            return Err(ResultCode::CooperativeTooLarge);
        }
        let request = LaunchRequest { module, kernel, grid, block, dynamic_shared, cluster, dependent, args };
        context.submit(stream, Work::Launch(request))
    })
}

/// Keys in the `extra` list of `cuLaunchKernel`: the end of the list, the address of a buffer with all arguments, and
/// the address of the buffer's size.
const END: usize = 0;
const BUFFER: usize = 1;
const BUFFER_SIZE: usize = 2;

/// Copies the buffer with all arguments, or returns `None` if `extra` is null.
///
/// # Safety
/// `extra` must be null or a list as `cuLaunchKernel` takes it.
unsafe fn buffer(extra: *const *const c_void) -> Result<Option<Vec<u8>>> {
    if extra.is_null() {
        return Ok(None);
    }
    let (mut start, mut size) = (std::ptr::null(), 0);
    for pair in 0.. {
        // SAFETY: the list consists of pairs, and the loop stops at the pair that begins with `END`.
        let name = unsafe { extra.add(2 * pair).read() };
        if name.addr() == END {
            break;
        }
        // SAFETY: this is the second half of the pair.
        let value = unsafe { extra.add(2 * pair + 1).read() };
        match name.addr() {
            BUFFER => start = value.cast::<u8>(),
            // SAFETY: the value of this key is the address of the size.
            BUFFER_SIZE => size = unsafe { array(value.cast::<usize>(), 1) }?[0],
            _ => return Err(ResultCode::InvalidValue),
        }
    }
    // SAFETY: the buffer has the size that the list gives.
    unsafe { array(start, size) }.map(Some)
}

functions! { launch_functions($)
    fn cuLaunchKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        dynamic_shared: u32, stream: Handle, args: *const *const u8, extra: *const *const c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = LaunchShape::new(grid, block, dynamic_shared);
        // SAFETY: the caller passes an argument of the right size for each parameter of the kernel.
        unsafe { launch(function, shape, stream, args, extra) }
    }

    fn cuLaunchCooperativeKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        dynamic_shared: u32, stream: Handle, args: *const *const u8,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = LaunchShape { cooperative: true, ..LaunchShape::new(grid, block, dynamic_shared) };
        // SAFETY: the caller passes an argument of the right size for each parameter of the kernel.
        unsafe { launch(function, shape, stream, args, std::ptr::null()) }
    }

    fn cuLaunchKernelEx(
        config: *const LaunchConfiguration, function: Handle, args: *const *const u8, extra: *const *const c_void,
    ) {
        // SAFETY: the caller passes null or a configuration.
        let [config] = unsafe { array(config, 1) }?[..] else { return Err(ResultCode::InvalidValue) };
        // SAFETY: the caller passes as many attributes as the configuration says, and an argument of the right size for
        // each parameter of the kernel.
        unsafe { launch(function, config.shape()?, config.stream, args, extra) }
    }
}
