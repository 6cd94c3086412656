//! Ranges of host memory.

use std::ptr;

/// A range of host memory that a caller of the driver passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostBytes {
    address: usize,
    bytes: usize,
}

impl HostBytes {
    /// Creates a range, which may be empty. Returns `None` if it is not empty and the address is null.
    ///
    /// # Safety
    /// The bytes must be valid for reads until the copy that uses them is done. If the copy writes to the host, they
    /// must also be valid for writes until then.
    pub unsafe fn new(address: usize, bytes: usize) -> Option<Self> {
        (address != 0 || bytes == 0).then_some(Self { address, bytes })
    }

    pub fn address(self) -> usize {
        self.address
    }

    /// Returns a part of the range.
    pub fn part(self, offset: usize, bytes: usize) -> Self {
        assert!(offset + bytes <= self.bytes);
        Self { address: self.address + offset, bytes }
    }

    pub fn len(self) -> usize {
        self.bytes
    }

    /// Returns a copy of the bytes.
    pub fn read(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        self.read_into(&mut bytes);
        bytes
    }

    /// Copies the bytes to memory of the emulator of the same length.
    pub fn read_into(self, to: &mut [u8]) {
        assert_eq!(to.len(), self.bytes);
        if self.bytes != 0 {
            // SAFETY: the caller of `new` promised that the bytes are valid for reads until the copy is done, and this
            // is part of the copy. `to` is memory of the emulator, so it does not overlap them, and it has the same
            // length.
            unsafe {
                ptr::copy_nonoverlapping(ptr::with_exposed_provenance(self.address), to.as_mut_ptr(), self.bytes)
            };
        }
    }

    /// Overwrites the bytes with `from`, which must have the same length.
    pub fn write(self, from: &[u8]) {
        assert_eq!(from.len(), self.bytes);
        if self.bytes != 0 {
            // SAFETY: the caller of `new` promised that the bytes are valid for writes until the copy is done, and this
            // is part of the copy. `from` is memory of the emulator, so it does not overlap them, and it has the same
            // length.
            unsafe {
                ptr::copy_nonoverlapping(from.as_ptr(), ptr::with_exposed_provenance_mut(self.address), self.bytes)
            };
        }
    }
}
