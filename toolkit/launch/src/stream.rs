//! Streams: queues of work.

use crate::code::{check, is_done};
use crate::context::Context;
use crate::error::Result;
use cust::stream::{Stream as Raw, StreamFlags};
use cust::sys::{self, CUstream};

/// Work that a device does in order.
///
/// It is ordered with the driver's default stream, as all of `cust`'s are; nothing in this crate uses that one.
#[derive(Debug)]
pub struct Stream {
    raw: Raw,
    context: Context,
}

impl Context {
    /// A new stream.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn stream(&self) -> Result<Stream> {
        let raw = self.call("creation of a stream", || Raw::new(StreamFlags::DEFAULT, None))?;
        Ok(Stream { raw, context: self.clone() })
    }
}

impl Stream {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// `cust`'s stream: for what this one does not offer. Its context must be made current first.
    pub fn as_cust(&self) -> &Raw {
        &self.raw
    }

    pub(crate) fn as_raw(&self) -> CUstream {
        self.raw.as_inner()
    }

    /// Waits until all its work is done.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda), also for work that failed: from then on the context can do nothing more.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives.
        self.context.call("work on a stream", || check(unsafe { sys::cuStreamSynchronize(self.as_raw()) }))
    }

    /// Whether all its work is done.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream lives.
        self.context.call("work on a stream", || is_done(unsafe { sys::cuStreamQuery(self.as_raw()) }))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.make_current(); // a context that has failed cannot destroy anything either
    }
}
