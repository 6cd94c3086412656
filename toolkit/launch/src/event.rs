//! Events: points in a stream.

use crate::code::{check, is_done};
use crate::context::Context;
use crate::error::Result;
use crate::stream::Stream;
use cust::sys::{self, CUevent};
use std::ptr::null_mut;
use std::time::Duration;

/// A point in a stream, for others to wait for.
#[derive(Debug)]
pub struct Event {
    raw: CUevent,
    context: Context,
}

// SAFETY: events belong to no thread, and the driver's functions may be called from any.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn as_raw(&self) -> CUevent {
        self.raw
    }

    /// A new event, recorded nowhere.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn new(context: &Context) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: there is a place for the event.
        context.call("creation of an event", || check(unsafe { sys::cuEventCreate(&mut raw, 0) }))?;
        Ok(Self { raw, context: context.clone() })
    }

    /// Marks the point that the stream has got to with what was asked of it so far.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: event and stream live.
        self.context.call("record of an event", || check(unsafe { sys::cuEventRecord(self.raw, stream.as_raw()) }))
    }

    /// Waits until the stream has come to it.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives.
        self.context.call("work before an event", || check(unsafe { sys::cuEventSynchronize(self.raw) }))
    }

    /// Whether the stream has come to it.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn is_reached(&self) -> Result<bool> {
        // SAFETY: the event lives.
        self.context.call("work before an event", || is_done(unsafe { sys::cuEventQuery(self.raw) }))
    }

    /// The time from an earlier event to this one. Both have been reached.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn since(&self, earlier: &Event) -> Result<Duration> {
        let mut milliseconds = 0.0;
        self.context.call("time between events", || {
            // SAFETY: the events live, and there is a place for the answer.
            check(unsafe { sys::cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw) })
        })?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }
}

impl Stream {
    /// Lets what is asked of the stream from now on wait for an event.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: stream and event live.
        self.context()
            .call("wait for an event", || check(unsafe { sys::cuStreamWaitEvent(self.as_raw(), event.as_raw(), 0) }))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event lives, for the last time.
        let _ = self.context.call("end of an event", || check(unsafe { sys::cuEventDestroy_v2(self.raw) }));
    }
}
