//! The block table: maps a sequence's logical blocks to physical blocks.

use std::collections::HashSet;

use super::layout::blocks_for;
use super::log::BlockEvent;
use super::pool::{BlockPool, Blocks};
use super::prefix::PrefixId;
use crate::kv::BlockCopy;

/// There are too few free blocks. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBlocks;

/// The entry of a block that was given back because the window has left it behind. Block numbers are smaller, so it is
/// never used as one.
const FREED: u32 = u32::MAX;

/// A sequence's logical blocks in order, filled from left to right. Only the last may have free slots. The table owns a
/// reference to each of its blocks: cloning it shares them, and dropping it gives them back. If the model has a sliding
/// window, the first blocks may have been given back. The other blocks keep their indices.
#[derive(Debug)]
pub struct BlockTable {
    pool: BlockPool,
    blocks: Vec<u32>,
    /// The number of leading blocks that were given back.
    num_freed: usize,
    len: usize,
    /// The ids of the prefixes under which the first blocks are registered.
    prefixes: Vec<PrefixId>,
}

impl BlockTable {
    /// An empty table over `pool`.
    pub fn new(pool: &BlockPool) -> Self {
        BlockTable { pool: pool.clone(), blocks: Vec::new(), num_freed: 0, len: 0, prefixes: Vec::new() }
    }

    /// A table of the registered blocks of `pool` that hold the longest prefix of `tokens`. At least one token is left
    /// over, because only computing a token gives logits.
    pub fn prefix_hit(pool: &BlockPool, tokens: &[u32]) -> Self {
        let mut table = BlockTable::new(pool);
        let mut blocks = pool.blocks();
        for tokens in tokens[..tokens.len().saturating_sub(1)].chunks_exact(pool.block_size()) {
            let Some((id, block)) = blocks.find(table.prefixes.last().copied(), tokens) else { break };
            table.prefixes.push(id);
            table.blocks.push(block);
            table.len += tokens.len();
        }
        table
    }

    /// Continues a prefix hit in another pool: returns a table of the registered blocks of `pool` that follow this
    /// table's. Its length counts this table's tokens too, but their entries count as given back. The result is empty
    /// if `pool` has no further block.
    pub fn prefix_hit_beyond(&self, pool: &BlockPool, tokens: &[u32]) -> Self {
        let (size, skipped) = (pool.block_size(), self.blocks.len());
        let mut rest = BlockTable::new(pool);
        let mut blocks = pool.blocks();
        for tokens in tokens[..tokens.len().saturating_sub(1)].chunks_exact(size).skip(skipped) {
            let parent = rest.prefixes.last().or(self.prefixes.last()).copied();
            let Some((id, block)) = blocks.find(parent, tokens) else { break };
            rest.prefixes.push(id);
            rest.blocks.push(block);
        }
        drop(blocks);
        if !rest.blocks.is_empty() {
            rest.prefixes.splice(..0, self.prefixes.iter().copied());
            rest.blocks.splice(..0, std::iter::repeat_n(FREED, skipped));
            rest.num_freed = skipped;
            rest.len = rest.blocks.len() * size;
        }
        rest
    }

    /// Appends the blocks of `rest`, a result of [`Self::prefix_hit_beyond`] that is in the same pool by now. `rest`
    /// covers the same tokens and more, and owns none of the blocks that this table has.
    pub fn append(&mut self, mut rest: BlockTable) {
        debug_assert!(rest.pool.is(&self.pool) && self.len <= rest.len && self.blocks.len() <= rest.num_freed);
        // The window has passed the blocks that `rest` has given back, and so all blocks before them.
        if self.blocks.len() < rest.num_freed {
            self.release();
            self.blocks = rest.blocks[..rest.num_freed].to_vec();
            self.num_freed = rest.num_freed;
        }
        self.blocks.extend(rest.blocks.drain(rest.num_freed..));
        (self.len, self.prefixes) = (rest.len, std::mem::take(&mut rest.prefixes));
        rest.num_freed = rest.blocks.len();
    }

    /// Registers the full blocks under the sequence's `tokens`, for [`Self::prefix_hit`] to find. Slots beyond these
    /// tokens hold a draft, and their blocks stay unregistered.
    pub fn register(&mut self, tokens: &[u32]) {
        self.register_as_in(tokens, None);
    }

