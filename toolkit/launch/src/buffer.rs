//! Device memory.

use crate::code::check;
use crate::context::Context;
use crate::error::Result;
use crate::stream::Stream;
use bytemuck::Pod;
use cuda_std::launch::{DevicePtr, DevicePtrMut};
use cust::sys::{self, CUdeviceptr};
use std::marker::PhantomData;

/// A buffer of `len` elements in device memory. Dropping it frees the memory after all earlier work has ended.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    /// The driver's address, or 0 if the buffer has no bytes.
    address: CUdeviceptr,
    len: usize,
    context: Context,
    element: PhantomData<T>,
}

// SAFETY: it only holds a device address, which the host never dereferences.
unsafe impl<T: Send> Send for DeviceBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for DeviceBuffer<T> {}

impl<T: Pod> DeviceBuffer<T> {
    /// Allocates a buffer with unspecified contents. The emulator reports kernels that read elements before they are
    /// written.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if the driver refuses, for example because memory is full.
    pub fn uninit(context: &Context, len: usize) -> Result<Self> {
        let mut address = 0;
        let bytes = len.saturating_mul(size_of::<T>());
        if bytes != 0 {
            let action = format!("allocation of {bytes} bytes of device memory");
            // SAFETY: the pointer is valid for the address.
            context.call(&action, || check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes) }))?;
        }
        Ok(Self { address, len, context: context.clone(), element: PhantomData })
    }

    /// Copies a slice to a new buffer with a stream, and waits for the copy.
    ///
    /// # Errors
    /// As [`uninit`](Self::uninit).
    pub fn from_slice(stream: &Stream, elements: &[T]) -> Result<Self> {
        let buffer = Self::uninit(stream.context(), elements.len())?;
        stream.upload(elements, &buffer)?;
        Ok(buffer)
    }

    /// Allocates a buffer that the stream fills with zero bits.
    ///
    /// # Errors
    /// As [`uninit`](Self::uninit).
    pub fn zeroed(stream: &Stream, len: usize) -> Result<Self> {
        let buffer = Self::uninit(stream.context(), len)?;
        stream.clear(&buffer)?;
        Ok(buffer)
    }

    /// Names the buffer for the emulator's fault messages. On a GPU this does nothing.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        if self.context.is_emulator() && self.context.make_current().is_ok() {
            let _ = emulator::driver::name_buffer(self.address, name); // cannot fail, since the context is current
        }
        self
    }

    /// Copies the elements to the host after the stream's earlier work, and waits for the copy.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if the copy or earlier work failed.
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>> {
        let mut elements = vec![T::zeroed(); self.len];
        stream.download(self, &mut elements)?;
        Ok(elements)
    }
}

impl<T> DeviceBuffer<T> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first element, for kernels that read it.
    pub fn as_ptr(&self) -> DevicePtr<T> {
        DevicePtr::from_address(self.address)
    }

    /// The address of the first element, for kernels that write it.
    pub fn as_mut_ptr(&self) -> DevicePtrMut<T> {
        DevicePtrMut::from_address(self.address)
    }

    /// The driver's address, or 0 if the buffer has no bytes.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: only this buffer frees its memory, and the call waits for kernels that use it.
            let _ = self.context.call("freeing of a buffer", || check(unsafe { sys::cuMemFree_v2(self.address) }));
        }
    }
}
