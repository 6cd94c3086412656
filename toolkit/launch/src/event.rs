//! Events: points in a stream.

use crate::code::{check, is_done};
use crate::context::Context;
use crate::error::Result;
use crate::stream::Stream;
use cust::sys::{self, CUevent};
use std::ptr::null_mut;
use std::time::Duration;

/// A point in a stream that other streams and the host can wait for.
#[derive(Debug)]
pub struct Event {
    raw: CUevent,
    context: Context,
}

// SAFETY: events are not tied to a thread, and any thread may call the driver functions.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn as_raw(&self) -> CUevent {
        self.raw
    }

    /// Creates an event that is not recorded yet.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if the driver call fails.
    pub fn new(context: &Context) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: the pointer is valid for the event.
        context.call("creation of an event", || check(unsafe { sys::cuEventCreate(&mut raw, 0) }))?;
        Ok(Self { raw, context: context.clone() })
    }

    /// Records the event in a stream, after all work queued so far.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if the driver call fails.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the event and the stream are alive.
        self.context.call("record of an event", || check(unsafe { sys::cuEventRecord(self.raw, stream.as_raw()) }))
    }

    /// Waits until the stream has reached the event.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        self.context.call("work before an event", || check(unsafe { sys::cuEventSynchronize(self.raw) }))
    }

    /// Whether the stream has reached the event.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn is_reached(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        self.context.call("work before an event", || is_done(unsafe { sys::cuEventQuery(self.raw) }))
    }

    /// Returns the time from an earlier event to this one. Both must have been reached.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if an event was not recorded or not reached.
    pub fn since(&self, earlier: &Event) -> Result<Duration> {
        let mut milliseconds = 0.0;
        self.context.call("time between events", || {
            // SAFETY: the events are alive, and the pointer is valid for the result.
            check(unsafe { sys::cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw) })
        })?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }
}

impl Stream {
    /// Makes all later work of the stream wait for an event.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if the driver call fails.
    pub fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: the stream and the event are alive.
        self.context()
            .call("wait for an event", || check(unsafe { sys::cuStreamWaitEvent(self.as_raw(), event.as_raw(), 0) }))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is alive and is not used after this.
        let _ = self.context.call("destruction of an event", || check(unsafe { sys::cuEventDestroy_v2(self.raw) }));
    }
}
