//! Memory of weights and of the KV cache, in large pages where the system has them.
//!
//! A matrix that is read from end to end at the rate of memory meets a new page of 4 KiB every tenth of a microsecond, and
//! the look-up of its address, which takes twice as many steps in a virtual machine, is not always done in time. Pages of
//! 2 MiB are larger than many a matrix: so matrices lie side by side in chunks of memory.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::{io, slice};

use bytemuck::{Pod, Zeroable};
use memmap2::{MmapMut, MmapOptions};

use super::threads::lock;
use checkpoint::{Error, Result};

/// Lines of a chunk: 64 MiB. What is not used of them takes no memory.
const CHUNK: usize = (64 << 20) / size_of::<Line>();

/// A cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [u8; 64]);

/// Where weights get their memory.
#[derive(Default)]
pub(super) struct Pages {
    /// The chunk that is in use, and its lines that have been given away.
    current: Mutex<Option<(Arc<Chunk>, usize)>>,
}

/// Lines that nobody else has.
pub(super) struct Lines {
    start: *mut Line,
    len: usize,
    /// What they are part of.
    _chunk: Arc<Chunk>,
}

struct Chunk {
    start: *mut Line,
    len: usize,
    _map: MmapMut,
}

// SAFETY: a chunk is memory of the process, bound to no thread; its lines are reached through `Lines` alone.
unsafe impl Send for Chunk {}
// SAFETY: as above; what is shared, an address and a length, does not change.
unsafe impl Sync for Chunk {}
// SAFETY: lines belong to one owner, and what they hold may go to any thread.
unsafe impl Send for Lines {}
// SAFETY: shared lines are only read.
unsafe impl Sync for Lines {}

impl Pages {
    /// `len` lines of zeros.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system has no memory for them.
    pub fn lines(&self, len: usize) -> Result<Lines> {
        let mut current = lock(&self.current);
        let (chunk, first) = match current.take() {
            Some((chunk, first)) if len <= chunk.len - first => (chunk, first),
            // A system that refuses a chunk may have room for these lines.
            _ => (Arc::new(Chunk::new(len.max(CHUNK)).or_else(|_| Chunk::new(len))?), 0),
        };
        *current = Some((Arc::clone(&chunk), first + len));
        // SAFETY: the chunk has so many lines from `first` on, as has been checked, or it was made for them.
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

/// Zeros in memory that the process has to itself, which the system gives when it is first written to.
pub fn anonymous(bytes: usize) -> io::Result<MmapMut> {
    let map = MmapOptions::new().len(bytes).map_anon()?;
    // A wish: without large pages it is only slower.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

impl Deref for Lines {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        // SAFETY: these lines are within the chunk, which lives as long as this; pages begin at multiples of a line, the
        // system has filled them with zeros, and any bytes are lines. Nobody else has them, and who writes needs `&mut`.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_zeros_and_apart() {
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
    fn what_no_machine_has_is_refused() {
        assert!(matches!(Pages::default().lines(1 << 56), Err(Error::Memory(_))));
    }
}
