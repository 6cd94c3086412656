//! Read-only memory mappings of files, and anonymous mappings.
//!
//! If a mapped file becomes shorter, or its disk fails, some of its pages can no longer be read. Reading them then ends
//! the process with SIGBUS, which no reader can prevent. So that the process can at least report which file caused it,
//! every mapping of a file is entered in a list, and [`file_at`] looks up addresses in it. A signal handler may call
//! it: the list only ever grows, and reading it takes no lock and allocates no memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::iter::successors;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use memmap2::{Mmap, MmapMut, MmapOptions};

/// Returns the file that is mapped at an address of this process, if any. Safe to call in a signal handler.
pub fn file_at(address: usize) -> Option<&'static Path> {
    entries().find(|entry| entry.contains(address)).map(|entry| entry.path)
}

/// Bytes in pages of memory that are never written.
#[derive(Debug)]
pub struct Mapping {
    map: Mmap,
    entry: Option<&'static Entry>,
}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on. The system reads them when they are accessed, so they cost no
    /// memory of their own. The caller must have checked that the file, whose path is `path`, is long enough.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn of_file(file: &File, path: &Path, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: the map is private and read-only, and the range was within the file when it was opened. If another
        // process shortens the file, reading it ends this process (see the module) but never returns bytes that do not
        // exist. If another process writes to the file, the weights change.
        let map = unsafe { MmapOptions::new().offset(offset).len(len).map(file) }?;
        let entry = enter(path, &map);
        Ok(Mapping { map, entry: Some(entry) })
    }

    /// Copies `len` bytes of `file` from `offset` on into memory.
    ///
    /// # Errors
    /// If there is no memory for them, or the file cannot be read.
    pub fn copy_of_file(mut file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let mut map = MmapMut::map_anon(len)?;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(&mut map)?;
        Ok(Mapping { map: map.make_read_only()?, entry: None })
    }

    /// Discards pages of a mapped file from memory. The next access reads them again. Other pages stay as they are.
    pub fn discard(&self, range: Range<usize>) {
        #[cfg(unix)]
        if self.entry.is_some() {
            let discard = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: a mapping with an entry is a private, read-only mapping of a file, so discarding its pages loses no
            // bytes: the next access reads them from the file, as the first one did. A failure changes nothing.
            let _ = unsafe { self.map.unchecked_advise_range(discard, range.start, range.len()) };
        }
    }

    /// Maps `len` zeros. They take no memory as long as they are only read.
    ///
    /// # Errors
    /// If there is not enough address space for them.
    pub fn zeros(len: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?.make_read_only()?;
        Ok(Mapping { map, entry: None })
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            entry.clear();
        }
    }
}

/// An entry in the list of mappings. It is never freed, but reused for the same file.
#[derive(Debug)]
struct Entry {
    path: &'static Path,
    /// The first address, or [`FREE`] if the entry is unused.
    start: AtomicUsize,
    /// The address after the last one.
    end: AtomicUsize,
    next: OnceLock<&'static Entry>,
}

/// The value of `start` in an unused entry.
const FREE: usize = usize::MAX;

static FIRST: OnceLock<&'static Entry> = OnceLock::new();

fn entries() -> impl Iterator<Item = &'static Entry> {
    successors(FIRST.get(), |entry| entry.next.get()).copied()
}

/// Enters a mapping of the file at `path` in the list.
fn enter(path: &Path, map: &[u8]) -> &'static Entry {
    static WRITERS: Mutex<()> = Mutex::new(());
    // Ignores poisoning: the list is consistent at all times.
    let _turn = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    let range = map.as_ptr_range();
    let (start, end) = (range.start as usize, range.end as usize);
    let (mut interned, mut last) = (None, None);
    for entry in entries() {
        if entry.path == path {
            if entry.start.load(Ordering::Relaxed) == FREE {
                entry.set(start, end);
                return entry;
            }
            interned = Some(entry.path);
        }
        last = Some(entry);
    }
    let path = interned.unwrap_or_else(|| Box::leak(path.into()));
    let (start, end) = (AtomicUsize::new(start), AtomicUsize::new(end));
    let new = &*Box::leak(Box::new(Entry { path, start, end, next: OnceLock::new() }));
    // Cannot fail: this thread holds the lock, so no other thread has set it.
    let _ = last.map_or(&FIRST, |last| &last.next).set(new);
    new
}

impl Entry {
    fn contains(&self, address: usize) -> bool {
        (self.start.load(Ordering::Acquire)..self.end.load(Ordering::Relaxed)).contains(&address)
    }

    fn set(&self, start: usize, end: usize) {
        self.end.store(end, Ordering::Relaxed);
        self.start.store(start, Ordering::Release);
    }

    fn clear(&self) {
        self.start.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn files_are_found_by_address_while_they_are_mapped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a file");
        std::fs::write(&path, [7; 10_000]).unwrap();
        let file = File::open(&path).unwrap();
        let map = |offset, len| Mapping::of_file(&file, &path, offset, len).unwrap();
        let (one, two) = (map(0, 5_000), map(8_192, 1_808));
        one.discard(0..4_096);
        assert!(one.iter().chain(two.iter()).all(|byte| *byte == 7));
        let range = one.as_ptr_range();
        let (first, past) = (range.start as usize, range.end as usize);
        assert_eq!(file_at(first), Some(path.as_path()));
        assert_eq!(file_at(past - 1), Some(path.as_path()));
        assert_eq!(file_at(two.as_ptr() as usize), Some(path.as_path()));
        assert_eq!(file_at(past), None);
        assert_eq!(file_at(0), None);
        assert_eq!(file_at(usize::MAX), None);
        assert_eq!(file_at(&raw const first as usize), None);
        let count = || entries().filter(|entry| entry.path == path).count();
        assert_eq!(count(), 2);
        drop(one);
        assert_eq!(file_at(two.as_ptr() as usize), Some(path.as_path()));
        // A free entry is reused.
        let three = map(0, 100);
        assert_eq!((file_at(three.as_ptr() as usize), count()), (Some(path.as_path()), 2));
        drop((two, three));
        assert_eq!(entries().filter(|entry| entry.path == path && entry.contains(first)).count(), 0);
    }

    #[test]
    fn copies_do_not_depend_on_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a file");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = File::open(&path).unwrap();
        let copy = Mapping::copy_of_file(&file, 3, 5).unwrap();
        std::fs::write(&path, b"").unwrap();
        assert_eq!(&*copy, b"34567");
        assert_eq!(file_at(copy.as_ptr() as usize), None);
        assert!(Mapping::copy_of_file(&file, 3, 5).is_err(), "the file no longer has these bytes");
    }
}
