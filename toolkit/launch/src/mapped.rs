//! Page-locked host memory that kernels access in place.

use crate::code::check;
use crate::context::Context;
use crate::error::Result;
use cuda_std::launch::DevicePtrMut;
use cust::sys;
use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::AtomicU32;

/// Usable by all contexts and mapped for kernels: `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
const FLAGS: u32 = 1 | 2;

/// A buffer of words in host memory that host and devices may access at the same time. The host accesses them as
/// atomics.
#[derive(Debug)]
pub struct MappedBuffer {
    words: NonNull<AtomicU32>,
    len: usize,
    context: Context,
}

// SAFETY: it owns its words.
unsafe impl Send for MappedBuffer {}
// SAFETY: as above, and they are atomic.
unsafe impl Sync for MappedBuffer {}

impl MappedBuffer {
    /// Allocates `len` words of value zero. `len` must be at least one.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if the driver refuses, for example because memory is full.
    pub fn zeroed(context: &Context, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<AtomicU32>());
        let mut address: *mut c_void = null_mut();
        let action = format!("allocation of {bytes} bytes of mapped memory");
        // SAFETY: the pointer is valid for the address.
        context.call(&action, || check(unsafe { sys::cuMemHostAlloc(&mut address, bytes, FLAGS) }))?;
        // SAFETY: the memory was just allocated with this size.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        let words = NonNull::new(address.cast()).unwrap_or(NonNull::dangling());
        Ok(Self { words, len, context: context.clone() })
    }

    /// The address of the first word for kernels of a context, on any device.
    ///
    /// # Errors
    /// Returns [`Error::Cuda`](crate::Error::Cuda) if the driver call fails.
    pub fn address_in(&self, context: &Context) -> Result<DevicePtrMut<u32>> {
        let mut address = 0;
        context.call("query of a mapped address", || {
            // SAFETY: the memory was allocated as mapped, and the pointer is valid for the result.
            check(unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.words.as_ptr().cast(), 0) })
        })?;
        Ok(DevicePtrMut::from_address(address))
    }
}

impl Deref for MappedBuffer {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        // SAFETY: the pointer is to `len` initialised words that live as long as the buffer. All accesses are atomic:
        // the host accesses them only through this type, and devices access whole words.
        unsafe { slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        let address = self.words.as_ptr().cast();
        // SAFETY: only this buffer frees its memory.
        let _ = self.context.call("freeing of mapped memory", || check(unsafe { sys::cuMemFreeHost(address) }));
    }
}
