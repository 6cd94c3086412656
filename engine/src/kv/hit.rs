//! Prefix hits: the blocks that hold the beginning of a sequence, in the cache or in the swap space below it.
//!
//! A prefix of some blocks can be reused if every group can resume after it. A group that sees all tokens needs all its
//! blocks. A group with a window needs only the blocks that the window of the next token covers. The hit is the longest
//! such prefix, so it may be shorter than the text that some group knows:
//!
//! ```text
//!   all tokens     [x][x][x][x][x][x][x]          the longest prefix has seven blocks
//!   window of two  [ ][ ][x][x][ ][x][ ]          the hit ends after block 3, whose window is complete
//! ```

use std::sync::Arc;

use super::pool::BlockPool;
use super::prefix::{PrefixId, Root};
use super::table::{BlockTable, Lane, NO_BLOCK, num_out_of_window};

/// The result of a prefix lookup. It owns a reference to each of its blocks.
#[derive(Debug)]
pub struct PrefixHit {
    /// A table of all the tokens. Blocks in the swap space are missing in it.
    table: BlockTable,
    /// The blocks in the swap space, group by group, in logical order.
    swapped: Vec<SwappedBlock>,
    /// The swap space. `None` if no block is there.
    swap: Option<BlockPool>,
    swapped_tokens: usize,
}

/// A block of a prefix hit that is in the swap space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwappedBlock {
    /// Its group.
    pub group: usize,
    /// Its index in the table.
    pub at: usize,
    /// The block of the swap space.
    pub block: u32,
}

impl From<BlockTable> for PrefixHit {
    fn from(table: BlockTable) -> Self {
        PrefixHit { table, swapped: Vec::new(), swap: None, swapped_tokens: 0 }
    }
}

/// A table of the registered blocks of `pool` that hold the longest prefix of `tokens`, see [`PrefixHit::find`].
pub fn prefix_hit(pool: &BlockPool, tokens: &[u32], whole: bool) -> BlockTable {
    let root = Root { is_long: pool.is_long(tokens.len()), ..Root::default() };
    PrefixHit::find(pool, None, tokens, root, whole).into_table()
}

impl PrefixHit {
    /// Finds the longest prefix of `tokens` after which every group can resume, among the registered blocks of `pool` and
    /// of `swap`. The blocks must belong to sequences with this `root`. With `whole`, groups with windows need all their
    /// blocks too. At least one token is left over, because only computing a token gives logits.
    pub fn find(pool: &BlockPool, swap: Option<&BlockPool>, tokens: &[u32], root: Root, whole: bool) -> Self {
        let lookup = Lookup::new(pool, swap, tokens, (root, whole));
        let len = lookup.longest();
        lookup.take(len)
    }

    /// The number of tokens that need not be computed.
    pub fn tokens(&self) -> usize {
        self.table.len()
    }

    /// The table of all these tokens. Blocks in the swap space are missing in it.
    pub fn table(&self) -> &BlockTable {
        &self.table
    }

    /// The table of a hit without blocks in the swap space.
    pub fn into_table(mut self) -> BlockTable {
        debug_assert!(self.swapped.is_empty());
        let pool = self.table.pool().clone();
        std::mem::replace(&mut self.table, BlockTable::new(&pool))
    }

    /// The blocks in the swap space.
    pub fn swapped(&self) -> &[SwappedBlock] {
        &self.swapped
    }

    /// The number of tokens for which the lookup found a block only in the swap space.
    pub fn swapped_tokens(&self) -> usize {
        self.swapped_tokens
    }

    /// Divides the hit into its table and the blocks in the swap space, and passes the references to the caller.
    pub(super) fn into_parts(mut self) -> (BlockTable, Vec<SwappedBlock>) {
        let swapped = std::mem::take(&mut self.swapped);
        (self.into_table(), swapped)
    }

    /// Asks for the states of recurrent layers after these numbers of blocks, see [`BlockTable::keep_states`].
    pub fn keep_states(&mut self, ends: Option<&Arc<[u32]>>) {
        self.table.keep_states(ends);
    }

    /// Gives back the blocks that no later token sees.
    pub fn slide(&mut self) {
        let pool = self.table.pool().clone();
        if !pool.has_windows() {
            return;
        }
        let (len, size) = (self.tokens(), pool.block_size());
        if let Some(swap) = self.swap.as_ref().filter(|_| !self.swapped.is_empty()) {
            let mut blocks = swap.blocks();
            self.swapped.retain(|swapped| {
                let stays = swapped.at >= num_out_of_window(&pool.groups()[swapped.group], len, size);
                if !stays {
                    blocks.release(swapped.group, swapped.block);
                }
                stays
            });
        }
        self.table.slide();
    }
}

impl Drop for PrefixHit {
    fn drop(&mut self) {
        if let Some(swap) = self.swap.as_ref().filter(|_| !self.swapped.is_empty()) {
            let mut blocks = swap.blocks();
            self.swapped.drain(..).rev().for_each(|swapped| blocks.release(swapped.group, swapped.block));
        }
    }
}

