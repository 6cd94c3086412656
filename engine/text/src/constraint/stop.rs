//! Ends compilations whose request is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::CancellationHandle;

/// Stops a compilation. Clones stop the same one.
///
/// Building the parser cannot be interrupted, so it is bounded before it starts. The first mask can be.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_set: AtomicBool,
    mask: Mutex<Option<CancellationHandle>>,
}

impl Stop {
    /// Stops the compilation at its next step.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::SeqCst);
        if let Some(mask) = &*self.0.mask.lock().unwrap_or_else(PoisonError::into_inner) {
            mask.cancel();
        }
    }

    /// Whether the compilation is to stop.
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst)
    }

    /// Stops the mask of `handle`, too.
    pub(super) fn watch(&self, handle: Option<CancellationHandle>) {
        *self.0.mask.lock().unwrap_or_else(PoisonError::into_inner) = handle;
        if self.is_set() {
            self.set();
        }
    }
}
