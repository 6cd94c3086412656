//! The swap space as a second tier of the prefix cache: a cached block whose memory is needed moves there, and comes back
//! when a prefix look-up finds it.
//!
//! ```text
//!   cache:       held <----- find ----- cached --- evicted ---+
//!                  ^                                          | offload
//!                  | restore                                  v
//!   swap space:    +--------- find ------------------------ cached --- evicted: forgotten
//! ```
//!
//! Blocks of the swap space are those of a [`BlockPool`] like the cache's, with the same index of prefixes. What was offloaded
//! is cached there: it has no references, and makes way for groups that are swapped out. A block that is restored stays
//! cached in the swap space too, so that it need not move again when it is evicted again.

use super::moves::BlockCopy;
use super::pool::BlockPool;
use super::relocation::relocate;
use super::table::{BlockTable, OutOfBlocks};

/// The cache and the swap space below it, and what moves between them in the step that is being planned. Backends move
/// blocks out before they move any in. So a block of the swap space that a step reads or writes is held until the step's moves
/// are settled, and none is used for two of them.
#[derive(Debug)]
pub struct SwapTier {
    pool: BlockPool,
    swap: BlockPool,
    /// Blocks of the swap space that this step's moves read or write, a reference for each time.
    moving: Vec<u32>,
}

impl SwapTier {
    /// Keeps in `swap`, from now on, what is evicted from `pool`.
    pub fn new(pool: &BlockPool, swap: &BlockPool) -> Self {
        pool.blocks().keep_evicted();
        SwapTier { pool: pool.clone(), swap: swap.clone(), moving: Vec::new() }
    }

    /// Moves to the swap space what was evicted since the last call, the least recently used first. What finds no room there
    /// is forgotten. Returns how many blocks move.
    pub fn offload(&mut self, moves: &mut Vec<BlockCopy>) -> usize {
        let mut evicted = self.pool.blocks().take_evicted();
        if evicted.is_empty() {
            return 0;
        }
        {
            // What was computed again meanwhile will be evicted again.
            let pool = self.pool.blocks();
            evicted.retain(|(_, prefix)| pool.block_of(prefix).is_none());
        }
        let before = moves.len();
        let mut swap = self.swap.blocks();
        // The last ones were used last, and texts begin with them.
        let excess = evicted.len().saturating_sub(swap.num_free());
        for (src, prefix) in evicted.into_iter().skip(excess) {
            let Some((dst, must_move)) = swap.counterpart(Some(&prefix)) else { break };
            self.moving.push(dst);
            if must_move {
                swap.take_in(dst, src, &prefix);
                moves.push(BlockCopy { src, dst });
            }
        }
        moves.len() - before
    }

    /// Keeps the blocks of tables that are about to leave the swap space until the step's moves are settled: these still
    /// have to be read.
    pub fn hold<'a>(&mut self, tables: impl IntoIterator<Item = &'a BlockTable>) {
        let mut swap = self.swap.blocks();
        for table in tables {
            // From the end, so that the beginning is forgotten last.
            for &block in table.held().iter().rev() {
                swap.hold(block);
                self.moving.push(block);
            }
        }
    }

    /// Appends to `table` what is known of the rest of its text, see [`BlockTable::prefix_hit_beyond`]. What lies in the swap space
    /// moves to the cache; its contents follow when the backend makes the `moves`.
    ///
    /// # Errors
    /// If there are too few free blocks; the table is as it was then.
    pub fn restore(
        &mut self,
        table: &mut BlockTable,
        mut rest: BlockTable,
        moves: &mut Vec<BlockCopy>,
    ) -> Result<(), OutOfBlocks> {
        if !rest.pool().is(&self.pool) {
            self.hold([&rest]);
            relocate([&mut rest], &self.pool, moves)?;
        }
        table.append(rest);
        Ok(())
    }

    /// The moves of this step are complete. Blocks that it writes to are cached from now on.
    pub fn settle(&mut self) {
        let mut swap = self.swap.blocks();
        self.moving.drain(..).for_each(|block| swap.release(block));
    }
}
