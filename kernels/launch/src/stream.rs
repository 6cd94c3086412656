//! Streams and events.

use crate::buffer::DeviceBuffer;
use crate::code::check;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::pinned::PinnedBuffer;
use bytemuck::Pod;
use cust::stream::{Stream as Raw, StreamFlags};
use cust::sys::{self, CUevent, CUresult, CUstream};
use std::ptr::null_mut;
use std::time::Duration;

/// Work that a device does in order.
///
/// It is ordered with the driver's default stream, as all of `cust`'s are; nothing in this crate uses that one.
#[derive(Debug)]
pub struct Stream {
    raw: Raw,
    context: Context,
}

impl Stream {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let raw = context.call("creation of a stream", || Raw::new(StreamFlags::DEFAULT, None))?;
        Ok(Self { raw, context: context.clone() })
    }

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
    /// [`Error::Cuda`], also for work that failed: from then on the context can do nothing more.
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
        self.context.call("work on a stream", || ready(unsafe { sys::cuStreamQuery(self.as_raw()) }))
    }

    /// Lets what is asked of the stream from now on wait for an event.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: stream and event live.
        self.context.call("wait for an event", || check(unsafe { sys::cuStreamWaitEvent(self.as_raw(), event.raw, 0) }))
    }

    /// Copies a slice to a buffer and waits for it.
    ///
    /// # Errors
    /// [`Error::Length`] unless both have the same length, and [`Error::Cuda`].
    pub fn upload<T: Pod>(&self, from: &[T], to: &DeviceBuffer<T>) -> Result<()> {
        same_length(from.len(), to.len())?;
        // SAFETY: the slice outlives the copy, which is waited for.
        unsafe { self.copy_in(from, to) }?;
        self.synchronize()
    }

    /// Copies a buffer to a slice and waits for it.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn download<T: Pod>(&self, from: &DeviceBuffer<T>, to: &mut [T]) -> Result<()> {
        same_length(from.len(), to.len())?;
        // SAFETY: the slice outlives the copy, which is waited for.
        unsafe { self.copy_out(from, to.as_mut_ptr()) }?;
        self.synchronize()
    }

    /// Copies all of a pinned buffer to the device when the stream comes to it.
    ///
    /// # Safety
    /// Until then both buffers live, and nobody writes to the pinned one.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub unsafe fn upload_async<T: Pod>(&self, from: &PinnedBuffer<T>, to: &DeviceBuffer<T>) -> Result<()> {
        same_length(from.len(), to.len())?;
        // SAFETY: the caller's promise.
        unsafe { self.copy_in(from, to) }
    }

    /// Copies all of a buffer to pinned memory when the stream comes to it.
    ///
    /// # Safety
    /// Until then both buffers live, and nobody uses the pinned one.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub unsafe fn download_async<T: Pod>(&self, from: &DeviceBuffer<T>, to: &PinnedBuffer<T>) -> Result<()> {
        same_length(from.len(), to.len())?;
        // SAFETY: the caller's promise.
        unsafe { self.copy_out(from, to.as_mut_ptr()) }
    }

    /// # Safety
    /// The slice lives, and nobody writes to it, until the stream has come to the copy. The lengths are the same.
    unsafe fn copy_in<T: Pod>(&self, from: &[T], to: &DeviceBuffer<T>) -> Result<()> {
        let (address, bytes) = (from.as_ptr().cast(), size_of_val(from));
        self.copy("copy to the device", bytes, || {
            // SAFETY: the buffer has as many bytes; the rest is the caller's promise.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to.address(), address, bytes, self.as_raw()) }
        })
    }

    /// # Safety
    /// `to` has room for all of the buffer, and nobody uses it until the stream has come to the copy.
    unsafe fn copy_out<T: Pod>(&self, from: &DeviceBuffer<T>, to: *mut T) -> Result<()> {
        let bytes = from.len() * size_of::<T>();
        self.copy("copy to the host", bytes, || {
            // SAFETY: the caller's promise.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.address(), bytes, self.as_raw()) }
        })
    }

    /// Fills a buffer with zeros when the stream comes to it.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn clear<T: Pod>(&self, buffer: &DeviceBuffer<T>) -> Result<()> {
        let bytes = buffer.len() * size_of::<T>();
        self.copy("fill of a buffer", bytes, || {
            // SAFETY: the buffer has these bytes; freeing it waits for the device.
            unsafe { sys::cuMemsetD8Async(buffer.address(), 0, bytes, self.as_raw()) }
        })
    }

    fn copy(&self, action: &str, bytes: usize, copy: impl FnOnce() -> CUresult) -> Result<()> {
        if bytes == 0 { Ok(()) } else { self.context.call(action, || check(copy())) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.make_current(); // a context that has failed cannot destroy anything either
    }
}

fn same_length(from: usize, to: usize) -> Result<()> {
    if from == to { Ok(()) } else { Err(Error::Length { from, to }) }
}

/// The answer to a query.
fn ready(code: CUresult) -> std::result::Result<bool, crate::code::Code> {
    if code == CUresult::CUDA_ERROR_NOT_READY { Ok(false) } else { check(code).map(|()| true) }
}

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
    /// A new event, recorded nowhere.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn new(context: &Context) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: there is a place for the event.
        context.call("creation of an event", || check(unsafe { sys::cuEventCreate(&mut raw, 0) }))?;
        Ok(Self { raw, context: context.clone() })
    }

    /// Marks the point that the stream has got to with what was asked of it so far.
    ///
    /// # Errors
    /// [`Error::Cuda`].
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
        self.context.call("work before an event", || ready(unsafe { sys::cuEventQuery(self.raw) }))
    }

    /// The time from an earlier event to this one. Both have been reached.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn since(&self, earlier: &Event) -> Result<Duration> {
        let mut milliseconds = 0.0;
        self.context.call("time between events", || {
            // SAFETY: the events live, and there is a place for the answer.
            check(unsafe { sys::cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw) })
        })?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event lives, for the last time.
        let _ = self.context.call("end of an event", || check(unsafe { sys::cuEventDestroy_v2(self.raw) }));
    }
}
