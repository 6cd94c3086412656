//! Memory for activations: a single allocation that a step's tensors share.
//!
//! The same requests in the same order get the same addresses, so that a recorded step finds its tensors at the same
//! addresses. The device executes operations in order. A range can therefore be leased again as soon as the last
//! operation on it is queued.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use launch::{DeviceBuffer, Stream};

/// Alignment of leased ranges in bytes.
const ALIGNMENT: usize = 256;

/// The arena. Until it is [given memory](Arena::provide), it has no limit and no address, and only computes the memory
/// needed.
#[derive(Debug, Default)]
pub struct Arena(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    memory: Option<DeviceBuffer<u8>>,
    /// Begin and end of the leased ranges, in order.
    used: Vec<(usize, usize)>,
    /// The greatest end so far.
    peak: usize,
}

impl Arena {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases the first free range of `bytes` bytes. Returns `None` if there is none.
    pub fn lease(self: &Arc<Self>, bytes: usize) -> Option<Lease> {
        let mut state = self.state();
        let len = bytes.max(1).next_multiple_of(ALIGNMENT);
        let mut begin = 0;
        let mut at = state.used.len();
        for (i, &(from, to)) in state.used.iter().enumerate() {
            if from - begin >= len {
                at = i;
                break;
            }
            begin = to;
        }
        self.occupy(&mut state, at, begin, len)
    }

    /// Leases the range at `begin`. Returns `None` if it is not free.
    pub fn lease_at(self: &Arc<Self>, begin: usize, bytes: usize) -> Option<Lease> {
        let mut state = self.state();
        let len = bytes.max(1).next_multiple_of(ALIGNMENT);
        let at = state.used.partition_point(|range| range.0 < begin);
        let is_free = at.checked_sub(1).is_none_or(|before| state.used[before].1 <= begin)
            && state.used.get(at).is_none_or(|after| begin + len <= after.0);
        if is_free { self.occupy(&mut state, at, begin, len) } else { None }
    }

    fn occupy(self: &Arc<Self>, state: &mut State, at: usize, begin: usize, len: usize) -> Option<Lease> {
        let end = begin + len;
        if state.memory.as_ref().is_some_and(|memory| end > memory.len()) {
            return None;
        }
        state.used.insert(at, (begin, end));
        state.peak = state.peak.max(end);
        Some(Lease { arena: self.clone(), begin })
    }

    /// The number of bytes that suffices for all leases so far.
    pub fn peak(&self) -> usize {
        self.state().peak
    }

    /// Gives the arena its memory. There must be no leases.
    pub fn provide(&self, memory: DeviceBuffer<u8>) {
        let mut state = self.state();
        debug_assert!(state.used.is_empty());
        state.memory = Some(memory);
    }
}

/// A leased range of an arena. Dropping it frees the range.
#[derive(Debug)]
pub struct Lease {
    arena: Arc<Arena>,
    begin: usize,
}

impl Lease {
    /// The offset of the range in bytes.
    pub fn begin(&self) -> usize {
        self.begin
    }

    /// Its device address. Without memory, the arena's address counts as 0.
    pub fn address(&self) -> u64 {
        let base = self.arena.state().memory.as_ref().map_or(0, DeviceBuffer::address);
        base + self.begin as u64
    }

    /// Waits for the stream and copies the first bytes to `to`.
    ///
    /// # Errors
    /// An error of the driver, possibly caused by an earlier operation of the stream.
    pub fn download(&self, stream: &Stream, to: &mut [u8]) -> launch::Result<()> {
        match &self.arena.state().memory {
            Some(memory) => stream.download(memory.slice(self.begin..self.begin + to.len()), to),
            None => Ok(()),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.arena.state();
        if let Ok(at) = state.used.binary_search_by_key(&self.begin, |range| range.0) {
            state.used.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn the_first_range_that_is_large_enough_is_leased() {
        let arena = Arc::new(Arena::default());
        let [a, b, c] = [100, 300, 1].map(|bytes| arena.lease(bytes).unwrap());
        assert_eq!([&a, &b, &c].map(Lease::begin), [0, 256, 768]);
        drop(b);
        let small = arena.lease(256).unwrap();
        let large = arena.lease(512).unwrap();
        assert_eq!((small.begin(), large.begin()), (256, 1024));
        assert_eq!(arena.peak(), 1536);
        drop((a, c, small, large));
        assert_eq!(arena.lease(1).unwrap().begin(), 0);
    }

    #[test]
    fn a_freed_range_can_be_leased_again() {
        let arena = Arc::new(Arena::default());
        let first = arena.lease(256).unwrap();
        assert_eq!(arena.lease_at(256, 512).unwrap().begin(), 256);
        let behind = arena.lease_at(512, 256).unwrap();
        assert!(arena.lease_at(256, 512).is_none() && arena.lease_at(0, 1).is_none());
        drop((first, behind));
        assert!(arena.lease_at(0, 1024).is_some());
    }
}
