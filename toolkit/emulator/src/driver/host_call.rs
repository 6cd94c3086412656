//! Host functions that streams call.

use std::cell::Cell;
use std::ffi::c_void;

/// A host function that a stream calls.
pub(super) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// A host function that also receives its stream and the status of the work before it.
pub(super) type StreamCallback = unsafe extern "C" fn(*mut c_void, u32, *mut c_void);

thread_local! {
    /// Whether the thread is inside a host function that a stream called.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Calls a host function. The driver refuses every call from it until it returns.
pub(super) fn run(function: impl FnOnce()) {
    RUNNING.set(true);
    function();
    RUNNING.set(false);
}

/// Whether the calling thread is inside a host function that a stream called.
pub(super) fn is_running() -> bool {
    RUNNING.get()
}
