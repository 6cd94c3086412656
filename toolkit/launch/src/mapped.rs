//! Page-locked memory of the host that kernels use in place.

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

/// For all contexts, and with an address for kernels: `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
const FLAGS: u32 = 1 | 2;

/// Words in the host's memory that host and devices read and write at the same time: for the host they are atomic.
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
    /// `len` words, all of them zero; at least one.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda), if there is not enough memory, too.
    pub fn zeroed(context: &Context, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<AtomicU32>());
        let mut address: *mut c_void = null_mut();
        let action = format!("allocation of {bytes} bytes of mapped memory");
        // SAFETY: there is a place for the address.
        context.call(&action, || check(unsafe { sys::cuMemHostAlloc(&mut address, bytes, FLAGS) }))?;
        // SAFETY: just allocated with this size.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        let words = NonNull::new(address.cast()).unwrap_or(NonNull::dangling());
        Ok(Self { words, len, context: context.clone() })
    }

    /// The address of the first word for kernels in a context, which may be on any device.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn address_in(&self, context: &Context) -> Result<DevicePtrMut<u32>> {
        let mut address = 0;
        context.call("query of a mapped address", || {
            // SAFETY: the memory was allocated as mapped, and there is a place for the answer.
            check(unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.words.as_ptr().cast(), 0) })
        })?;
        Ok(DevicePtrMut::from_address(address))
    }
}

impl Deref for MappedBuffer {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        // SAFETY: `len` words, all of them initialised, that live as long as the buffer; nobody accesses them otherwise than
        // atomically: the host by this type alone, and devices by words.
        unsafe { slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        let address = self.words.as_ptr().cast();
        // SAFETY: nobody but this buffer frees its memory.
        let _ = self.context.call("end of mapped memory", || check(unsafe { sys::cuMemFreeHost(address) }));
    }
}
