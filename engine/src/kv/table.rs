//! The block table: from a sequence's logical blocks to physical ones.

use std::collections::HashSet;

use super::layout::blocks_for;
use super::log::BlockEvent;
use super::pool::{BlockPool, Blocks};
use super::prefix::PrefixId;
use crate::kv::BlockCopy;

/// There are not enough free blocks; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBlocks;

/// Stands for a block that was given back, since the window has left it behind. It is never read as a block: no block
/// has so high a number.
const GONE: u32 = u32::MAX;

/// A sequence's logical blocks in order, filled from left to right. Only the last may have free slots. The table holds a
/// reference to each of its blocks: cloning it shares them, dropping it gives them back. Where the pool's model sees only a
/// window, the first blocks may have been given back; the others keep their places.
#[derive(Debug)]
pub struct BlockTable {
    pool: BlockPool,
    blocks: Vec<u32>,
    /// Blocks that were given back, the first of all.
    gone: usize,
    len: usize,
    /// The prefixes by which the first blocks are known.
    names: Vec<PrefixId>,
}

impl BlockTable {
    /// An empty table over `pool`.
    pub fn new(pool: &BlockPool) -> Self {
        BlockTable { pool: pool.clone(), blocks: Vec::new(), gone: 0, len: 0, names: Vec::new() }
    }

    /// A table over the known blocks of `pool` that hold the first of `tokens`. At least one token is left over, since
    /// only computing it gives logits.
    pub fn prefix_hit(pool: &BlockPool, tokens: &[u32]) -> Self {
        let mut table = BlockTable::new(pool);
        let mut blocks = pool.blocks();
        for tokens in tokens[..tokens.len().saturating_sub(1)].chunks_exact(pool.block_size()) {
            let Some((name, block)) = blocks.find(table.names.last().copied(), tokens) else { break };
            table.names.push(name);
            table.blocks.push(block);
            table.len += tokens.len();
        }
        table
    }

    /// Goes on with `tokens` in another pool where this table, a prefix hit, ends: a table over the blocks that are known there. It
    /// is for the same tokens as this one and more; it does not hold the blocks of the former, which have their places in it. It
    /// is empty if nothing more is known.
    pub fn prefix_hit_beyond(&self, pool: &BlockPool, tokens: &[u32]) -> Self {
        let (size, gone) = (pool.block_size(), self.blocks.len());
        let mut rest = BlockTable::new(pool);
        let mut blocks = pool.blocks();
        for tokens in tokens[..tokens.len().saturating_sub(1)].chunks_exact(size).skip(gone) {
            let parent = rest.names.last().or(self.names.last()).copied();
            let Some((name, block)) = blocks.find(parent, tokens) else { break };
            rest.names.push(name);
            rest.blocks.push(block);
        }
        drop(blocks);
        if !rest.blocks.is_empty() {
            rest.names.splice(..0, self.names.iter().copied());
            rest.blocks.splice(..0, std::iter::repeat_n(GONE, gone));
            rest.gone = gone;
            rest.len = rest.blocks.len() * size;
        }
        rest
    }

    /// Goes on with the blocks of `rest`, which lie in the same pool by now: a table for the same tokens and more, which holds
    /// none of the blocks that this one has, see [`Self::prefix_hit_beyond`].
    pub fn append(&mut self, mut rest: BlockTable) {
        debug_assert!(rest.pool.is(&self.pool) && self.len <= rest.len && self.blocks.len() <= rest.gone);
        // What `rest` has given back is seen no more, and neither is anything before it.
        if self.blocks.len() < rest.gone {
            self.release();
            self.blocks = rest.blocks[..rest.gone].to_vec();
            self.gone = rest.gone;
        }
        self.blocks.extend(rest.blocks.drain(rest.gone..));
        (self.len, self.names) = (rest.len, std::mem::take(&mut rest.names));
        rest.gone = rest.blocks.len();
    }

    /// Makes the full blocks known by the sequence's `tokens`, so that [`Self::prefix_hit`] finds them. Slots beyond these
    /// tokens hold a draft, and their blocks stay unknown.
    pub fn register(&mut self, tokens: &[u32]) {
        self.register_beside(tokens, None);
    }

    /// As [`Self::register`], where the pool `beside` may know the same tokens: they have the same names in both then.
    pub fn register_beside(&mut self, tokens: &[u32], beside: Option<&BlockPool>) {
        let size = self.pool.block_size();
        let full = self.len.min(tokens.len()) / size;
        if self.names.len() == full {
            return;
        }
        if self.names.len() < self.gone {
            // A block that could not be made known has no name, and so what follows it cannot be known either.
            return;
        }
        for at in self.names.len()..full {
            let (parent, own) = (self.names.last().copied(), &tokens[at * size..(at + 1) * size]);
            let named = beside.and_then(|pool| pool.blocks().known_as(parent, own));
            let Some(name) = self.pool.blocks().register(self.blocks[at], parent, own, named) else { return };
            self.names.push(name);
        }
    }

