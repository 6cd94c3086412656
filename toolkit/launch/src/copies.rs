//! Copies to, from and within device memory, queued in a stream.

use crate::code::check;
use crate::error::{Error, Result};
use crate::pinned::PinnedSlice;
use crate::slice::DeviceSlice;
use crate::stream::Stream;
use bytemuck::Pod;
use cust::sys::{self, CUresult};

impl Stream {
    /// Copies a slice to a buffer and waits for the copy.
    ///
    /// # Errors
    /// Returns [`Error::Length`] if the lengths differ, and [`Error::Cuda`] if the copy or earlier work failed.
    pub fn upload<'a, T: Pod>(&self, from: &[T], to: impl Into<DeviceSlice<'a, T>>) -> Result<()> {
        // SAFETY: the slice outlives the copy, because this function waits for it.
        unsafe { self.upload_async(from, to) }?;
        self.synchronize()
    }

    /// Copies a buffer to a slice and waits for the copy.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn download<'a, T: Pod>(&self, from: impl Into<DeviceSlice<'a, T>>, to: &mut [T]) -> Result<()> {
        let from = from.into();
        same_length(from.len(), to.len())?;
        // SAFETY: the slice outlives the copy, because this function waits for it.
        unsafe { self.copy_out(from, to.as_mut_ptr()) }?;
        self.synchronize()
    }

    /// Copies elements to the device. Elements in a [`PinnedBuffer`](crate::PinnedBuffer) are read when the stream
    /// reaches the copy, others before this returns.
    ///
    /// # Safety
    /// Until the stream has finished the copy, the elements must stay alive and unchanged.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub unsafe fn upload_async<'a, T: Pod>(&self, from: &[T], to: impl Into<DeviceSlice<'a, T>>) -> Result<()> {
        let to = to.into();
        same_length(from.len(), to.len())?;
        self.copy("copy to the device", to.bytes(), || {
            // SAFETY: both ranges have this many bytes, and this function's contract keeps the elements until they are
            // copied.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to.address(), from.as_ptr().cast(), to.bytes(), self.as_raw()) }
        })
    }

    /// Copies a device buffer to the start of pinned memory when the stream reaches the copy.
    ///
    /// # Safety
    /// Until the stream has finished the copy, both buffers must stay alive, and this part of the pinned one must not
    /// be used.
    ///
    /// # Errors
    /// Returns [`Error::Length`] if the pinned memory is too short, and [`Error::Cuda`] if a driver call fails.
    pub unsafe fn download_async<'a, 'b, T: Pod>(
        &self,
        from: impl Into<DeviceSlice<'a, T>>,
        to: impl Into<PinnedSlice<'b, T>>,
    ) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        same_length(from.len(), from.len().min(to.len()))?;
        // SAFETY: the pinned memory is long enough, and this function's contract keeps both buffers until the copy is
        // done.
        unsafe { self.copy_out(from, to.as_mut_ptr()) }
    }

    /// # Safety
    /// `to` must have room for as many elements as `from`, and must not be used until the stream has finished the copy.
    unsafe fn copy_out<T: Pod>(&self, from: DeviceSlice<'_, T>, to: *mut T) -> Result<()> {
        self.copy("copy to the host", from.bytes(), || {
            // SAFETY: this function's contract: `to` has room and is not used until the copy is done.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.address(), from.bytes(), self.as_raw()) }
        })
    }

    /// Copies within the device when the stream reaches the copy. Both slices may be in one buffer, but must not
    /// overlap.
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
            // SAFETY: both ranges have this many bytes, and freeing either waits for the device.
            unsafe { sys::cuMemcpyDtoDAsync_v2(to.address(), from.address(), from.bytes(), self.as_raw()) }
        })
    }

    /// Fills a buffer with zero bytes when the stream reaches the fill.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`] if the driver call fails.
    pub fn clear<'a, T: Pod>(&self, buffer: impl Into<DeviceSlice<'a, T>>) -> Result<()> {
        let slice = buffer.into();
        self.copy("fill of a buffer", slice.bytes(), || {
            // SAFETY: the range has this many bytes, and freeing it waits for the device.
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
