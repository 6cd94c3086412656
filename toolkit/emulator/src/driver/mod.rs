//! The CUDA driver API (libcuda) implemented by the emulator, with extra functions that only an emulator can offer.
//!
//! [`symbol`] finds a function by its libcuda name. Its signature is the same as in libcuda. [`configure`] sets the
//! number of devices. Features the emulator lacks (arrays, textures, virtual memory and others) have no symbol.
//!
//! Work stays queued in its stream until the program asks for its result. A missing synchronisation therefore shows in
//! every run: a page-locked buffer that is read too early still has its old contents. Copies from pageable memory read
//! their bytes at the call. Copies from page-locked memory read them when the copy executes. The nodes of a graph
//! execute one after the other in capture order. Any thread may call. Each context has its own memory, options, faults
//! and reports.
//!
//! An address is valid only in its own context, until the context enables access to a peer (`cuCtxEnablePeerAccess`) or
//! asks for the address of page-locked memory that another context allocated (`cuMemHostGetDevicePointer`). From then
//! on the two contexts form one group. Launches of a group may run at the same time, in turns chosen by the seed of the
//! launch options. When a launch appears to wait for another device, queued work of every context in the group may
//! begin. If no work is queued, other host threads may still queue some. If every thread with a context of the group is
//! waiting too, or after a timeout ([`DeviceOptions::patience`]), the wait becomes a fault. A launch on one device sees
//! the writes of a launch on another only through a fence and a strong access, both at system scope.
//!
//! After a fault, every call to its context returns the same error, as in CUDA. [`take_fault`] returns the full text.

mod api;
mod capture;
mod compile;
mod context;
mod current;
mod event;
mod events;
mod execution;
mod fatbin;
mod function;
mod graphs;
mod group;
mod host;
mod host_call;
mod image;
mod launch_report;
mod libraries;
mod linker;
mod memory;
mod modules;
mod notice;
mod options;
mod pools;
mod process;
mod queue;
mod result_code;
mod session;
mod settings;
mod streams;
mod timeline;
mod work;

pub use launch_report::LaunchReport;
pub use notice::{Notice, listen};
pub use options::DeviceOptions;

use crate::fault::Fault;
use crate::launch_options::LaunchOptions;
use result_code::Result;
use session::Session;
use std::ffi::c_void;

/// Every driver function, for a library that exports them by name. Macros such as `context_functions` pass these names
/// to a macro of that library.
#[doc(hidden)]
pub mod functions {
    pub use super::api::exported::*;
}

/// The error when no context is current to the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no context is current to this thread")]
pub struct NoContext;

/// Returns the address of the driver function `name`, or `None` if the emulator does not have it.
pub fn symbol(name: &str) -> Option<*const c_void> {
    api::symbol(name)
}

/// Sets the properties of the devices, for contexts created from now on.
pub fn configure(options: DeviceOptions) {
    process::configure(options);
}

/// Returns the device properties that new contexts get.
pub fn configured() -> DeviceOptions {
    process::configured()
}

/// Sets the launch options of contexts created from now on.
pub fn configure_launches(options: LaunchOptions) {
    process::configure_launches(options);
}

/// Registers a function to call when the driver is first initialised. `cuInit` fails if it returns false. Only the
/// first function registered in a process counts.
pub fn initialise_with(first: fn() -> bool) {
    process::initialise_with(first);
}

fn with_current<T>(action: impl FnOnce(&mut Session<'_>) -> T) -> std::result::Result<T, NoContext> {
    let act = |context: &mut Session<'_>| -> Result<T> { Ok(action(context)) };
    process::with_current(act).map_err(|_| NoContext)
}

/// Sets how the current context executes kernels from now on, such as the order of blocks and warps and the checks.
pub fn set_launch_options(options: LaunchOptions) -> std::result::Result<(), NoContext> {
    with_current(|context| context.launch_options = options)
}

/// Starts or stops collecting launch reports in the current context. Drops the reports collected so far.
pub fn collect_reports(collect: bool) -> std::result::Result<(), NoContext> {
    with_current(|context| context.reports = collect.then(Vec::new))
}

/// Takes the collected launch reports of the current context, in launch order.
pub fn take_reports() -> std::result::Result<Vec<LaunchReport>, NoContext> {
    with_current(|context| context.reports.as_mut().map(std::mem::take).unwrap_or_default())
}

/// Takes the last fault of the current context: a kernel or copy that failed, or a call that was refused. A fault that
/// ended the context is not removed, so later calls return it again.
pub fn take_fault() -> Option<Box<Fault>> {
    with_current(|context| context.take_fault()).ok().flatten()
}

/// Names a buffer of the current context for fault messages. `pointer` is the address of its first byte.
pub fn name_buffer(pointer: u64, name: &str) -> std::result::Result<(), NoContext> {
    with_current(|context| context.device().rename(pointer, name))
}
