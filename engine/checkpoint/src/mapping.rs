//! Bytes in pages of memory: those of a file, or their own.
//!
//! A file that becomes shorter while it is mapped, or whose disk fails, leaves pages that cannot be read: the system then
//! ends the process by SIGBUS, which nothing that reads the memory can prevent. So that a process can at least say which
//! file that was, every mapping of a file is entered in a list, where [`file_at`] looks addresses up. A signal's handler
//! may do so: the list only ever grows, and reading it takes no lock and no memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::iter::successors;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use memmap2::{Mmap, MmapMut, MmapOptions};

/// The file that is mapped at an address of this process; nothing if none is. Safe to call in a signal's handler.
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
    /// `len` bytes of `file` from `offset` on. They cost no memory of their own: the system reads them when they are used.
    /// The caller has found that the file, whose path is `path`, is long enough.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn of_file(file: &File, path: &Path, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: the map is private and read-only, and the range lay within the file when it was opened. If another
        // process shortens the file, reading ends this process (see the module) and gives no bytes that are not there;
        // if one writes to it, weights are other weights.
        let map = unsafe { MmapOptions::new().offset(offset).len(len).map(file) }?;
        let entry = enter(path, &map);
        Ok(Mapping { map, entry: Some(entry) })
    }

    /// A copy of `len` bytes of `file` from `offset` on.
    ///
    /// # Errors
    /// If there is no memory for them, or the file cannot be read.
    pub fn copy_of_file(mut file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let mut map = MmapMut::map_anon(len)?;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(&mut map)?;
        Ok(Mapping { map: map.make_read_only()?, entry: None })
    }

    /// `len` zeros, which take no memory while they are only read.
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

/// A place in the list of mappings, which is never given back, but used again for the same file.
#[derive(Debug)]
struct Entry {
    path: &'static Path,
    /// The first address; [`FREE`] if nothing is mapped.
    start: AtomicUsize,
    /// The address after the last one.
    end: AtomicUsize,
    next: OnceLock<&'static Entry>,
}

/// The start of no mapping.
const FREE: usize = usize::MAX;

static FIRST: OnceLock<&'static Entry> = OnceLock::new();

fn entries() -> impl Iterator<Item = &'static Entry> {
    successors(FIRST.get(), |entry| entry.next.get()).copied()
}

/// Enters a mapping of the file at `path` in the list.
fn enter(path: &Path, map: &[u8]) -> &'static Entry {
    static WRITERS: Mutex<()> = Mutex::new(());
    // What the lock guards is whole at any time.
    let _turn = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    let range = map.as_ptr_range();
    let (start, end) = (range.start as usize, range.end as usize);
    let (mut known, mut last) = (None, None);
    for entry in entries() {
        if entry.path == path {
            if entry.start.load(Ordering::Relaxed) == FREE {
                entry.set(start, end);
                return entry;
            }
            known = Some(entry.path);
        }
        last = Some(entry);
    }
    let path = known.unwrap_or_else(|| Box::leak(path.into()));
    let (start, end) = (AtomicUsize::new(start), AtomicUsize::new(end));
    let new = &*Box::leak(Box::new(Entry { path, start, end, next: OnceLock::new() }));
    // No other thread has set it meanwhile, since this one holds the lock.
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
        let places = || entries().filter(|entry| entry.path == path).count();
        assert_eq!(places(), 2);
        drop(one);
        assert_eq!(file_at(two.as_ptr() as usize), Some(path.as_path()));
        // A place that is free is used again.
        let three = map(0, 100);
        assert_eq!((file_at(three.as_ptr() as usize), places()), (Some(path.as_path()), 2));
        drop((two, three));
        assert_eq!(entries().filter(|entry| entry.path == path && entry.contains(first)).count(), 0);
    }

    #[test]
    fn copies_are_not_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a file");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = File::open(&path).unwrap();
        let copy = Mapping::copy_of_file(&file, 3, 5).unwrap();
        std::fs::write(&path, b"").unwrap();
        assert_eq!(&*copy, b"34567");
        assert_eq!(file_at(copy.as_ptr() as usize), None);
        assert!(Mapping::copy_of_file(&file, 3, 5).is_err(), "the file has no such bytes any more");
    }
}
