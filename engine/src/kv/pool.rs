//! The pool of physical blocks: a handle that the scheduler and all block tables share.

mod blocks;
mod integrity;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) use self::blocks::Blocks;
use super::layout::blocks_for;
use super::log::{BlockEvent, Logger, SharedLog, Space};
use super::prefix::Prefix;
use super::usage::PoolUsage;

/// All physical blocks of a KV cache. Clones are handles to the same pool.
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
    /// A pool of `num_blocks` free blocks of `block_size` tokens each.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        BlockPool::with_window(num_blocks, block_size, None)
    }

    /// As [`BlockPool::new`], for a model with sliding-window attention in every layer. A token sees the last `window`
    /// tokens, itself included.
    pub fn with_window(num_blocks: usize, block_size: usize, window: Option<usize>) -> Self {
        let window = window.map(|window| window.max(1));
        let num_ids = u32::try_from(num_blocks).unwrap_or(u32::MAX);
        let blocks = Mutex::new(Blocks::new(num_ids, block_size));
        BlockPool { shared: Arc::new(Shared { block_size, num_blocks: num_ids as usize, window, blocks }) }
    }

    /// Sends all later block events to `log`.
    pub fn set_log(&self, log: SharedLog, space: Space) {
        self.blocks().log = Some(Logger { log, space });
    }

    /// Records in the log that a step was scheduled.
    pub fn record_step(&self) {
        let blocks = self.blocks();
        blocks.record(BlockEvent::Step(blocks.usage()));
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.shared.block_size
    }

    /// The attention window: how many tokens a token sees, itself included. `None` if it sees all.
    pub fn window(&self) -> Option<usize> {
        self.shared.window
    }

    /// The number of blocks that a sequence of `tokens` tokens needs at a time, if at most `chunk` tokens are computed
    /// per step. Without a window these are all its blocks. With one, they are the blocks of the chunk and of the
    /// window of the chunk's first token.
    pub fn blocks_at_once(&self, tokens: usize, chunk: usize) -> usize {
        let size = self.block_size();
        let all = blocks_for(tokens, size);
        // The window may begin anywhere in a block.
        self.window().map_or(all, |window| all.min(blocks_for(window - 1 + chunk.max(1) - 1, size) + 1))
    }

    /// Blocks in the pool, free or not.
    pub fn num_blocks(&self) -> usize {
        self.shared.num_blocks
    }

    /// Blocks without references, including cached ones.
    pub fn num_free(&self) -> usize {
        self.blocks().num_free()
    }

    /// Cached blocks, in ascending order: no references, but still found by prefix lookups.
    pub fn cached(&self) -> Vec<u32> {
        self.blocks().cached()
    }

    /// The registered blocks, in ascending order, each with the prefix whose last tokens it holds.
    pub fn registered(&self) -> Vec<(u32, Arc<Prefix>)> {
        self.blocks().registered.all().map(|(block, prefix)| (block, prefix.clone())).collect()
    }

    /// The reference count of each block.
    pub fn references(&self) -> Vec<u32> {
        self.blocks().uses.iter().map(|block| block.refs).collect()
    }

    /// How much of the pool is in use.
    pub fn usage(&self) -> PoolUsage {
        self.blocks().usage()
    }

    /// Whether both are handles to the same pool.
    pub fn is(&self, other: &BlockPool) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Empties the prefix index. Called after a step failed that was to fill some of the blocks.
    pub fn reset_prefix_cache(&self) {
        self.blocks().reset_prefix_cache();
    }

    /// Locks the blocks.
    pub(super) fn blocks(&self) -> MutexGuard<'_, Blocks> {
        // Every operation leaves the blocks consistent, so a poisoned lock can be ignored.
        self.shared.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
