//! A part of a device buffer.

use crate::buffer::DeviceBuffer;
use cuda_std::launch::{DevicePtr, DevicePtrMut};
use cust::sys::CUdeviceptr;
use std::marker::PhantomData;

/// A range of elements of a [`DeviceBuffer`], as the source or target of a copy. A reference to a buffer converts to
/// all of it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a, T> {
    address: CUdeviceptr,
    len: usize,
    buffer: PhantomData<&'a DeviceBuffer<T>>,
}

impl<T> DeviceSlice<'_, T> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no elements.
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

    /// The driver's address.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T> DeviceBuffer<T> {
    /// Returns the elements in a range.
    ///
    /// # Panics
    /// Panics if the range is not within the buffer.
    pub fn slice(&self, range: std::ops::Range<usize>) -> DeviceSlice<'_, T> {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} elements", self.len());
        let address = self.address() + (range.start * size_of::<T>()) as CUdeviceptr;
        DeviceSlice { address, len: range.len(), buffer: PhantomData }
    }
}

impl<'a, T> From<&'a DeviceBuffer<T>> for DeviceSlice<'a, T> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        buffer.slice(0..buffer.len())
    }
}
