//! Page-locked host memory.

use crate::code::check;
use crate::context::Context;
use crate::error::Result;
use bytemuck::Pod;
use cust::sys;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{NonNull, null_mut};
use std::slice;

/// A buffer of `len` elements in page-locked host memory, which the device can copy from and to asynchronously. It
/// dereferences to a slice.
#[derive(Debug)]
pub struct PinnedBuffer<T> {
    elements: NonNull<T>,
    len: usize,
    context: Context,
}

// SAFETY: it owns its elements.
unsafe impl<T: Send> Send for PinnedBuffer<T> {}
// SAFETY: as above. A shared buffer only gives out shared references.
unsafe impl<T: Sync> Sync for PinnedBuffer<T> {}

impl<T: Pod> PinnedBuffer<T> {
    /// Allocates elements of zero bits.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if the driver refuses, for example because memory is full.
    pub fn zeroed(context: &Context, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>());
        let mut address = null_mut();
        if bytes != 0 {
            let action = format!("allocation of {bytes} bytes of pinned memory");
            // SAFETY: the pointer is valid for the address.
            context.call(&action, || check(unsafe { sys::cuMemAllocHost_v2(&mut address, bytes) }))?;
            // SAFETY: the memory was just allocated with this size.
            unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        }
        let elements = NonNull::new(address.cast()).unwrap_or(NonNull::dangling());
        Ok(Self { elements, len, context: context.clone() })
    }

    /// Copies a slice to a new buffer.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn from_slice(context: &Context, elements: &[T]) -> Result<Self> {
        let mut buffer = Self::zeroed(context, elements.len())?;
        buffer.copy_from_slice(elements);
        Ok(buffer)
    }
}

/// A part of a [`PinnedBuffer`] as the target of a device copy. A reference to a buffer converts to all of it.
#[derive(Clone, Copy, Debug)]
pub struct PinnedSlice<'a, T> {
    first: NonNull<T>,
    len: usize,
    buffer: PhantomData<&'a PinnedBuffer<T>>,
}

impl<T> PinnedBuffer<T> {
    /// Returns the elements in a range, for copies that run while the buffer is shared.
    ///
    /// # Panics
    /// Panics if the range is not within the buffer.
    pub fn part(&self, range: Range<usize>) -> PinnedSlice<'_, T> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        // SAFETY: the start is within the buffer or one past its end.
        let first = unsafe { self.elements.add(range.start) };
        PinnedSlice { first, len: range.len(), buffer: PhantomData }
    }
}

impl<'a, T> From<&'a PinnedBuffer<T>> for PinnedSlice<'a, T> {
    fn from(buffer: &'a PinnedBuffer<T>) -> Self {
        buffer.part(0..buffer.len)
    }
}

impl<T> PinnedSlice<'_, T> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        self.first.as_ptr()
    }
}

impl<T> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the pointer is to `len` initialised elements that live as long as the buffer.
        unsafe { slice::from_raw_parts(self.elements.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { slice::from_raw_parts_mut(self.elements.as_ptr(), self.len) }
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if self.len != 0 && size_of::<T>() != 0 {
            let address = self.elements.as_ptr().cast();
            // SAFETY: only this buffer frees its memory, and the call waits for copies that use it.
            let _ = self.context.call("freeing of pinned memory", || check(unsafe { sys::cuMemFreeHost(address) }));
        }
    }
}
