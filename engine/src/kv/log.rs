//! The block event log. Replaying a log gives the state of every block at every step.

use std::sync::{Arc, Mutex, PoisonError};

use super::PoolUsage;
use super::prefix::Prefix;

/// Which pool a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// The KV cache.
    Cache,
    /// The swap space in host memory.
    Swap,
}

/// The blocks of a group of layers in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The pool.
    pub space: Space,
    /// The index of the group.
    pub group: usize,
}

/// A change to one block of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// A free block was allocated. It has one reference and no filled slots.
    Allocate(u32),
    /// A reference was added. If the block was cached, it is in use again, and full.
    Share(u32),
    /// At least the first `slots` slots of a block hold tokens, or will when the step ends.
    Fill {
        /// The block.
        block: u32,
        /// The number of slots.
        slots: usize,
    },
    /// A full block was registered in the prefix index. When its last reference is dropped it becomes cached instead of
    /// merely free. Its contents are valid once the step ends.
    Register {
        /// The block.
        block: u32,
        /// The block's tokens and all tokens before them.
        prefix: Arc<Prefix>,
    },
    /// A reference was dropped. After the last one the block is cached if it is registered, and free otherwise.
    Free(u32),
    /// A cached block left the prefix index because it is about to be reused. Its contents may move to the swap space
    /// in the same step.
    Evict(u32),
    /// A block is copied within the pool, before the step writes its tokens.
    Copy {
        /// The block read.
        src: u32,
        /// The block written.
        dst: u32,
    },
    /// A block's contents move to this pool from the other one.
    Swap {
        /// The block of the other pool.
        src: u32,
        /// The block of this pool.
        dst: u32,
    },
    /// A step was scheduled. This is the state of the pool while it runs.
    Step(PoolUsage),
}

/// Receives the events of both pools, in order.
pub trait EventLog: Send {
    /// Receives an event of a block of a group of layers. The pool is locked during the call, so the implementation must
    /// not call the pool and should be quick.
    fn record(&mut self, space: Space, group: usize, event: BlockEvent);
}

/// An event log that both pools can write to.
pub type SharedLog = Arc<Mutex<dyn EventLog>>;

/// Writes a pool's events to a log.
#[derive(Clone)]
pub struct Logger {
    /// The log.
    pub log: SharedLog,
    /// The pool that the events belong to.
    pub space: Space,
}

impl Logger {
    /// Records an event of a group of this pool.
    pub fn record(&self, group: usize, event: BlockEvent) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).record(self.space, group, event);
    }
}

impl std::fmt::Debug for Logger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Logger({:?})", self.space)
    }
}
