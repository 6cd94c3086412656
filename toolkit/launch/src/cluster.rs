//! Launches in clusters.

use crate::code::{self, Code};
use crate::driver::Driver;
use crate::error::{Error, Result};
use cuda_std::launch::LaunchShape;
use cust::sys::{CUfunction, CUstream};
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;

/// The driver's function that launches clusters, which came with CUDA 11.8.
const LAUNCH: &str = "cuLaunchKernelEx";

/// `CUlaunchConfig`
#[repr(C)]
struct Configuration {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: CUstream,
    attributes: *const Attribute,
    count: c_uint,
}

/// `CUlaunchAttribute`
#[repr(C)]
struct Attribute {
    id: c_uint,
    padding: c_uint,
    value: [c_uint; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`
const CLUSTER_DIMENSION: c_uint = 4;

type Launch = unsafe extern "C" fn(*const Configuration, CUfunction, *mut *mut c_void, *mut *mut c_void) -> c_uint;

/// The driver's function for [`launch`].
pub(crate) fn function(driver: &Driver) -> Result<*const c_void> {
    driver.lookup(LAUNCH).ok_or(Error::OldDriver(LAUNCH))
}

/// Launches blocks in clusters of the shape that `shape` has.
///
/// # Safety
/// `function` is from [`function`]; kernel and stream live; there is an address for each of the kernel's parameters, of as many
/// bytes as it has; the kernel's contract holds.
pub(crate) unsafe fn launch(
    function: *const c_void,
    kernel: CUfunction,
    shape: LaunchShape,
    stream: CUstream,
    arguments: *mut *mut c_void,
) -> std::result::Result<(), Code> {
    // SAFETY: the driver's function of this name has this signature.
    let launch = unsafe { std::mem::transmute::<*const c_void, Launch>(function) };
    let mut value = [0; 16];
    value[..3].copy_from_slice(&shape.cluster);
    let attribute = Attribute { id: CLUSTER_DIMENSION, padding: 0, value };
    let LaunchShape { grid, threads: block, shared, .. } = shape;
    let configuration = Configuration { grid, block, shared, stream, attributes: &attribute, count: 1 };
    // SAFETY: the configuration has one attribute, and the rest is as this function demands.
    code::check(code::result_of(unsafe { launch(&configuration, kernel, arguments, null_mut()) }))
}
