//! Bytes of the host's memory.

use std::ptr;

/// Bytes of the host's memory that a caller of the driver named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostBytes {
    address: usize,
    bytes: usize,
}

impl HostBytes {
    /// Names bytes, which may be none. `None` if there are some and the address is null.
    ///
    /// # Safety
    /// The bytes must be valid for reads, and for writes if the copy is to the host, until the copy that they are named for
    /// is done.
    pub unsafe fn new(address: usize, bytes: usize) -> Option<Self> {
        (address != 0 || bytes == 0).then_some(Self { address, bytes })
    }

    pub fn address(self) -> usize {
        self.address
    }

    /// A part of the bytes.
    pub fn part(self, offset: usize, bytes: usize) -> Self {
        assert!(offset + bytes <= self.bytes);
        Self { address: self.address + offset, bytes }
    }

    pub fn len(self) -> usize {
        self.bytes
    }

    /// A copy of the bytes.
    pub fn read(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        self.read_into(&mut bytes);
        bytes
    }

    /// Copies the bytes to memory of the emulator.
    pub fn read_into(self, to: &mut [u8]) {
        assert_eq!(to.len(), self.bytes);
        if self.bytes != 0 {
            // SAFETY: `new` was promised that the bytes are valid for reads until the copy is done, which this is part of. `to`
            // is memory of the emulator, which does not overlap them, and it has the same length.
            unsafe {
                ptr::copy_nonoverlapping(ptr::with_exposed_provenance(self.address), to.as_mut_ptr(), self.bytes)
            };
        }
    }

    /// Overwrites the bytes with as many others.
    pub fn write(self, from: &[u8]) {
        assert_eq!(from.len(), self.bytes);
        if self.bytes != 0 {
            // SAFETY: `new` was promised that the bytes are valid for writes until the copy is done, which this is part of.
            // `from` is memory of the emulator, which does not overlap them, and it has the same length.
            unsafe {
                ptr::copy_nonoverlapping(from.as_ptr(), ptr::with_exposed_provenance_mut(self.address), self.bytes)
            };
        }
    }
}
