//! The swap space as a second tier of the prefix cache. When a cached block's memory is needed, its contents move to
//! the swap space. A prefix lookup that finds them there moves them back.
//!
//! ```text
//!   cache:      in use <----- find ----- cached --- evicted ---+
//!                  ^                                          | offload
//!                  | restore                                  v
//!   swap space:    +--------- find ------------------------ cached --- evicted: lost
//! ```
//!
//! The swap space is a [`BlockPool`] like the cache, with a prefix index of its own. Offloaded blocks are cached there:
//! they have no references, and groups that are swapped out may take them. A restored block stays cached in the swap
//! space too, so it need not move when it is evicted from the cache again.

use super::counts::Counts;
use super::hit::{PrefixHit, SwappedBlock};
use super::moves::BlockCopy;
use super::pool::{BlockPool, EvictedBlock};
use super::prefix::Text;
use super::table::{BlockTable, OutOfBlocks};

/// The cache, the swap space below it, and the blocks that move between them in the step being planned. Backends swap
/// blocks out before they swap any in. So the tier references every swap-space block that the step reads or writes
/// until the step's moves are settled, and no such block is used for two moves.
#[derive(Debug)]
pub struct SwapTier {
    pool: BlockPool,
    swap: BlockPool,
    /// Swap-space blocks that the moves of this step read or write, with their groups, once per reference.
    moving: Vec<(usize, u32)>,
}

impl SwapTier {
    /// Keeps all blocks that `pool` evicts from now on in `swap`.
    pub fn new(pool: &BlockPool, swap: &BlockPool) -> Self {
        pool.blocks().keep_evicted();
        SwapTier { pool: pool.clone(), swap: swap.clone(), moving: Vec::new() }
    }

    /// Moves the blocks evicted since the last call to the swap space and returns their number. If there is too little
    /// room, the least recently used ones are lost.
    pub fn offload(&mut self, moves: &mut Vec<BlockCopy>) -> usize {
        let mut evicted = self.pool.blocks().take_evicted();
        if evicted.is_empty() {
            return 0;
        }
        {
            // Tokens that were registered again since are skipped: their new block will be evicted in turn.
            let pool = self.pool.blocks();
            evicted.retain(|evicted| pool.find(evicted.group, &Text::from(&*evicted.prefix)).is_none());
        }
        let before = moves.len();
        let mut swap = self.swap.blocks();
        // Keep the last ones: they were used most recently and hold the beginnings of texts.
        let mut counts = Counts::default();
        let kept = evicted.iter().rev().take_while(|evicted| {
            counts.add(evicted.group, 1);
            swap.fits(&counts, 0)
        });
        let kept = kept.count();
        for evicted in &evicted[evicted.len() - kept..] {
            let EvictedBlock { group, block: src, ref prefix } = *evicted;
            let Some((dst, must_move)) = swap.counterpart(group, Some(&**prefix)) else { break };
            self.moving.push((group, dst));
            if must_move {
                swap.offload_in(dst, evicted);
                moves.push(BlockCopy { group: group as u32, src, dst });
            }
        }
        moves.len() - before
    }

    /// References the blocks of tables that are about to leave the swap space until the step's moves are settled. The
    /// backend still has to read them.
    pub fn keep_until_settled<'a>(&mut self, tables: impl IntoIterator<Item = &'a BlockTable>) {
        let mut swap = self.swap.blocks();
        for (group, lane) in tables.into_iter().flat_map(|table| table.lanes().iter().enumerate()) {
            // In reverse order, so that the first blocks of a text are evicted last.
            for block in lane.present().rev() {
                swap.acquire(group, block);
                self.moving.push((group, block));
            }
        }
    }

    /// Returns the table of a prefix hit, with all blocks in the cache. Blocks in the swap space move to the cache. Their
    /// contents arrive when the backend makes the `moves`.
    ///
    /// # Errors
    /// If too few blocks are free.
    pub fn restore(&mut self, hit: PrefixHit, moves: &mut Vec<BlockCopy>) -> Result<BlockTable, OutOfBlocks> {
        let (mut table, swapped) = hit.into_parts();
        let (mut pool, swap) = (self.pool.blocks(), self.swap.blocks());
        self.moving.extend(swapped.iter().rev().map(|swapped| (swapped.group, swapped.block)));
        for SwappedBlock { group, at, block: src } in swapped {
            let prefix = swap.prefix(group, src).map(AsRef::as_ref);
            let Some((dst, must_move)) = pool.counterpart(group, prefix) else {
                drop((pool, swap));
                return Err(OutOfBlocks);
            };
            if must_move {
                pool.move_in(group, dst, &swap, src);
                moves.push(BlockCopy { group: group as u32, src, dst });
            }
            table.put(group, at, dst);
        }
        drop((pool, swap));
        Ok(table)
    }

    /// Ends the planning of this step's moves. The swap-space blocks that it writes are cached from now on.
    pub fn settle(&mut self) {
        let mut swap = self.swap.blocks();
        self.moving.drain(..).for_each(|(group, block)| swap.release(group, block));
    }
}
