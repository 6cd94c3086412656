//! The pool of physical blocks: a handle that the scheduler and all block tables share.

mod blocks;
mod integrity;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) use self::blocks::Blocks;
use super::layout::blocks_for;
use super::log::{BlockEvent, Logger, SharedLog, Space};
use super::prefix::Prefix;
use super::usage::PoolUsage;

/// All physical blocks of a KV cache. Cloning gives another handle on the same pool.
#[derive(Clone, Debug)]
pub struct BlockPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    block_size: usize,
    num_blocks: usize,
    window: Option<usize>,
    blocks: Mutex<Blocks>,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks of `block_size` tokens.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        BlockPool::with_window(num_blocks, block_size, None)
    }

    /// As [`BlockPool::new`], for a model in all of whose layers a token sees only the last `window` tokens, itself included.
    pub fn with_window(num_blocks: usize, block_size: usize, window: Option<usize>) -> Self {
        let window = window.map(|window| window.max(1));
        let num_ids = u32::try_from(num_blocks).unwrap_or(u32::MAX);
        let blocks = Mutex::new(Blocks::new(num_ids, block_size));
        BlockPool { shared: Arc::new(Shared { block_size, num_blocks: num_ids as usize, window, blocks }) }
    }

    /// Reports from now on what happens to blocks.
    pub fn set_log(&self, log: SharedLog, space: Space) {
        self.blocks().log = Some(Logger { log, space });
    }

    /// Notes in the log that a step was scheduled.
    pub fn record_step(&self) {
        let blocks = self.blocks();
        blocks.record(BlockEvent::Step(blocks.usage()));
    }

    /// Tokens a block holds.
    pub fn block_size(&self) -> usize {
        self.shared.block_size
    }

    /// How many tokens the model sees, the newest included; none if it sees all.
    pub fn window(&self) -> Option<usize> {
        self.shared.window
    }

    /// Blocks that a sequence of so many tokens needs at once, if at most `chunk` of them are computed at a time: all that it
    /// takes, or those in which the first token of a chunk sees something and those of the chunk.
    pub fn blocks_at_once(&self, tokens: usize, chunk: usize) -> usize {
        let size = self.block_size();
        let all = blocks_for(tokens, size);
        // A window begins anywhere in a block.
        self.window().map_or(all, |window| all.min(blocks_for(window - 1 + chunk.max(1) - 1, size) + 1))
    }

    /// Blocks in the pool, free or not.
    pub fn num_blocks(&self) -> usize {
        self.shared.num_blocks
    }

    /// Blocks without references, cached ones included.
    pub fn num_free(&self) -> usize {
        self.blocks().num_free()
    }

    /// Cached blocks: without references, but with contents that can still be found; ascending.
    pub fn cached(&self) -> Vec<u32> {
        self.blocks().cached()
    }

    /// The known blocks, ascending, each with the prefix whose last tokens it holds.
    pub fn known(&self) -> Vec<(u32, Arc<Prefix>)> {
        self.blocks().known.all().map(|(block, prefix)| (block, prefix.clone())).collect()
    }

    /// The reference count of each block.
    pub fn references(&self) -> Vec<u32> {
        self.blocks().uses.iter().map(|of| of.refs).collect()
    }

    /// How much of the pool is in use.
    pub fn usage(&self) -> PoolUsage {
        self.blocks().usage()
    }

    /// Whether both are handles on the same pool.
    pub fn is(&self, other: &BlockPool) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Forgets what blocks hold: a step that was to fill some of them failed.
    pub fn forget(&self) {
        self.blocks().forget();
    }

    /// Locks the blocks.
    pub(super) fn blocks(&self) -> MutexGuard<'_, Blocks> {
        // No operation leaves the blocks half done, so that a panic elsewhere does no harm.
        self.shared.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
