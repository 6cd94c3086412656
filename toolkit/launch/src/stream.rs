//! Streams: queues of work.

use crate::code::check;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::pinned::PinnedSlice;
use crate::slice::DeviceSlice;
use bytemuck::Pod;
use cust::stream::{Stream as Raw, StreamFlags};
use cust::sys::{self, CUresult, CUstream};

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
        self.context
            .call("wait for an event", || check(unsafe { sys::cuStreamWaitEvent(self.as_raw(), event.as_raw(), 0) }))
    }

    /// Copies a slice to a buffer and waits for it.
    ///
    /// # Errors
    /// [`Error::Length`] unless both have the same length, and [`Error::Cuda`].
    pub fn upload<'a, T: Pod>(&self, from: &[T], to: impl Into<DeviceSlice<'a, T>>) -> Result<()> {
        // SAFETY: the slice outlives the copy, which is waited for.
        unsafe { self.upload_async(from, to) }?;
        self.synchronize()
    }

    /// Copies a buffer to a slice and waits for it.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn download<'a, T: Pod>(&self, from: impl Into<DeviceSlice<'a, T>>, to: &mut [T]) -> Result<()> {
        let from = from.into();
        same_length(from.len(), to.len())?;
        // SAFETY: the slice outlives the copy, which is waited for.
        unsafe { self.copy_out(from, to.as_mut_ptr()) }?;
        self.synchronize()
    }

    /// Copies elements to the device when the stream comes to it, if they are in a [`PinnedBuffer`](crate::PinnedBuffer);
    /// else at once.
    ///
    /// # Safety
    /// Until the stream has come to it, the elements live and nobody writes to them.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub unsafe fn upload_async<'a, T: Pod>(&self, from: &[T], to: impl Into<DeviceSlice<'a, T>>) -> Result<()> {
        let to = to.into();
        same_length(from.len(), to.len())?;
        self.copy("copy to the device", to.bytes(), || {
            // SAFETY: both have so many bytes; the rest is the caller's promise.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to.address(), from.as_ptr().cast(), to.bytes(), self.as_raw()) }
        })
    }

    /// Copies to the first elements of pinned memory when the stream comes to it.
    ///
    /// # Safety
    /// Until the stream has come to it, both buffers live and nobody uses that part of the pinned one.
    ///
    /// # Errors
    /// [`Error::Length`] if the pinned memory is too short, and [`Error::Cuda`].
    pub unsafe fn download_async<'a, 'b, T: Pod>(
        &self,
        from: impl Into<DeviceSlice<'a, T>>,
        to: impl Into<PinnedSlice<'b, T>>,
    ) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        same_length(from.len(), from.len().min(to.len()))?;
        // SAFETY: there is room; the rest is the caller's promise.
        unsafe { self.copy_out(from, to.as_mut_ptr()) }
    }

    /// # Safety
    /// `to` has room for as many elements, and nobody uses it until the stream has come to the copy.
    unsafe fn copy_out<T: Pod>(&self, from: DeviceSlice<'_, T>, to: *mut T) -> Result<()> {
        self.copy("copy to the host", from.bytes(), || {
            // SAFETY: the caller's promise.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.address(), from.bytes(), self.as_raw()) }
        })
    }

    /// Copies within the device when the stream comes to it. The two may be of one buffer, but must not overlap.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn copy_within_device<'a, 'b, T: Pod>(
        &self,
        from: impl Into<DeviceSlice<'a, T>>,
        to: impl Into<DeviceSlice<'b, T>>,
    ) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        same_length(from.len(), to.len())?;
        self.copy("copy on the device", from.bytes(), || {
            // SAFETY: both have so many bytes; freeing either waits for the device.
            unsafe { sys::cuMemcpyDtoDAsync_v2(to.address(), from.address(), from.bytes(), self.as_raw()) }
        })
    }

    /// Fills with zeros when the stream comes to it.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn clear<'a, T: Pod>(&self, buffer: impl Into<DeviceSlice<'a, T>>) -> Result<()> {
        let slice = buffer.into();
        self.copy("fill of a buffer", slice.bytes(), || {
            // SAFETY: there are so many bytes; freeing them waits for the device.
            unsafe { sys::cuMemsetD8Async(slice.address(), 0, slice.bytes(), self.as_raw()) }
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
pub(crate) fn ready(code: CUresult) -> std::result::Result<bool, crate::code::Code> {
    if code == CUresult::CUDA_ERROR_NOT_READY { Ok(false) } else { check(code).map(|()| true) }
}
