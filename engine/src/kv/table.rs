//! The block table: maps a sequence's logical blocks to physical blocks.

mod lane;
mod needed;
mod states;

use std::collections::HashSet;
use std::sync::Arc;

use self::lane::Lanes;
pub(super) use self::lane::num_out_of_window;
pub use self::lane::{Lane, NO_BLOCK};
use self::needed::add_needed;
pub use self::needed::blocks_needed;
pub use self::states::state_ends;
use self::states::{Checkpoints, own};
use super::counts::Counts;
use super::groups::blocks_for;
use super::pool::{BlockPool, Value};
use super::prefix::{PrefixId, Root, Text};
use crate::kv::BlockCopy;

/// There are too few free blocks. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBlocks;

/// A sequence's logical blocks in order, filled from left to right, in one lane for each group of layers. Only the last
/// block of a lane may have free slots. The table owns a reference to each of its blocks: cloning it shares them, and
/// dropping it gives them back. If a group has a sliding window, the first blocks of its lane may have been given back.
/// A lane of states has few blocks, see [`BlockTable::keep_states`].
#[derive(Debug)]
pub struct BlockTable {
    pool: BlockPool,
    lanes: Lanes,
    len: usize,
    /// The ids of the prefixes under which the first blocks are registered, the same in all lanes.
    prefixes: Vec<PrefixId>,
    /// What the sequence has in common with those that may share its blocks.
    root: Root,
    /// The number of first blocks that the groups without a window had when the sequence began. An earlier text has the
    /// same beginning, so later ones may have it too.
    branch: usize,
    /// The numbers of blocks after which the request asks for a state, ascending.
    asked: Option<Arc<[u32]>>,
}

impl BlockTable {
    /// An empty table over `pool`.
    pub fn new(pool: &BlockPool) -> Self {
        let lanes = pool.groups().iter().map(|_| Lane::default()).collect();
        let (prefixes, asked) = (Vec::new(), None);
        BlockTable { pool: pool.clone(), lanes, len: 0, prefixes, root: Root::default(), branch: 0, asked }
    }

    /// An empty table for a sequence with this root.
    pub fn with_root(pool: &BlockPool, root: Root) -> Self {
        let mut table = BlockTable::new(pool);
        table.root = root;
        table
    }

    /// A table of full blocks that the caller has references to. The prefixes are registered. `branch` is the number of
    /// blocks of the longest prefix that the groups without a window have.
    pub(super) fn of_blocks(
        pool: &BlockPool,
        lanes: Vec<Lane>,
        prefixes: Vec<PrefixId>,
        root: Root,
        branch: usize,
    ) -> Self {
        let (lanes, len) = (lanes.into_iter().collect(), prefixes.len() * pool.block_size());
        BlockTable { pool: pool.clone(), lanes, len, prefixes, root, branch, asked: None }
    }

    /// Keeps states of recurrent layers in spare memory, so that later prompts can resume. They include the states after
    /// these numbers of blocks, ascending. With `None`, keeps only the running state.
    pub fn keep_states(&mut self, ends: Option<&Arc<[u32]>>) {
        self.asked = ends.cloned();
    }