/// The location of a group's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nowhere,
    InCache(u32),
    InSwap(u32),
}

/// A lookup in progress.
struct Lookup<'a> {
    pool: &'a BlockPool,
    swap: Option<&'a BlockPool>,
    root: Root,
    whole: bool,
    prefixes: Vec<PrefixId>,
    /// For each prefix, where each group's block is.
    found: Vec<Found>,
}

impl<'a> Lookup<'a> {
    /// Looks up the blocks of `tokens`, up to the first that a group which needs all its blocks lacks.
    fn new(pool: &'a BlockPool, swap: Option<&'a BlockPool>, tokens: &[u32], (root, whole): (Root, bool)) -> Self {
        let mut lookup = Lookup { pool, swap, root, whole, prefixes: Vec::new(), found: Vec::new() };
        let groups = pool.groups().len();
        let (cache, swapped) = (pool.blocks(), swap.map(BlockPool::blocks));
        for tokens in tokens[..tokens.len().saturating_sub(1)].chunks_exact(pool.block_size()) {
            let text = lookup.root.text(lookup.prefixes.last().copied(), tokens);
            let start = lookup.found.len();
            let mut id = None;
            for group in 0..groups {
                let found = match cache.find(group, &text) {
                    Some(block) => {
                        id = id.or_else(|| cache.prefix(group, block));
                        Found::InCache(block)
                    }
                    None => match swapped.as_ref().and_then(|swap| Some((swap, swap.find(group, &text)?))) {
                        Some((swap, block)) => {
                            id = id.or_else(|| swap.prefix(group, block));
                            Found::InSwap(block)
                        }
                        None => Found::Nowhere,
                    },
                };
                lookup.found.push(found);
            }
            let lacks = |group: usize| lookup.found[start + group] == Found::Nowhere && lookup.needs_all(group);
            let Some(id) = id.filter(|_| !(0..groups).any(lacks)).map(|prefix| prefix.id()) else { break };
            lookup.prefixes.push(id);
        }
        lookup
    }

    /// Whether a group needs all blocks of a prefix. A single group needs them to identify the prefixes. A group of states
    /// never has them all.
    fn needs_all(&self, group: usize) -> bool {
        let groups = self.pool.groups();
        !groups[group].is_state() && (self.whole || groups.len() == 1 || groups[group].window.is_none())
    }

    fn found(&self, group: usize, at: usize) -> Found {
        self.found[at * self.pool.groups().len() + group]
    }

    /// The first block that a group needs to resume after `len` blocks.
    fn first_needed(&self, group: usize, len: usize) -> usize {
        if self.needs_all(group) {
            return 0;
        }
        let size = self.pool.block_size();
        num_out_of_window(&self.pool.groups()[group], len * size, size).min(len)
    }

    /// The largest number of blocks after which every group can resume.
    fn longest(&self) -> usize {
        let mut len = self.prefixes.len();
        loop {
            let groups = (0..self.pool.groups().len()).filter(|&group| !self.needs_all(group));
            match groups.fold(len, |len, group| self.longest_of(group, len)) {
                same if same == len => return len,
                shorter => len = shorter,
            }
        }
    }

    /// The largest number of blocks, at most `len`, after which a group with a window can resume.
    fn longest_of(&self, group: usize, mut len: usize) -> usize {
        let mut at = len;
        while at > self.first_needed(group, len) {
            at -= 1;
            if self.found(group, at) == Found::Nowhere {
                len = at;
            }
        }
        len
    }

    /// Takes references to the blocks that are needed to resume after `len` blocks.
    fn take(mut self, len: usize) -> PrefixHit {
        let (mut cache, mut swap) = (self.pool.blocks(), self.swap.map(BlockPool::blocks));
        let (mut lanes, mut swapped) = (Vec::with_capacity(self.pool.groups().len()), Vec::new());
        for group in 0..self.pool.groups().len() {
            let first = self.first_needed(group, len);
            let mut blocks = vec![NO_BLOCK; first];
            for at in first..len {
                blocks.push(match (self.found(group, at), &mut swap) {
                    (Found::InCache(block), _) => {
                        cache.acquire_found(group, block);
                        block
                    }
                    (Found::InSwap(block), Some(swap)) => {
                        swap.acquire_found(group, block);
                        swapped.push(SwappedBlock { group, at, block });
                        NO_BLOCK
                    }
                    _ => unreachable!("every group can resume after the prefix"),
                });
            }
            lanes.push(Lane::new(blocks, first));
        }
        drop((cache, swap));
        let branch = self.prefixes.len();
        self.prefixes.truncate(len);
        let mut at: Vec<usize> = swapped.iter().map(|swapped| swapped.at).collect();
        at.sort_unstable();
        at.dedup();
        let swapped_tokens = at.len() * self.pool.block_size();
        let table = BlockTable::of_blocks(self.pool, lanes, self.prefixes, self.root, branch);
        PrefixHit { table, swapped, swap: self.swap.cloned(), swapped_tokens }
    }
}
