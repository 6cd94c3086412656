//! Loaded kernels and their launches.

use crate::attributes;
use crate::code::{self, Code};
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::ptx::Ptx;
use crate::stream::Stream;
use crate::tensor;
use cuda_std::launch::{Descriptor, KernelCall, LaunchShape, Param};
use cust::module::Module as Raw;
use cust::sys::{self, CUfunction, CUfunction_attribute, CUjit_option};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

/// The size of the buffer for the driver's compile log, in bytes.
const LOG_SIZE: usize = 16 << 10;

/// Kernels loaded on a device.
#[derive(Debug)]
pub struct Module {
    kernels: HashMap<&'static str, Kernel>,
    /// Owns the functions of `kernels`.
    _raw: Raw,
    context: Context,
}

/// A loaded kernel.
#[derive(Debug)]
struct Kernel {
    function: CUfunction,
    /// The most threads per block.
    max_threads: u32,
    /// The bytes of static shared memory that the kernel declares.
    static_shared: usize,
    /// Whether the kernel has opted in to all shared memory of a block.
    opted_in: AtomicBool,
    /// Whether its launches may begin before the previous launches end.
    early: bool,
}

// SAFETY: functions are not tied to a thread, and any thread may call the driver functions.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Module {
    /// Loads the kernels in `entries` from a PTX text, and compiles no others.
    ///
    /// # Errors
    /// Returns [`Error::Ptx`], [`Error::MissingEntry`] or [`Error::Signature`] if the text does not match the
    /// declarations. Returns [`Error::Cuda`] with the compiler's log if the driver refuses the text.
    pub fn load(context: &Context, ptx: &str, entries: &[&'static Descriptor]) -> Result<Self> {
        Self::load_from(context, &Ptx::new(ptx)?, entries)
    }

    /// Loads kernels like [`load`](Self::load), from a text whose kernels have been found.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_from(context: &Context, ptx: &Ptx<'_>, entries: &[&'static Descriptor]) -> Result<Self> {
        let text = ptx.select(entries)?;
        let Ok(text) = CString::new(text) else {
            return Err(Error::Ptx { line: 1, reason: "the text contains a zero byte" });
        };
        context.make_current()?;
        let raw = Raw::from_ptx_cstr(&text, &[]).map_err(|error| {
            let (code, log) = explain(&text, error.into());
            match context.error("load of kernels", code) {
                Error::Cuda { action, code, detail: None } => Error::Cuda { action, code, detail: log },
                error => error,
            }
        })?;
        let (target, can_begin_early) = (ptx.target(), attributes::can_begin_early(context));
        let kernel = |entry: &&'static Descriptor| {
            let kernel = context.call(&format!("load of `{}`", entry.name), || {
                let early = can_begin_early && entry.waits_in(target);
                let kernel = Kernel::new(&raw, entry, early)?;
                load_now(context.driver(), kernel.function).map(|()| kernel)
            })?;
            Ok((entry.name, kernel))
        };
        let kernels = entries.iter().map(kernel).collect::<Result<_>>()?;
        Ok(Self { kernels, _raw: raw, context: context.clone() })
    }

    /// Makes every launch wait until all earlier launches have ended, even if its kernel waits itself.
    pub fn in_order(mut self) -> Self {
        self.kernels.values_mut().for_each(|kernel| kernel.early = false);
        self
    }

    /// Whether the module was loaded with a kernel.
    pub fn has(&self, kernel: &Descriptor) -> bool {
        self.kernels.contains_key(kernel.name)
    }

    /// Queues a kernel launch in a stream. `call` is the struct of its arguments, or an instance of a generic kernel.
    ///
    /// Arguments are copied. Memory that they point to is accessed when the stream reaches the launch. A kernel that
    /// waits for earlier launches itself ([`Descriptor::waits_in`]) may begin before they end if the device and the
    /// driver support it, unless the module runs [in order](Self::in_order).
    ///
    /// # Safety
    /// The kernel's contract must hold until the kernel has run.
    ///
    /// # Errors
    /// Returns [`Error::NotLoaded`] for a kernel that is not in the module. Returns [`Error::Grid`], [`Error::Block`]
    /// or [`Error::SharedMemory`] if the device or the compiled kernel does not allow the shape. Returns
    /// [`Error::OldDriver`] if the launch needs tensor maps or clusters and the driver lacks them. Returns
    /// [`Error::Cuda`] if a driver call or earlier work failed.
    pub unsafe fn launch(&self, stream: &Stream, shape: LaunchShape, call: impl Into<KernelCall>) -> Result<()> {
        let call = call.into();
        let name = call.descriptor().name;
        let kernel = self.kernels.get(name).ok_or(Error::NotLoaded(name))?;
        let LaunchShape { grid, threads, shared, .. } = shape;
        self.check_shape(name, kernel, grid, threads)?;
        self.check_shared(name, kernel, shared as usize)?;
        let maps = call.tensors().map(|tensor| tensor::encode(&self.context, tensor)).collect::<Result<Vec<_>>>()?;
        let address = |(bits, param): (&u64, &Param)| match maps.get(*bits as usize) {
            Some(map) if param.is_tensor() => std::ptr::from_ref(map).cast_mut().cast(),
            _ => std::ptr::from_ref(bits).cast_mut().cast(),
        };
        let mut addresses: Vec<*mut c_void> = call.bits().iter().zip(call.descriptor().params).map(address).collect();
        let ([gx, gy, gz], [tx, ty, tz]) = (grid, threads);
        let (function, stream, addresses) = (kernel.function, stream.as_raw(), addresses.as_mut_ptr());
        if shape.cluster != [1; 3] || kernel.early {
            let launch = attributes::function(self.context.driver())?;
            return self.context.call(name, || {
                // SAFETY: as below. A kernel that may begin early waits before it accesses memory that earlier launches
                // may write, by its declaration.
                unsafe { attributes::launch(launch, function, (shape, kernel.early), stream, addresses) }
            });
        }
        self.context.call(name, || {
            // SAFETY: the function and the stream are alive. Each parameter has the address of a number or map of the
            // size that was checked when the kernel was loaded, and the driver only reads it. The kernel's contract is
            // this function's own contract.
            code::check(unsafe {
                sys::cuLaunchKernel(function, gx, gy, gz, tx, ty, tz, shared, stream, addresses, null_mut())
            })
        })
    }

    fn check_shape(&self, entry: &'static str, kernel: &Kernel, grid: [u32; 3], block: [u32; 3]) -> Result<()> {
        let limits = self.context.limits();
        let within = |size: [u32; 3], limit: [u32; 3]| size.iter().zip(limit).all(|(&n, most)| (1..=most).contains(&n));
        if !within(grid, limits.grid) {
            return Err(Error::Grid { entry, grid, limit: limits.grid });
        }
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        if !within(block, limits.block) || threads > u64::from(kernel.max_threads) {
            return Err(Error::Block { entry, block, limit: limits.block, threads: kernel.max_threads });
        }
        Ok(())
    }

    /// Checks that a block can have this much shared memory, and opts in for the kernel if the launch needs it.
    fn check_shared(&self, entry: &'static str, kernel: &Kernel, asked: usize) -> Result<()> {
        let limits = self.context.limits();
        let limit = limits.shared_opt_in.saturating_sub(kernel.static_shared);
        if asked > limit {
            return Err(Error::SharedMemory { entry, asked, limit });
        }
        if kernel.static_shared + asked > limits.shared && !kernel.opted_in.load(Ordering::Relaxed) {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            self.context.call(entry, || {
                // SAFETY: the function is alive.
                code::check(unsafe { sys::cuFuncSetAttribute(kernel.function, attribute, limit as i32) })
            })?;
            kernel.opted_in.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the number of blocks of a kernel that can be resident on a multiprocessor at once.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn occupancy(&self, kernel: &Descriptor, threads: u32, dynamic_shared: usize) -> Result<u32> {
        let name = kernel.name;
        let kernel = self.kernels.get(name).ok_or(Error::NotLoaded(name))?;
        self.check_shape(name, kernel, [1; 3], [threads, 1, 1])?;
        self.check_shared(name, kernel, dynamic_shared)?;
        let mut blocks = 0;
        self.context.call(name, || {
            let (function, threads) = (kernel.function, threads as i32);
            // SAFETY: the function is alive, and the pointer is valid for the result.
            code::check(unsafe {
                sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads, dynamic_shared)
            })
        })?;
        Ok(blocks.max(0) as u32)
    }
}

