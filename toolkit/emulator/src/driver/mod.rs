//! libcuda, over the emulator: the functions of the CUDA driver API, and what only an emulator can tell.
//!
//! [`symbol`] finds a function by the name and with the signature that it has in libcuda. There are as many devices as
//! [`configure`] says. What the emulator does not have (arrays, textures, virtual memory ...) has no symbol.
//!
//! Work waits in its stream until something asks for its result, so that a missing synchronisation shows: a
//! page-locked buffer that is read too early has its old contents. Copies from pageable memory take their bytes when
//! they are called, copies from page-locked memory when they are done. A graph's nodes are done one after the other, as
//! they were captured. Calls may come from any thread. Each context has memory, options, faults and reports of its own.
//!
//! An address means something in its context only, until the context gets access to a peer (`cuCtxEnablePeerAccess`), or to
//! page-locked memory that another context has allocated (`cuMemHostGetDevicePointer`). From then on the two are in one
//! group: launches on both may run at the same time, in turns that the seed of the launch options
//! chooses. When a launch seems to wait for what another device must do, queued work of all contexts of the group begins.
//! If there is none, other threads of the host may queue some. When every thread that has one of the contexts waits as well,
//! or a time is over ([`DeviceOptions::patience`]), the wait is a fault. What a launch wrote is known to one on another
//! device only by a fence and a strong access whose scope is the system.
//!
//! After a fault its context answers every call with the same error, as CUDA's does. [`take_fault`] has the whole text.

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

/// The functions themselves, for a library that exports them under their names. The macros `context_functions` and so on hand
/// these names to a macro of that library.
#[doc(hidden)]
pub mod functions {
    pub use super::api::exported::*;
}

/// No context is current to the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no context is current to this thread")]
pub struct NoContext;

/// The address of the driver function of this name, if the emulator has it.
pub fn symbol(name: &str) -> Option<*const c_void> {
    api::symbol(name)
}

/// Says what the device is, for contexts that are created from now on.
pub fn configure(options: DeviceOptions) {
    process::configure(options);
}

/// What the device is for contexts that are created from now on.
pub fn configured() -> DeviceOptions {
    process::configured()
}

/// Sets how contexts execute kernels that are created from now on.
pub fn configure_launches(options: LaunchOptions) {
    process::configure_launches(options);
}

/// Has a function called when the driver is first initialised: `cuInit` fails unless it returns true. Only the first function
/// that is given in a process counts.
pub fn initialise_with(first: fn() -> bool) {
    process::initialise_with(first);
}

fn with_current<T>(action: impl FnOnce(&mut Session<'_>) -> T) -> std::result::Result<T, NoContext> {
    let act = |context: &mut Session<'_>| -> Result<T> { Ok(action(context)) };
    process::with_current(act).map_err(|_| NoContext)
}

/// Sets how the current context executes kernels from now on: the order of blocks and warps, and what is checked.
pub fn set_launch_options(options: LaunchOptions) -> std::result::Result<(), NoContext> {
    with_current(|context| context.launch_options = options)
}

/// Whether the current context keeps the reports of its launches. What was kept so far is dropped.
pub fn collect_reports(collect: bool) -> std::result::Result<(), NoContext> {
    with_current(|context| context.reports = collect.then(Vec::new))
}

/// Takes the reports of the launches that the current context has executed, in order.
pub fn take_reports() -> std::result::Result<Vec<LaunchReport>, NoContext> {
    with_current(|context| context.reports.as_mut().map(std::mem::take).unwrap_or_default())
}

/// Takes what went wrong last in the current context, in full: a fault of a kernel or a copy, or why a call was refused.
/// What ended the context stays, and is given again.
pub fn take_fault() -> Option<Box<Fault>> {
    with_current(|context| context.take_fault()).ok().flatten()
}

/// Gives a buffer of the current context a name, by which faults call it. `pointer` is the address of its first byte.
pub fn name_buffer(pointer: u64, name: &str) -> std::result::Result<(), NoContext> {
    with_current(|context| context.device().rename(pointer, name))
}