    /// Registers the full blocks under the sequence's `tokens`, for [`prefix_hit`](super::prefix_hit) to find. Slots beyond these
    /// tokens hold a draft, and their blocks stay unregistered. States are registered by [`Self::settle`].
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
        let lanes = self.lanes.iter().enumerate().filter(|(at, _)| !self.pool.groups()[*at].is_state());
        if lanes.clone().any(|(_, lane)| self.prefixes.len() < lane.num_freed) {
            // A block could not be registered, so it has no id. Without its id the blocks after it cannot be registered
            // either.
            return;
        }
        for at in self.prefixes.len()..full {
            let text = self.text_of(at, tokens);
            let prefix = other.and_then(|pool| pool.blocks().known(&text));
            let blocks = lanes.clone().map(|(group, lane)| (group, lane.blocks[at]));
            let Some(id) = self.pool.blocks().register(blocks, &text, prefix) else { return };
            self.prefixes.push(id);
        }
    }

    /// The text of the block with this index, which is full. The blocks before it are registered.
    fn text_of<'a>(&'a self, at: usize, tokens: &'a [u32]) -> Text<'a> {
        let size = self.pool.block_size();
        let parent = at.checked_sub(1).map(|before| self.prefixes[before]);
        self.root.text(parent, &tokens[at * size..(at + 1) * size])
    }

    /// The number of tokens that the table has slots for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no slots.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the table belongs to a long sequence, see [`BlockPool::is_long`].
    pub fn is_long(&self) -> bool {
        self.root.is_long
    }

    /// The lanes, one for each group of layers.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// The lane of a group of layers.
    pub fn lane(&self, group: usize) -> &Lane {
        &self.lanes[group]
    }

    /// The pages of the blocks that the table references, lane by lane in logical order, each once. With one group of
    /// layers, a page is a block.
    pub fn pages(&self) -> Vec<u32> {
        let mut seen = HashSet::new();
        let lanes = self.lanes.iter().zip(self.pool.groups());
        let pages = lanes.flat_map(|(lane, group)| lane.present().map(|block| block / group.blocks_per_page as u32));
        pages.filter(|page| seen.insert(*page)).collect()
    }

    /// The numbers of blocks that the table references.
    pub fn live_counts(&self) -> Counts {
        Counts::by(self.lanes.len(), |group| match self.pool.groups()[group].is_state() {
            true => self.lanes[group].present().count(),
            false => self.lanes[group].live_blocks().len(),
        })
    }

    /// The numbers of blocks that only this table references.
    pub fn sole_counts(&self) -> Counts {
        let blocks = self.pool.blocks();
        Counts::by(self.lanes.len(), |group| {
            self.lanes[group].present().filter(|&block| blocks.num_refs(group, block) == 1).count()
        })
    }

    /// Gives back the blocks that no later token sees, in groups with a sliding window.
    pub fn slide(&mut self) {
        self.slide_past(0, false);
    }

    /// As [`Self::slide`], for a sequence whose first `prompt` tokens may be asked again. The blocks from which such a
    /// request resumes are evicted later than others that the window has left behind. The blocks at the end of the
    /// beginning that an earlier text has are as valuable as before. With `states_only`, gives back only states.
    pub fn slide_past(&mut self, prompt: usize, states_only: bool) {
        let size = self.pool.block_size();
        // A lookup leaves at least one token over.
        let (end, branch) = (prompt.saturating_sub(1) / size, self.branch);
        for (at, (lane, group)) in self.lanes.iter_mut().zip(self.pool.groups()).enumerate() {
            let out_of_window = num_out_of_window(group, self.len, size).min(lane.blocks.len());
            if out_of_window <= lane.num_freed || (states_only && !group.is_state()) {
                continue;
            }
            let mut blocks = self.pool.blocks();
            if let Some(stride) = group.state_stride {
                let kept = Checkpoints { asked: self.asked.as_deref(), branch, stride };
                states::slide((&mut blocks, at), lane, out_of_window, kept, &self.prefixes);
                continue;
            }
            let window = |end: usize| num_out_of_window(group, end * size, size)..end;
            let (at_end, at_branch) = (window(end), window(branch));
            for index in lane.num_freed..out_of_window {
                let freed = std::mem::replace(&mut lane.blocks[index], NO_BLOCK);
                let value = match index {
                    _ if freed == NO_BLOCK => continue,
                    index if at_branch.contains(&index) => Value::High,
                    index if at_end.contains(&index) => Value::Middle,
                    _ => Value::Low,
                };
                blocks.release_behind(at, freed, value);
            }
            lane.num_freed = out_of_window;
        }
    }

    /// Whether the table still has every block in the windows of the token at position `tokens`, or may still get them.
    pub fn has_window_of(&self, tokens: usize) -> bool {
        let size = self.pool.block_size();
        let has_state = |lane: &Lane| {
            let is_there = || lane.blocks.get(tokens / size - 1) != Some(&NO_BLOCK);
            tokens == 0 || tokens >= self.len || (tokens.is_multiple_of(size) && is_there())
        };
        self.lanes.iter().zip(self.pool.groups()).all(|(lane, group)| {
            lane.num_freed <= num_out_of_window(group, tokens, size) && (!group.is_state() || has_state(lane))
        })
    }

    /// The pool of the blocks.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The slot of token `position` in the cache of a group: `block * block_size + offset`.
    pub fn slot(&self, group: usize, position: usize) -> u32 {
        let size = self.pool.block_size();
        self.lanes[group].blocks[position / size] * size as u32 + (position % size) as u32
    }

    /// Returns a second table over the same blocks. A shared block is copied only when a table writes to it (4.4).
    pub fn fork(&self) -> Self {
        self.fork_prefix(self.len)
    }

    /// Returns a second table over the blocks of the first `tokens` tokens. The table must still have their windows.
    pub fn fork_prefix(&self, tokens: usize) -> Self {
        debug_assert!(tokens <= self.len && self.has_window_of(tokens));
        let num_blocks = blocks_for(tokens, self.pool.block_size());
        let num_full = tokens / self.pool.block_size();
        let lane = |lane: &Lane| Lane::new(lane.blocks[..num_blocks].to_vec(), lane.num_freed);
        let fork = BlockTable {
            pool: self.pool.clone(),
            lanes: self.lanes.iter().map(lane).collect(),
            len: tokens,
            prefixes: self.prefixes[..num_full.min(self.prefixes.len())].to_vec(),
            root: self.root.clone(),
            branch: self.branch,
            asked: self.asked.clone(),
        };
        fork.acquire();
        fork
    }

    /// Takes references to the blocks.
    fn acquire(&self) {
        let mut blocks = self.pool.blocks();
        for (group, lane) in self.lanes.iter().enumerate() {
            lane.present().for_each(|block| blocks.acquire(group, block));
        }
    }

    /// Replaces each block by its counterpart in `pool`, and takes references to the new blocks.
    pub(super) fn replace_blocks(&mut self, pool: &BlockPool, new: impl Fn(usize, u32) -> u32) {
        let lane = |(group, lane): (usize, &Lane)| {
            let live = lane.live_blocks().iter().copied();
            let new = live.map(|block| if block == NO_BLOCK { NO_BLOCK } else { new(group, block) });
            Lane::new(std::iter::repeat_n(NO_BLOCK, lane.num_freed).chain(new).collect(), lane.num_freed)
        };
        let lanes = self.lanes.iter().enumerate().map(lane).collect();
        if !pool.is(&self.pool) {
            self.release();
            (self.lanes, self.pool) = (lanes, pool.clone());
            return self.acquire();
        }
        // Within a pool, blocks that stay never lose their references.
        let mut old = BlockTable::new(pool);
        old.lanes = std::mem::replace(&mut self.lanes, lanes);
        self.acquire();
        drop(old);
    }

    /// Puts a block of the table's pool, to which the caller has a reference, at an empty place.
    pub(super) fn put(&mut self, group: usize, at: usize, block: u32) {
        debug_assert_eq!(self.lanes[group].blocks[at], NO_BLOCK);
        self.lanes[group].blocks[at] = block;
    }

    /// Reserves slots for `tokens` more tokens of this table alone. A partly filled last block that is shared is
    /// replaced by a new block (copy-on-write). The backend must copy its contents before it writes the new tokens.
    pub fn reserve(&mut self, tokens: usize, copies: &mut Vec<BlockCopy>) -> Result<(), OutOfBlocks> {
        let (size, end) = (self.pool.block_size(), self.len + tokens);
        let num_blocks = blocks_for(end, size);
        let mut blocks = self.pool.blocks();
        let is_partial = tokens > 0 && !self.len.is_multiple_of(size);
        let has_room = |(group, lane): (usize, &Lane)| {
            let last = lane.blocks.last().filter(|_| is_partial);
            lane.blocks.len() == num_blocks && last.is_none_or(|&last| blocks.num_refs(group, last) <= 1)
        };
        if !self.lanes.iter().enumerate().all(has_room) {
            let mut counts = Counts::default();
            add_needed(&blocks, self, tokens, &mut counts, &mut Vec::new());
            if !blocks.fits(&counts, 0) {
                return Err(OutOfBlocks);
            }
            if !blocks.claims.covers(&counts) {
                blocks.claim(counts);
            }
            for (group, lane) in self.lanes.iter_mut().enumerate() {
                if let Some(stride) = self.pool.groups()[group].state_stride {
                    let kept = Checkpoints { asked: self.asked.as_deref(), branch: self.branch, stride };
                    states::reserve((&mut blocks, group), lane, (is_partial, num_blocks), kept, copies)?;
                    continue;
                }
                if let Some(last) = lane.blocks.last_mut().filter(|_| is_partial) {
                    *last = own(&mut blocks, group, *last, copies)?;
                }
                while lane.blocks.len() < num_blocks {
                    lane.blocks.push(blocks.allocate(group).ok_or(OutOfBlocks)?);
                }
            }
        }
        for (group, lane) in self.lanes.iter().enumerate() {
            let written = lane.blocks.iter().enumerate().skip(self.len / size);
            for (i, &block) in written.filter(|(_, block)| **block != NO_BLOCK) {
                blocks.fill(group, block, (end - i * size).min(size));
            }
        }
        self.len = end;
        Ok(())
    }

    /// Drops the last tokens and keeps the first `tokens`. The dropped tokens must be in unregistered blocks that no
    /// other table references, as those reserved after the last fork are.
    pub fn truncate(&mut self, tokens: usize) {
        let size = self.pool.block_size();
        debug_assert!(tokens <= self.len && self.prefixes.len() * size <= tokens);
        if tokens == self.len {
            return;
        }
        let mut blocks = self.pool.blocks();
        for (group, lane) in self.lanes.iter_mut().enumerate() {
            debug_assert!(lane.num_freed * size <= tokens);
            for block in lane.blocks.drain(blocks_for(tokens, size)..).rev() {
                blocks.release(group, block);
            }
            if let Some(&last) = lane.blocks.last().filter(|_| !tokens.is_multiple_of(size)) {
                blocks.unfill(group, last, tokens % size);
            }
        }
        self.len = tokens;
    }

    /// The partly filled last block of a lane, if appending `tokens` tokens would write to it.
    fn writable_block(&self, group: usize, tokens: usize) -> Option<u32> {
        let partial = !self.len.is_multiple_of(self.pool.block_size());
        self.lanes[group].blocks.last().copied().filter(|_| partial && tokens > 0)
    }

    /// Drops the table's references.
    fn release(&mut self) {
        if self.lanes.iter().all(|lane| lane.live_blocks().is_empty()) {
            return;
        }
        if self.pool.has_states() {
            self.slide_past(0, true);
        }
        let mut blocks = self.pool.blocks();
        for (group, lane) in self.lanes.iter_mut().enumerate() {
            if self.pool.groups()[group].is_state() {
                states::end(&mut blocks, group, lane, &self.prefixes);
            }
            // In reverse order: the first blocks are shared by most sequences and are to be evicted last.
            for block in lane.blocks.drain(lane.num_freed..).rev().filter(|&block| block != NO_BLOCK) {
                blocks.release(group, block);
            }
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

/// The numbers of different blocks that the tables of one pool reference.
pub fn distinct_blocks<'a>(tables: impl IntoIterator<Item = &'a BlockTable>) -> Counts {
    let mut seen: HashSet<(usize, u32)> = HashSet::new();
    let mut counts = Counts::default();
    for table in tables {
        for (group, lane) in table.lanes.iter().enumerate() {
            counts.add(group, lane.present().filter(|&block| seen.insert((group, block))).count());
        }
    }
    counts
}

#[cfg(test)]
mod tests;