impl Kernel {
    fn new(module: &Raw, entry: &Descriptor, early: bool) -> std::result::Result<Self, Code> {
        let function = module.get_function(entry.name)?.to_raw();
        let get = |attribute| {
            let mut value = 0;
            // SAFETY: the function is alive, and the pointer is valid for the result.
            code::check(unsafe { sys::cuFuncGetAttribute(&mut value, attribute, function) })?;
            Ok::<u32, Code>(value.max(0) as u32)
        };
        let compiled = get(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        Ok(Self {
            function,
            max_threads: compiled.min(entry.bounds.max_threads.unwrap_or(u32::MAX)),
            static_shared: get(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)? as usize,
            opted_in: AtomicBool::new(false),
            early,
        })
    }
}

/// Makes the driver load a kernel now. Since CUDA 11.7 a driver may load it at its first launch instead, and then waits
/// for the device. That wait never ends if a running kernel waits for the kernel being launched. Drivers older than
/// 12.4 do not have this function, but they load a kernel when its attributes are queried.
fn load_now(driver: &Driver, function: CUfunction) -> std::result::Result<(), Code> {
    let Some(address) = driver.lookup("cuFuncLoad") else { return Ok(()) };
    // SAFETY: the driver's function of this name has this signature.
    let load = unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn(CUfunction) -> c_uint>(address) };
    // SAFETY: the function is alive.
    code::check(code::result_of(unsafe { load(function) }))
}

/// Gets the driver's compile log for a text that it refused. `cust` does not ask for the log, and its error type lacks
/// some codes.
fn explain(text: &CStr, code: Code) -> (Code, Option<String>) {
    let mut log = vec![0u8; LOG_SIZE];
    let mut names = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_SIZE)];
    let mut module = null_mut();
    // SAFETY: the text is zero-terminated, the number of options is right, and the log has the given size.
    let again = code::check(unsafe {
        let (names, values) = (names.as_mut_ptr(), values.as_mut_ptr());
        sys::cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 2, names, values)
    });
    if again.is_ok() {
        // SAFETY: the module was just loaded and is not used.
        unsafe { sys::cuModuleUnload(module) };
    }
    let log = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().trim().to_owned()).unwrap_or_default();
    (again.err().unwrap_or(code), (!log.is_empty()).then_some(log))
}