    /// As [`Self::register`]. If the pool `other` has registered the same tokens, both pools use the same prefix ids.
    pub fn register_as_in(&mut self, tokens: &[u32], other: Option<&BlockPool>) {
        let size = self.pool.block_size();
        let full = self.len.min(tokens.len()) / size;
        if self.prefixes.len() == full {
            return;
        }
        if self.prefixes.len() < self.num_freed {
            // A block could not be registered, so it has no id. Without its id the blocks after it cannot be registered
            // either.
            return;
        }
        for at in self.prefixes.len()..full {
            let (parent, own) = (self.prefixes.last().copied(), &tokens[at * size..(at + 1) * size]);
            let prefix = other.and_then(|pool| pool.blocks().registered_prefix(parent, own));
            let Some(id) = self.pool.blocks().register(self.blocks[at], parent, own, prefix) else { return };
            self.prefixes.push(id);
        }
    }

    /// The number of tokens that the table has slots for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no slots.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The physical blocks, in logical order. The first entries may be placeholders for blocks that were given back,
    /// see [`Self::slide`].
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The physical blocks that the table references, in logical order.
    pub fn live_blocks(&self) -> &[u32] {
        &self.blocks[self.num_freed..]
    }

    /// If the model has a sliding window, gives back the blocks that no later token sees.
    pub fn slide(&mut self) {
        self.slide_to(self.len);
    }

    /// As [`Self::slide`], for a sequence that already has `tokens` tokens, in this table and in others.
    pub fn slide_to(&mut self, tokens: usize) {
        let out_of_window = self.num_out_of_window(tokens).min(self.blocks.len());
        if out_of_window > self.num_freed {
            let mut blocks = self.pool.blocks();
            for block in &mut self.blocks[self.num_freed..out_of_window] {
                blocks.release(std::mem::replace(block, FREED));
            }
            self.num_freed = out_of_window;
        }
    }

    /// Whether the table still has every block in the window of the token at position `tokens`.
    pub fn has_window_of(&self, tokens: usize) -> bool {
        self.num_freed <= self.num_out_of_window(tokens)
    }

    /// The number of leading blocks that are outside the window of the token at position `tokens`.
    fn num_out_of_window(&self, tokens: usize) -> usize {
        let first = self.pool.window().map_or(0, |window| (tokens + 1).saturating_sub(window));
        first / self.pool.block_size()
    }

    /// The pool of the blocks.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The slot of token `position` in the cache: `block * block_size + offset`.
    pub fn slot(&self, position: usize) -> u32 {
        let size = self.pool.block_size();
        self.blocks[position / size] * size as u32 + (position % size) as u32
    }

    /// Returns a second table over the same blocks. A shared block is copied only when a table writes to it (4.4).
    pub fn fork(&self) -> Self {
        self.fork_prefix(self.len)
    }

    /// Returns a second table over the blocks of the first `tokens` tokens. The table must still have their window.
    pub fn fork_prefix(&self, tokens: usize) -> Self {
        debug_assert!(tokens <= self.len && self.has_window_of(tokens));
        let num_blocks = blocks_for(tokens, self.pool.block_size());
        let num_full = tokens / self.pool.block_size();
        let fork = BlockTable {
            pool: self.pool.clone(),
            blocks: self.blocks[..num_blocks].to_vec(),
            num_freed: self.num_freed,
            len: tokens,
            prefixes: self.prefixes[..num_full.min(self.prefixes.len())].to_vec(),
        };
        let mut blocks = self.pool.blocks();
        fork.live_blocks().iter().for_each(|&block| blocks.acquire(block));
        fork
    }

    /// Replaces each block by its counterpart in `pool`, and takes references to the new blocks.
    pub(super) fn replace_blocks(&mut self, pool: &BlockPool, new: impl Fn(u32) -> u32) {
        let new: Vec<u32> = self.live_blocks().iter().map(|&block| new(block)).collect();
        self.release();
        self.pool = pool.clone();
        self.blocks.extend(new);
        let mut blocks = pool.blocks();
        self.live_blocks().iter().for_each(|&block| blocks.acquire(block));
    }

