//! Memory of the device.

use crate::code::check;
use crate::context::Context;
use crate::error::Result;
use crate::stream::Stream;
use bytemuck::Pod;
use cuda_std::launch::{DevicePtr, DevicePtrMut};
use cust::sys::{self, CUdeviceptr};
use std::marker::PhantomData;

/// `len` elements in the device's memory. They are freed when it is dropped, after all work that was asked for before.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    /// The driver's address; 0 if there are no elements.
    address: CUdeviceptr,
    len: usize,
    context: Context,
    element: PhantomData<T>,
}

// SAFETY: it is an address of the device, which no thread of the host follows.
unsafe impl<T: Send> Send for DeviceBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for DeviceBuffer<T> {}

impl<T: Pod> DeviceBuffer<T> {
    /// Elements of which nothing is known. The emulator reports kernels that read them before they are written.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda), if there is not enough memory, too.
    pub fn uninit(context: &Context, len: usize) -> Result<Self> {
        let mut address = 0;
        let bytes = len.saturating_mul(size_of::<T>());
        if bytes != 0 {
            let action = format!("allocation of {bytes} bytes of device memory");
            // SAFETY: there is a place for the address.
            context.call(&action, || check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes) }))?;
        }
        Ok(Self { address, len, context: context.clone(), element: PhantomData })
    }

    /// A copy of a slice, made by a stream and waited for.
    ///
    /// # Errors
    /// As [`uninit`](Self::uninit).
    pub fn from_slice(stream: &Stream, elements: &[T]) -> Result<Self> {
        let buffer = Self::uninit(stream.context(), elements.len())?;
        stream.upload(elements, &buffer)?;
        Ok(buffer)
    }

    /// Elements of zero bits, once the stream comes to it.
    ///
    /// # Errors
    /// As [`uninit`](Self::uninit).
    pub fn zeroed(stream: &Stream, len: usize) -> Result<Self> {
        let buffer = Self::uninit(stream.context(), len)?;
        stream.clear(&buffer)?;
        Ok(buffer)
    }

    /// Gives it the name by which the emulator's faults call it. A GPU has no use for it.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        if self.context.is_emulator() && self.context.make_current().is_ok() {
            let _ = emulator::driver::name_buffer(self.address, name); // the context is current
        }
        self
    }

    /// A copy on the host, of what it holds when the stream comes to it; waited for.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda), also for work that failed.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first element, for a kernel that reads.
    pub fn as_ptr(&self) -> DevicePtr<T> {
        DevicePtr::from_address(self.address)
    }

    /// The address of the first element, for a kernel that writes.
    pub fn as_mut_ptr(&self) -> DevicePtrMut<T> {
        DevicePtrMut::from_address(self.address)
    }

    /// The address as the driver has it; 0 if there are no elements.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: nobody but this buffer frees its memory, and it waits for kernels that use it.
            let _ = self.context.call("end of a buffer", || check(unsafe { sys::cuMemFree_v2(self.address) }));
        }
    }
}
