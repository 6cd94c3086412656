//! A numbered barrier of a block.

use super::clock::Gathering;

/// A numbered barrier of a block.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// Threads that have arrived.
    pub arrived: u32,
    /// Threads that must arrive. `None` means all living threads.
    pub expected: Option<u32>,
    /// Threads that took part in a vote. `votes` is the number whose predicate was true.
    pub voters: u32,
    pub votes: u32,
    /// The views of the threads that have arrived.
    pub views: Gathering,
}
