//! Memory for weights and the KV cache, in large pages where the system has them.
//!
//! Reading a matrix at the speed of memory crosses into a new 4 KiB page every tenth of a microsecond. The address
//! translation is not always done in time, particularly in a virtual machine, where it takes twice as many steps. Pages
//! of 2 MiB avoid this. Many matrices are smaller than that, so they share larger chunks of memory.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::{io, slice};

use bytemuck::{Pod, Zeroable};
use memmap2::{MmapMut, MmapOptions};

use super::threads::lock;
use checkpoint::{Error, Result};

/// Lines in a chunk: 64 MiB. Unused lines take no physical memory.
const CHUNK: usize = (64 << 20) / size_of::<Line>();

/// A cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [u8; 64]);

/// An allocator for the memory of weights.
#[derive(Default)]
pub(super) struct Pages {
    /// The current chunk, and the number of its lines already allocated.
    current: Mutex<Option<(Arc<Chunk>, usize)>>,
}

/// Cache lines with a single owner.
pub(super) struct Lines {
    start: *mut Line,
    len: usize,
    /// The chunk that contains them.
    _chunk: Arc<Chunk>,
}

struct Chunk {
    start: *mut Line,
    len: usize,
    _map: MmapMut,
}

// SAFETY: a chunk is process memory that is bound to no thread, and its lines are accessed only through `Lines`.
unsafe impl Send for Chunk {}
// SAFETY: as above. The shared fields, an address and a length, do not change.
unsafe impl Sync for Chunk {}
// SAFETY: lines have one owner, and their contents may be sent to any thread.
unsafe impl Send for Lines {}
// SAFETY: shared lines are only read.
unsafe impl Sync for Lines {}

impl Pages {
    /// Allocates `len` lines of zeros.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system has no memory for them.
    pub fn lines(&self, len: usize) -> Result<Lines> {
        let mut current = lock(&self.current);
        let (chunk, first) = match current.take() {
            Some((chunk, first)) if len <= chunk.len - first => (chunk, first),
            // If the system refuses a whole chunk, it may still have room for these lines.
            _ => (Arc::new(Chunk::new(len.max(CHUNK)).or_else(|_| Chunk::new(len))?), 0),
        };
        *current = Some((Arc::clone(&chunk), first + len));
        // SAFETY: the chunk has `len` lines from `first` on. Either this was just checked or the chunk was made for
        // them.
        Ok(Lines { start: unsafe { chunk.start.add(first) }, len, _chunk: chunk })
    }
}

impl Chunk {
    fn new(len: usize) -> Result<Self> {
        let refused = |e| Error::Memory(format!("{len} lines of 64 bytes for weights: {e}"));
        let mut map = anonymous(len * size_of::<Line>()).map_err(refused)?;
        Ok(Chunk { start: map.as_mut_ptr().cast(), len, _map: map })
    }
}

/// Maps `bytes` of private, zeroed memory. The system allocates each page on the first write.
pub fn anonymous(bytes: usize) -> io::Result<MmapMut> {
    let map = MmapOptions::new().len(bytes).map_anon()?;
    // Failure is ignored: without large pages, access is only slower.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

impl Deref for Lines {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        // SAFETY: the lines are within the chunk, which `self` keeps alive. Pages are aligned to lines, the system has
        // zeroed them, and any bytes are a valid `Line`. The lines have no other owner, and writing needs `&mut`.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// Prefetches the cache line at `at` into the second-level cache. Prefetching into the first level made decoding slower.
#[inline(always)]
pub(crate) fn prefetch<E>(at: *const E) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint. It accesses nothing and faults on no address, and SSE is part of every x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_zeroed_and_do_not_overlap() {
        let pages = Pages::default();
        let sizes = [0, 1, 100, CHUNK - 200, 300, CHUNK + 1, 0, 5];
        let mut all: Vec<Lines> = sizes.iter().map(|&len| pages.lines(len).unwrap()).collect();
        for (i, lines) in all.iter_mut().enumerate() {
            assert_eq!(lines.len(), sizes[i]);
            assert!(lines.first().into_iter().chain(lines.last()).all(|line| line.0 == [0; 64]));
            lines.fill(Line([i as u8 + 1; 64]));
        }
        drop(pages);
        for (i, lines) in all.iter().enumerate() {
            assert!(lines.iter().all(|line| line.0 == [i as u8 + 1; 64]), "lines {i}");
        }
    }

    #[test]
    fn an_impossible_size_is_refused() {
        assert!(matches!(Pages::default().lines(1 << 56), Err(Error::Memory(_))));
    }
}
