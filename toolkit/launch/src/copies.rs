//! Copies to, from and within the device's memory, asked of a stream.

use crate::code::check;
use crate::error::{Error, Result};
use crate::pinned::PinnedSlice;
use crate::slice::DeviceSlice;
use crate::stream::Stream;
use bytemuck::Pod;
use cust::sys::{self, CUresult};

impl Stream {
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
            // SAFETY: both have so many bytes, and this function's contract keeps the elements until they are copied.
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
        // SAFETY: there is room, and this function's contract keeps both buffers until the copy is done.
        unsafe { self.copy_out(from, to.as_mut_ptr()) }
    }

    /// # Safety
    /// `to` has room for as many elements, and nobody uses it until the stream has come to the copy.
    unsafe fn copy_out<T: Pod>(&self, from: DeviceSlice<'_, T>, to: *mut T) -> Result<()> {
        self.copy("copy to the host", from.bytes(), || {
            // SAFETY: this function's contract: there is room, and nobody uses it before the copy is done.
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
        if bytes == 0 { Ok(()) } else { self.context().call(action, || check(copy())) }
    }
}

fn same_length(from: usize, to: usize) -> Result<()> {
    if from == to { Ok(()) } else { Err(Error::Length { from, to }) }
}
