//! A numbered barrier of a block.

use super::clock::Gathering;

/// A numbered barrier of a block.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// Threads that have arrived.
    pub arrived: u32,
    /// Threads that must arrive; `None` means all that live.
    pub expected: Option<u32>,
    /// Threads that were asked about a predicate, and those that had it.
    pub voters: u32,
    pub votes: u32,
    /// The views of the threads that have arrived.
    pub views: Gathering,
}
