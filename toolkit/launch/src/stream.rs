//! Streams: queues of device work.

use crate::code::{check, is_done};
use crate::context::Context;
use crate::error::Result;
use cust::stream::{Stream as Raw, StreamFlags};
use cust::sys::{self, CUstream};

/// A queue of work that a device executes in order.
///
/// Like all streams of `cust`, it is ordered with the driver's default stream. This crate never uses the default
/// stream.
#[derive(Debug)]
pub struct Stream {
    raw: Raw,
    context: Context,
}

impl Context {
    /// Creates a stream.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if the driver call fails.
    pub fn stream(&self) -> Result<Stream> {
        let raw = self.call("creation of a stream", || Raw::new(StreamFlags::DEFAULT, None))?;
        Ok(Stream { raw, context: self.clone() })
    }
}

impl Stream {
    /// The context that the stream belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The underlying stream of `cust`, for features that this type lacks. Make its context current first.
    pub fn as_cust(&self) -> &Raw {
        &self.raw
    }

    pub(crate) fn as_raw(&self) -> CUstream {
        self.raw.as_inner()
    }

    /// Waits until all work of the stream is done.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if any work failed. The context is unusable from then on.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        self.context.call("work on a stream", || check(unsafe { sys::cuStreamSynchronize(self.as_raw()) }))
    }

    /// Whether all work of the stream is done.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is alive.
        self.context.call("work on a stream", || is_done(unsafe { sys::cuStreamQuery(self.as_raw()) }))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.make_current(); // if the context has failed, destroying the stream fails too
    }
}
