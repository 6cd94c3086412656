//! Host memory that copies read and write, page-locked or pageable.

use super::result_code::{Result, ResultCode};
use crate::host_bytes::HostBytes;
use std::alloc::{self, Layout};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The page size of the host.
const PAGE: usize = 4096;

/// Mapped page-locked memory by address, with the id of the owning context. Kernels of all contexts may access it at
/// its host address.
static MAPPED: Mutex<BTreeMap<usize, (HostBytes, u32)>> = Mutex::new(BTreeMap::new());

fn lock_mapped() -> MutexGuard<'static, BTreeMap<usize, (HostBytes, u32)>> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the mapped page-locked memory whose owner satisfies `has`.
pub(super) fn mapped_memory(has: impl Fn(u32) -> bool) -> Vec<HostBytes> {
    lock_mapped().values().filter(|(_, owner)| has(*owner)).map(|(bytes, _)| *bytes).collect()
}

/// The id of the context that owns the mapped page-locked memory at an address, if any.
pub(super) fn owner_of_mapped(address: usize) -> Option<u32> {
    let before = lock_mapped().range(..=address).next_back().map(|(_, mapped)| *mapped);
    before.filter(|(bytes, _)| address < bytes.address() + bytes.len()).map(|(_, owner)| owner)
}

/// The page-locked memory of a context. Copies from and to it are asynchronous.
#[derive(Debug, Default)]
pub(super) struct PinnedMemory {
    allocated: BTreeMap<usize, Layout>,
    /// Program memory that was registered, as start and size.
    registered: BTreeMap<usize, usize>,
}

impl PinnedMemory {
    /// Allocates page-locked bytes and fills them with 0xcd, which marks bytes that were never written. If `mapped` gives
    /// an owning context, kernels can access them.
    pub fn allocate(&mut self, bytes: usize, mapped: Option<u32>) -> Result<usize> {
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| ResultCode::InvalidValue)?;
        if bytes == 0 {
            return Err(ResultCode::InvalidValue);
        }
        // SAFETY: the layout is not empty, because zero bytes were refused above.
        let address = unsafe { alloc::alloc(layout) };
        if address.is_null() {
            return Err(ResultCode::OutOfMemory);
        }
        // SAFETY: the allocation of this many bytes has just succeeded.
        unsafe { address.write_bytes(0xcd, bytes) };
        let address = address.expose_provenance();
        self.allocated.insert(address, layout);
        if let Some(owner) = mapped {
            // SAFETY: the memory has just been allocated and leaves the list before it is freed. `cuMemFreeHost`
            // requires that work using it has ended by then.
            let memory = unsafe { HostBytes::new(address, bytes) };
            lock_mapped().extend(memory.map(|memory| (address, (memory, owner))));
        }
        Ok(address)
    }

    pub fn free(&mut self, address: usize) -> Result<()> {
        let layout = self.allocated.remove(&address).ok_or(ResultCode::InvalidValue)?;
        lock_mapped().remove(&address);
        // SAFETY: only `allocate` adds to the list, with the layout of the allocation. The entry has just been removed,
        // so the memory is freed only once.
        unsafe { alloc::dealloc(ptr::with_exposed_provenance_mut(address), layout) };
        Ok(())
    }

    /// Page-locks memory of the program. If `mapped` gives an owning context, kernels can access it.
    pub fn register(&mut self, memory: HostBytes, mapped: Option<u32>) -> Result<()> {
        if memory.len() == 0 {
            return Err(ResultCode::InvalidValue);
        }
        if let Some(owner) = mapped {
            lock_mapped().insert(memory.address(), (memory, owner));
        }
        self.registered.insert(memory.address(), memory.len());
        Ok(())
    }

    pub fn unregister(&mut self, address: usize) -> Result<()> {
        self.registered.remove(&address).ok_or(ResultCode::InvalidValue)?;
        lock_mapped().remove(&address);
        Ok(())
    }

    /// The start and size of the page-locked memory around an address, and whether kernels can access it.
    pub fn around(&self, address: usize) -> Option<(usize, usize, bool)> {
        let allocated = self.allocated.range(..=address).next_back().map(|(&start, layout)| (start, layout.size()));
        let registered = self.registered.range(..=address).next_back().map(|(&start, &size)| (start, size));
        let holds = |&(start, size): &(usize, usize)| address < start + size;
        let (start, size) = allocated.filter(holds).or(registered.filter(holds))?;
        Some((start, size, lock_mapped().contains_key(&start)))
    }

    /// Whether all of these bytes are page-locked.
    pub fn contains(&self, memory: HostBytes) -> bool {
        let within = |(&start, size): (&usize, usize)| memory.address() + memory.len() <= start + size;
        let allocated = self.allocated.range(..=memory.address()).next_back();
        let registered = self.registered.range(..=memory.address()).next_back();
        allocated.is_some_and(|(start, layout)| within((start, layout.size())))
            || registered.is_some_and(|(start, &size)| within((start, size)))
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        for address in self.allocated.keys().copied().collect::<Vec<_>>() {
            let _ = self.free(address); // cannot fail: the address is in the list
        }
        for address in self.registered.keys().copied().collect::<Vec<_>>() {
            let _ = self.unregister(address); // as above
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    use super::*;

    fn bytes(address: usize, bytes: usize) -> HostBytes {
        // SAFETY: the tests read and write through it only while the memory is allocated, and only within it.
        unsafe { HostBytes::new(address, bytes) }.unwrap()
    }

    #[test]
    fn pinned_memory_has_exact_bounds() {
        let mut pinned = PinnedMemory::default();
        let at = pinned.allocate(100, None).unwrap();
        assert_eq!(bytes(at, 100).read(), [0xcd; 100]);
        assert!(pinned.contains(bytes(at + 10, 90)));
        assert!(!pinned.contains(bytes(at + 10, 91)) && !pinned.contains(bytes(at - 1, 2)));
        bytes(at + 4, 2).write(&[1, 2]);
        assert_eq!(bytes(at + 3, 4).read(), [0xcd, 1, 2, 0xcd]);
        pinned.free(at).unwrap();
        assert_eq!(pinned.free(at), Err(ResultCode::InvalidValue));
        assert!(!pinned.contains(bytes(at, 1)));

        let own = [7u8; 16];
        pinned.register(bytes(own.as_ptr() as usize, 16), None).unwrap();
        assert!(pinned.contains(bytes(own.as_ptr() as usize + 8, 8)));
        pinned.unregister(own.as_ptr() as usize).unwrap();
        assert!(!pinned.contains(bytes(own.as_ptr() as usize, 16)));
    }
}
