//! Calls of host functions by streams.

use std::cell::Cell;
use std::ffi::c_void;

/// A host function that a stream calls.
pub(super) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// A host function that is told its stream and how the work before it ended.
pub(super) type StreamCallback = unsafe extern "C" fn(*mut c_void, u32, *mut c_void);

thread_local! {
    /// Whether the thread is in a host function that a stream calls.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Calls a host function. It must not call the driver, which refuses every call until the function returns.
pub(super) fn run(function: impl FnOnce()) {
    RUNNING.set(true);
    function();
    RUNNING.set(false);
}

/// Whether the calling thread is in a host function.
pub(super) fn is_running() -> bool {
    RUNNING.get()
}
