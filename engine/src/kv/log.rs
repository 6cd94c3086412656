//! What happens to blocks, as it happens. From a log on, the state of every block at every step can be rebuilt.

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

/// Something that happened to a block of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// A free block was taken; it has one reference and no filled slots.
    Allocate(u32),
    /// A reference was added. A cached block is held again by it, and full.
    Share(u32),
    /// At least the first `slots` slots of a block hold tokens, or will when the step is over.
    Fill {
        /// The block.
        block: u32,
        /// Slots from its beginning.
        slots: usize,
    },
    /// A full block became known: without references it will be cached, and not merely free. Its contents are there when
    /// the step is over.
    Register {
        /// The block.
        block: u32,
        /// Its tokens, and those before it.
        prefix: Arc<Prefix>,
    },
    /// A reference was dropped. With the last of them the block is free, or cached if it is known.
    Free(u32),
    /// A cached block is no longer known; it is about to be allocated. What it held may move to the swap space in the same step.
    Evict(u32),
    /// A block is copied within the pool before the step's tokens are written.
    Copy {
        /// The block read.
        src: u32,
        /// The block written.
        dst: u32,
    },
    /// A block is moved to this pool from the other one.
    Swap {
        /// The block of the other pool.
        src: u32,
        /// The block of this pool.
        dst: u32,
    },
    /// A step was scheduled; this is the state of the pool as it runs.
    Step(PoolUsage),
}

/// Takes events in, in order, those of both pools.
pub trait EventLog: Send {
    /// Takes an event in. Called while the pool is locked: must not call it, and should be quick.
    fn record(&mut self, space: Space, event: BlockEvent);
}

/// A log that several can write to.
pub type SharedLog = Arc<Mutex<dyn EventLog>>;

/// A pool's way to the log.
#[derive(Clone)]
pub struct Logger {
    /// Where it goes.
    pub log: SharedLog,
    /// Which pool it is.
    pub space: Space,
}

impl Logger {
    /// Passes an event on.
    pub fn record(&self, event: BlockEvent) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).record(self.space, event);
    }
}

impl std::fmt::Debug for Logger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Logger({:?})", self.space)
    }
}
