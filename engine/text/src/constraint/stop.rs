//! Stops compilations whose request was cancelled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::CancellationHandle;

use super::reason::refused;
use checkpoint::error::Result;

/// A handle that stops one compilation. Clones share the same state.
///
/// Building the parser cannot be interrupted, so its cost is bounded before it starts. Computing the first mask can be
/// interrupted.
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

    /// Whether the compilation should stop.
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst)
    }

    /// Fails if the compilation should stop.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_set() { Err(refused("the compilation was stopped".into())) } else { Ok(()) }
    }

    /// Makes [`Stop::set`] also cancel the mask of `handle`. `None` ends that.
    pub(super) fn watch(&self, handle: Option<CancellationHandle>) {
        *self.0.mask.lock().unwrap_or_else(PoisonError::into_inner) = handle;
        if self.is_set() {
            self.set();
        }
    }
}