    /// Reserves slots for `tokens` more tokens of this table alone. A partly filled last block that is shared is
    /// replaced by a new block (copy-on-write). The backend must copy its contents before it writes the new tokens.
    pub fn reserve(&mut self, tokens: usize, copies: &mut Vec<BlockCopy>) -> Result<(), OutOfBlocks> {
        let size = self.pool.block_size();
        let mut blocks = self.pool.blocks();
        if needed(&blocks, [(&*self, tokens)]) > blocks.num_free() {
            return Err(OutOfBlocks);
        }
        if let Some(src) = self.writable_block(tokens).filter(|&block| blocks.num_refs(block) > 1) {
            let dst = blocks.allocate().ok_or(OutOfBlocks)?;
            copies.push(BlockCopy { src, dst });
            blocks.record(BlockEvent::Copy { src, dst });
            blocks.release(src);
            self.blocks.pop();
            self.blocks.push(dst);
        }
        let end = self.len + tokens;
        while self.blocks.len() < blocks_for(end, size) {
            self.blocks.push(blocks.allocate().ok_or(OutOfBlocks)?);
        }
        for (i, &block) in self.blocks.iter().enumerate().skip(self.len / size) {
            blocks.fill(block, (end - i * size).min(size));
        }
        self.len = end;
        Ok(())
    }

    /// Drops the last tokens and keeps the first `tokens`. The dropped tokens must be in unregistered blocks that no
    /// other table references, as those reserved after the last fork are.
    pub fn truncate(&mut self, tokens: usize) {
        let size = self.pool.block_size();
        debug_assert!(tokens <= self.len && self.prefixes.len() * size <= tokens && self.num_freed * size <= tokens);
        if tokens == self.len {
            return;
        }
        let mut blocks = self.pool.blocks();
        for block in self.blocks.drain(blocks_for(tokens, size)..).rev() {
            blocks.release(block);
        }
        if let Some(&last) = self.blocks.last().filter(|_| !tokens.is_multiple_of(size)) {
            blocks.unfill(last, tokens % size);
        }
        self.len = tokens;
    }

    /// The partly filled last block, if appending `tokens` tokens would write to it.
    fn writable_block(&self, tokens: usize) -> Option<u32> {
        let partial = !self.len.is_multiple_of(self.pool.block_size());
        self.blocks.last().copied().filter(|_| partial && tokens > 0)
    }

    /// Drops the table's references.
    fn release(&mut self) {
        if self.live_blocks().is_empty() {
            return;
        }
        let mut blocks = self.pool.blocks();
        // In reverse order: the first blocks are shared by most sequences and are to be evicted last.
        for block in self.blocks.drain(self.num_freed..).rev() {
            blocks.release(block);
        }
    }
}

impl Clone for BlockTable {
    fn clone(&self) -> Self {
        self.fork()
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        self.release();
    }
}

/// The number of free blocks that it takes to reserve the given numbers of tokens in all tables, one after the other:
/// new blocks, and copies of shared last blocks. The last table that writes to a shared block needs no copy.
pub fn blocks_needed<'a>(pool: &BlockPool, plan: impl IntoIterator<Item = (&'a BlockTable, usize)>) -> usize {
    needed(&pool.blocks(), plan)
}

fn needed<'a>(blocks: &Blocks, plan: impl IntoIterator<Item = (&'a BlockTable, usize)>) -> usize {
    let mut needed = 0;
    // Shared blocks, each with the number of references left to tables that have not written to it.
    let mut holders: Vec<(u32, usize)> = Vec::new();
    for (table, tokens) in plan {
        needed += blocks_for(table.len + tokens, table.pool.block_size()) - table.blocks.len();
        let Some(last) = table.writable_block(tokens).filter(|&block| blocks.num_refs(block) > 1) else { continue };
        let at = holders.iter().position(|h| h.0 == last).unwrap_or_else(|| {
            holders.push((last, blocks.num_refs(last)));
            holders.len() - 1
        });
        if holders[at].1 > 1 {
            holders[at].1 -= 1;
            needed += 1;
        }
    }
    needed
}

/// The number of different blocks that the tables reference.
pub fn distinct_blocks<'a>(tables: impl IntoIterator<Item = &'a BlockTable>) -> usize {
    tables.into_iter().flat_map(BlockTable::live_blocks).collect::<HashSet<&u32>>().len()
}

#[cfg(test)]
mod tests;
