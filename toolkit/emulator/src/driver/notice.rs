//! What goes wrong, in words, for whoever listens: programs only get codes.

use crate::fault::Fault;
use std::sync::OnceLock;

/// What went wrong.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// A kernel, a copy or a fill failed, which ended its context.
    Fault(&'a Fault),
    /// A call was refused. Its context goes on.
    Refusal(&'a Fault),
}

static LISTENER: OnceLock<fn(Notice<'_>)> = OnceLock::new();

/// Has a function called with everything that goes wrong from now on. It must not call the driver. Only the first one that is
/// given in a process is ever called; false is returned for others.
pub fn listen(listener: fn(Notice<'_>)) -> bool {
    LISTENER.set(listener).is_ok()
}

/// Tells whoever listens.
pub(super) fn tell(notice: Notice<'_>) {
    if let Some(listener) = LISTENER.get() {
        listener(notice);
    }
}
