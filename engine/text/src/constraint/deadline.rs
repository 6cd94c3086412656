//! Cancels masks that take too long.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

/// Time limit for one mask. The lexer's fuel lasts about 15 ms and the parser's item limit about 60 ms. The deadline
/// also covers work that neither of them counts.
const MASK_TIME: Duration = Duration::from_secs(2);

/// The masks that are being computed, and the thread that watches them.
#[derive(Default)]
struct Watch {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    masks: Vec<(u64, Instant, CancellationHandle)>,
    next: u64,
    /// Whether the watching thread waits without a deadline and must be woken.
    is_idle: bool,
}

/// Computes a mask with `work`. At the deadline, cancels `handle`, which must interrupt `work`.
pub(super) fn within_deadline<T>(handle: Option<CancellationHandle>, work: impl FnOnce() -> T) -> T {
    match handle.zip(watch()) {
        Some((handle, watch)) => watch.within(MASK_TIME, handle, work),
        None => work(),
    }
}

/// Returns the watch of this process, or `None` if its thread cannot start.
fn watch() -> Option<&'static Watch> {
    static WATCH: OnceLock<Option<&'static Watch>> = OnceLock::new();
    *WATCH.get_or_init(Watch::start)
}

impl Watch {
    fn start() -> Option<&'static Self> {
        let watch: &'static Watch = Box::leak(Box::default());
        std::thread::Builder::new().name("masks".into()).spawn(|| watch.run()).is_ok().then_some(watch)
    }

    fn within<T>(&self, time: Duration, handle: CancellationHandle, work: impl FnOnce() -> T) -> T {
        let id = self.add(Instant::now() + time, handle);
        let done = work();
        self.lock().masks.retain(|(other, ..)| *other != id);
        done
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, deadline: Instant, handle: CancellationHandle) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let id = state.next;
        state.masks.push((id, deadline, handle));
        // If the thread is not idle, it already waits for an earlier deadline.
        if std::mem::take(&mut state.is_idle) {
            self.wake.notify_one();
        }
        id
    }

    /// Cancels late masks in an endless loop.
    fn run(&self) -> ! {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            state.masks.iter().filter(|(_, deadline, _)| *deadline <= now).for_each(|(.., handle)| handle.cancel());
            state.masks.retain(|(_, deadline, _)| *deadline > now);
            let first = state.masks.iter().map(|(_, deadline, _)| *deadline).min();
            state.is_idle = first.is_none();
            state = match first {
                Some(first) => self.wake.wait_timeout(state, first - now).unwrap_or_else(PoisonError::into_inner).0,
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_masks_are_cancelled() {
        let (watch, handle) = (Watch::start().unwrap(), CancellationHandle::default());
        watch.within(Duration::from_millis(1), handle.clone(), || {
            while !handle.is_cancelled() {
                std::thread::yield_now();
            }
        });
        let handle = CancellationHandle::default();
        watch.within(MASK_TIME, handle.clone(), || assert!(!handle.is_cancelled()));
        assert!(watch.lock().masks.is_empty());
    }
}
