//! A part of a device buffer.

use crate::buffer::DeviceBuffer;
use cuda_std::launch::{DevicePtr, DevicePtrMut};
use cust::sys::CUdeviceptr;
use std::marker::PhantomData;

/// `len` elements of a [`DeviceBuffer`]: what copies are from and to. A reference to a buffer converts to all of it.
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

    /// The address as the driver has it.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T> DeviceBuffer<T> {
    /// The elements of a range.
    ///
    /// # Panics
    /// If the range is not within the buffer.
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
