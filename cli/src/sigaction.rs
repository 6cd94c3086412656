//! Signals that the standard library does not handle: a SIGBUS is explained before it ends the process, and a function
//! tells whether SIGHUP is ignored.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::OnceLock;

use engine::mapping::file_at;
use libc::{iovec, sigaction, siginfo_t};

/// The exit status of a process that cannot read its model any more.
const LOST_FILE: c_int = 1;

/// What SIGBUS did before [`explain_lost_files`].
static BEFORE: OnceLock<sigaction> = OnceLock::new();

/// From now on, if a file that is mapped becomes shorter or its disk fails, the process says which one that is before
/// it ends.
pub fn explain_lost_files() {
    let before = action_of(libc::SIGBUS);
    let _ = BEFORE.set(before);
    let mut action = before;
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is whole, being a copy of one that the system gave with a handler of the form that `SA_SIGINFO`
    // asks for. What the handler may do is said there.
    unsafe { sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
}

/// Whether the parent of this process wants it to outlive its terminal, as nohup does.
pub fn ignores_hangup() -> bool {
    action_of(libc::SIGHUP).sa_sigaction == libc::SIG_IGN
}

/// What a signal does at present.
fn action_of(signal: c_int) -> sigaction {
    let mut action = MaybeUninit::zeroed();
    // SAFETY: without a new action the system only writes the present one, for which there is room. All zeros, which stay
    // if it refuses, are an action too: the default.
    unsafe {
        sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    }
}

/// Says which file cannot be read any more, and ends the process. An address in no file is left to what was there before.
///
/// Whatever the thread was doing when it was interrupted, this waits for no lock and asks for no memory: it reads atomics
/// and calls functions that POSIX allows in a handler.
extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: `SA_SIGINFO` has the system pass what it knows of the signal; for SIGBUS that includes an address, unless a
    // process sent it, which the code says.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr()) };
    match address.and_then(|address| file_at(address as usize)) {
        Some(path) => {
            let parts: [&[u8]; 3] = [
                b"error: the model file ",
                path.as_os_str().as_bytes(),
                b" cannot be read any more: it became shorter, or its disk failed (--mmap off copies it at the start)\n",
            ];
            let parts = parts.map(|part| iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
            // SAFETY: the parts are as long as they say and are only read; `_exit` runs nothing of this process.
            unsafe {
                libc::writev(libc::STDERR_FILENO, parts.as_ptr(), parts.len() as c_int);
                libc::_exit(LOST_FILE)
            }
        }
        None if address.is_none() => {
            // SAFETY: POSIX allows both functions in a handler. The signal comes once more when this has returned, and
            // then ends the process.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
        None => {
            let before = BEFORE.get().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: an action that the system gave, or none. The instruction that failed is tried again under it.
            unsafe { sigaction(signal, before, ptr::null_mut()) };
        }
    }
}