    /// Tokens the table has slots for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no slots.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The physical blocks, in logical order. The first entries may stand for blocks that were given back, see
    /// [`Self::slide`].
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The physical blocks that the table holds, in logical order.
    pub fn held(&self) -> &[u32] {
        &self.blocks[self.gone..]
    }

    /// Gives the blocks back in which no token that is still to come sees anything, if the pool's model sees a window only.
    pub fn slide(&mut self) {
        self.slide_to(self.len);
    }

    /// As [`Self::slide`], where so many tokens are there, the table's own and others.
    pub fn slide_to(&mut self, tokens: usize) {
        let unseen = self.unseen(tokens).min(self.blocks.len());
        if unseen > self.gone {
            let mut blocks = self.pool.blocks();
            for block in &mut self.blocks[self.gone..unseen] {
                blocks.release(std::mem::replace(block, GONE));
            }
            self.gone = unseen;
        }
    }

    /// Whether the table still has every block that the token after the first `tokens` tokens sees.
    pub fn has_window_of(&self, tokens: usize) -> bool {
        self.gone <= self.unseen(tokens)
    }

    /// The first blocks in which the token after `tokens` tokens sees nothing.
    fn unseen(&self, tokens: usize) -> usize {
        let first = self.pool.window().map_or(0, |window| (tokens + 1).saturating_sub(window));
        first / self.pool.block_size()
    }

    /// The pool whose blocks these are.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Where token `position` lies in the cache: `block * block_size + offset`.
    pub fn slot(&self, position: usize) -> u32 {
        let size = self.pool.block_size();
        self.blocks[position / size] * size as u32 + (position % size) as u32
    }

    /// A second table over the same blocks. Copies nothing: the first to write to a shared block copies it (4.4).
    pub fn fork(&self) -> Self {
        self.fork_prefix(self.len)
    }

    /// A second table over the blocks of the first `tokens` tokens, whose window is there.
    pub fn fork_prefix(&self, tokens: usize) -> Self {
        debug_assert!(tokens <= self.len && self.has_window_of(tokens));
        let num_blocks = blocks_for(tokens, self.pool.block_size());
        let num_full = tokens / self.pool.block_size();
        let fork = BlockTable {
            pool: self.pool.clone(),
            blocks: self.blocks[..num_blocks].to_vec(),
            gone: self.gone,
            len: tokens,
            names: self.names[..num_full.min(self.names.len())].to_vec(),
        };
        let mut blocks = self.pool.blocks();
        fork.held().iter().for_each(|&block| blocks.hold(block));
        fork
    }

    /// Exchanges the blocks for as many of `pool`, to each of which the table gets a reference.
    pub(super) fn replace_blocks(&mut self, pool: &BlockPool, new: impl Fn(u32) -> u32) {
        let new: Vec<u32> = self.held().iter().map(|&block| new(block)).collect();
        self.release();
        self.pool = pool.clone();
        self.blocks.extend(new);
        let mut blocks = pool.blocks();
        self.held().iter().for_each(|&block| blocks.hold(block));
    }

    /// Makes room for `tokens` more tokens that only this table will see. A partly filled last block that is shared is
    /// replaced by a copy of its own, which the backend must make (copy-on-write) before it writes the new tokens.
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

    /// Takes back the last tokens, so that `tokens` are left. Of those taken back none may be known, nor lie in a block that
    /// another table holds: they were reserved after the last fork.
    pub fn truncate(&mut self, tokens: usize) {
        let size = self.pool.block_size();
        debug_assert!(tokens <= self.len && self.names.len() * size <= tokens && self.gone * size <= tokens);
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

    /// The partly filled last block, if `tokens` more tokens would write to it.
    fn writable_block(&self, tokens: usize) -> Option<u32> {
        let partial = !self.len.is_multiple_of(self.pool.block_size());
        self.blocks.last().copied().filter(|_| partial && tokens > 0)
    }

    /// Gives the blocks back that it holds.
    fn release(&mut self) {
        if self.held().is_empty() {
            return;
        }
        let mut blocks = self.pool.blocks();
        // From the end, since more sequences share the first blocks: these are to be forgotten last.
        for block in self.blocks.drain(self.gone..).rev() {
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

/// Free blocks it takes to reserve the given numbers of tokens in all the tables, one after the other: new blocks, and
/// copies of shared last blocks. The last to write to a block whose other holders have all left it needs no copy.
pub fn blocks_needed<'a>(pool: &BlockPool, plan: impl IntoIterator<Item = (&'a BlockTable, usize)>) -> usize {
    needed(&pool.blocks(), plan)
}

fn needed<'a>(blocks: &Blocks, plan: impl IntoIterator<Item = (&'a BlockTable, usize)>) -> usize {
    let mut needed = 0;
    // Shared blocks, each with the number of its holders that have not written yet.
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

/// How many blocks the tables hold, those that they share counted once.
pub fn distinct_blocks<'a>(tables: impl IntoIterator<Item = &'a BlockTable>) -> usize {
    tables.into_iter().flat_map(BlockTable::held).collect::<HashSet<&u32>>().len()
}

#[cfg(test)]
mod tests;
