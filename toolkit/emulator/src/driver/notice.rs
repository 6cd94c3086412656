//! Error messages for a listener. Programs themselves only get result codes.

use crate::fault::Fault;
use std::sync::OnceLock;

/// An error that the listener is told about.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// A kernel, copy or fill failed, which ended its context.
    Fault(&'a Fault),
    /// A call was refused. Its context stays usable.
    Refusal(&'a Fault),
}

static LISTENER: OnceLock<fn(Notice<'_>)> = OnceLock::new();

/// Registers a function to be called with every error from now on. It must not call the driver. A process can have only
/// one listener. Returns false if it already has one.
pub fn listen(listener: fn(Notice<'_>)) -> bool {
    LISTENER.set(listener).is_ok()
}

/// Passes an error to the listener, if there is one.
pub(super) fn notify(notice: Notice<'_>) {
    if let Some(listener) = LISTENER.get() {
        listener(notice);
    }
}
