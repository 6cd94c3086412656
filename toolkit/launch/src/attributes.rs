//! Launches with attributes: with clusters, or beginning early.

use crate::code::{self, Code};
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{Error, Result};
use cuda_std::launch::LaunchShape;
use cust::sys::{self, CUfunction, CUstream};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

/// The driver function that launches with attributes, available since CUDA 11.8.
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
#[derive(Clone, Copy)]
#[repr(C)]
struct Attribute {
    id: c_uint,
    padding: c_uint,
    value: [c_uint; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`
const CLUSTER_DIMENSION: c_uint = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`
const STREAM_SERIALIZATION: c_uint = 6;

/// The first driver version that records early-beginning launches in graphs with the work between them: CUDA 12.3.
const EARLY_IN_GRAPHS: c_int = 12_030;

type Launch = unsafe extern "C" fn(*const Configuration, CUfunction, *mut *mut c_void, *mut *mut c_void) -> c_uint;

/// Looks up the driver function for [`launch`].
pub(crate) fn function(driver: &Driver) -> Result<*const c_void> {
    driver.lookup(LAUNCH).ok_or(Error::OldDriver(LAUNCH))
}

/// Whether launches may begin before earlier ones end, in streams and in graphs.
pub(crate) fn can_begin_early(context: &Context) -> bool {
    let mut version = 0;
    // SAFETY: the pointer is valid for the result.
    let asked = code::check(unsafe { sys::cuDriverGetVersion(&mut version) });
    let device_can = context.limits().capability >= (9, 0);
    asked.is_ok() && version >= EARLY_IN_GRAPHS && device_can && context.driver().lookup(LAUNCH).is_some()
}

/// Launches a kernel with the shape's clusters. If `early` is true, the launch does not wait for the previous launch in
/// its stream to end.
///
/// # Safety
/// `function` must be from [`function`]. The kernel and the stream must be alive. `arguments` must contain an address
/// for each kernel parameter, valid for reads of its size. The kernel's contract must hold. If `early` is true, the
/// kernel must wait for earlier work before it accesses memory that this work may write, and before it writes memory.
pub(crate) unsafe fn launch(
    function: *const c_void,
    kernel: CUfunction,
    (shape, early): (LaunchShape, bool),
    stream: CUstream,
    arguments: *mut *mut c_void,
) -> std::result::Result<(), Code> {
    // SAFETY: the driver's function of this name has this signature.
    let launch = unsafe { std::mem::transmute::<*const c_void, Launch>(function) };
    let attribute = |id, numbers: &[c_uint]| {
        let mut value = [0; 16];
        value[..numbers.len()].copy_from_slice(numbers);
        Attribute { id, padding: 0, value }
    };
    let clusters = (shape.cluster != [1; 3]).then(|| attribute(CLUSTER_DIMENSION, &shape.cluster));
    let attributes: Vec<_> = clusters.into_iter().chain(early.then(|| attribute(STREAM_SERIALIZATION, &[1]))).collect();
    let LaunchShape { grid, threads: block, shared, .. } = shape;
    let count = attributes.len() as c_uint;
    let configuration = Configuration { grid, block, shared, stream, attributes: attributes.as_ptr(), count };
    // SAFETY: the configuration has `count` attributes. The rest is this function's contract.
    code::check(code::result_of(unsafe { launch(&configuration, kernel, arguments, null_mut()) }))
}
