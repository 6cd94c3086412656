//! Handles signals that the standard library does not. A SIGBUS handler names the file that caused the signal, and
//! [`ignores_hangup`] tells whether SIGHUP is ignored.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::OnceLock;

use engine::tools::mapping::file_at;
use libc::{iovec, sigaction, siginfo_t};

/// The exit status of a process that can no longer read its model.
const LOST_FILE: c_int = 1;

/// The action of SIGBUS before [`explain_lost_files`].
static BEFORE: OnceLock<sigaction> = OnceLock::new();

/// Installs a SIGBUS handler. If a mapped file shrinks or its disk fails, the handler names the file before the process
/// ends.
pub fn explain_lost_files() {
    let before = action_of(libc::SIGBUS);
    let _ = BEFORE.set(before);
    let mut action = before;
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is complete, because it is a copy of one that the system returned. The handler has the
    // signature that `SA_SIGINFO` requires. Its doc comment says why it is safe in a signal handler.
    unsafe { sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
}

/// Whether the parent made this process ignore SIGHUP to outlive its terminal, as nohup does.
pub fn ignores_hangup() -> bool {
    action_of(libc::SIGHUP).sa_sigaction == libc::SIG_IGN
}

/// Returns the current action of a signal.
fn action_of(signal: c_int) -> sigaction {
    let mut action = MaybeUninit::zeroed();
    // SAFETY: without a new action the system only writes the current one to `action`, which has room for it. If the
    // call fails, the zeros remain. They are a valid action, the default.
    unsafe {
        sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    }
}

/// Names the mapped file that can no longer be read, and ends the process. If the address is in no mapped file,
/// restores the previous action.
///
/// The handler may interrupt any code. It therefore takes no lock and allocates no memory. It only reads atomics and
/// calls functions that POSIX allows in a handler.
extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: with `SA_SIGINFO` the system passes a valid `siginfo_t`. For SIGBUS it contains an address, unless a
    // process sent the signal. `si_code` tells which.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr()) };
    match address.and_then(|address| file_at(address as usize)) {
        Some(path) => {
            let parts: [&[u8]; 3] = [
                b"error: the model file ",
                path.as_os_str().as_bytes(),
                b" can no longer be read: it was truncated or its disk failed (--mmap off copies it at the start)\n",
            ];
            let parts = parts.map(|part| iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
            // SAFETY: the parts have the lengths that they state and are only read. `_exit` runs no code of this
            // process.
            unsafe {
                libc::writev(libc::STDERR_FILENO, parts.as_ptr(), parts.len() as c_int);
                libc::_exit(LOST_FILE)
            }
        }
        None if address.is_none() => {
            // SAFETY: POSIX allows both functions in a handler. The raised signal arrives when this handler returns,
            // and then ends the process.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
        None => {
            let before = BEFORE.get().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: `before` is an action that the system returned, or null. The failed instruction runs again under
            // it.
            unsafe { sigaction(signal, before, ptr::null_mut()) };
        }
    }
}
