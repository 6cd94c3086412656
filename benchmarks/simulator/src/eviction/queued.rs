//! A replay with blocks of one size in one queue. Free blocks join it at the end, and the first one is evicted.
//!
//! Layers with windows are divided into groups with as many layers as the group without a window has, as vLLM does. All
//! blocks then have the same size, so no memory is lost to pages. A hit ends where every group has the blocks that it
//! needs. The states of recurrent layers are divided likewise, and blocks get more tokens, until keys and values are as
//! large.

use std::collections::{BTreeMap, HashMap, VecDeque};

use engine::tools::kv::{KvGroup, KvLayout};

use super::{Asked, BLOCK_SIZE, IN_FLIGHT, Replay, needed, unit, units};

/// The order in which a request's blocks join the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first block first: least recently used.
    Forward,
    /// The last block first, so that the beginning of a text is kept longest: vLLM's rule.
    Reverse,
}

/// The blocks, and the requests that run.
pub struct QueuedReplay {
    /// The window of each group.
    groups: Vec<Option<usize>>,
    block_size: usize,
    order: Order,
    blocks: Vec<Block>,
    /// The free blocks, in the order of eviction.
    queue: BTreeMap<u64, usize>,
    now: u64,
    cached: HashMap<Key, usize>,
    running: VecDeque<Tables>,
}

/// Groups of layers whose blocks have the same size.
struct Division {
    /// Tokens per block.
    block_size: usize,
    /// The window of each group.
    groups: Vec<Option<usize>>,
    /// Bytes of a block.
    bytes: usize,
}

impl Division {
    fn of(layout: &KvLayout) -> Self {
        let is_state = |group: &KvGroup| group.state.is_some();
        let Some(state) = layout.groups.iter().position(is_state) else {
            let units = units(layout).into_iter();
            let groups = units.flat_map(|(size, window)| std::iter::repeat_n(window, size)).collect();
            return Division { block_size: BLOCK_SIZE, groups, bytes: unit(layout) };
        };
        // Blocks of keys and values have so many tokens that they are as large as the states of as many layers.
        let keys = layout.groups.iter().position(|group| !is_state(group)).unwrap_or_default();
        let times = layout.layer_bytes(state).div_ceil(layout.layer_bytes(keys));
        let parts = layout.groups[state].layers.len().div_ceil(layout.groups[keys].layers.len());
        let groups = [None].into_iter().chain(std::iter::repeat_n(layout.groups[state].window, parts));
        let bytes = times * layout.group_block_bytes(keys);
        Division { block_size: times * BLOCK_SIZE, groups: groups.collect(), bytes }
    }
}

/// A group, and the number of a block's contents.
type Key = (usize, u32);
/// For each group, its blocks in logical order. `None` once the window has left a block behind.
type Tables = Vec<Vec<Option<usize>>>;

#[derive(Clone, Copy, Default)]
struct Block {
    references: usize,
    /// Its place in the queue, if it is free.
    queued: u64,
    contents: Option<Key>,
}

impl QueuedReplay {
    /// Creates an empty pool of `bytes` bytes.
    pub fn new(layout: &KvLayout, bytes: usize, order: Order) -> Self {
        let Division { block_size, groups, bytes: block } = Division::of(layout);
        let count = bytes / block;
        QueuedReplay {
            groups,
            block_size,
            order,
            blocks: (0..count as u64).map(|queued| Block { queued, ..Block::default() }).collect(),
            queue: (0..count).map(|block| (block as u64, block)).collect(),
            now: count as u64,
            cached: HashMap::new(),
            running: VecDeque::new(),
        }
    }

    /// Returns the blocks of the longest prefix after which every group can resume.
    fn longest(&self, blocks: &[u32]) -> usize {
        let is_cached = |group: usize, at: usize| self.cached.contains_key(&(group, blocks[at]));
        let (windows, full): (Vec<usize>, Vec<usize>) =
            (0..self.groups.len()).partition(|&group| self.groups[group].is_some());
        let mut len = (0..blocks.len()).take_while(|&at| full.iter().all(|&group| is_cached(group, at))).count();
        let missing = |group: usize, len: usize| {
            let first = len - needed(self.groups[group], len, self.block_size);
            (first..len).rev().find(|&at| !is_cached(group, at))
        };
        while let Some(shorter) = windows.iter().find_map(|&group| missing(group, len)) {
            len = shorter;
        }
        len
    }

    /// Takes a reference to a block.
    fn take(&mut self, block: usize) {
        if self.blocks[block].references == 0 {
            self.queue.remove(&self.blocks[block].queued);
        }
        self.blocks[block].references += 1;
    }

    /// Gives a reference back.
    fn give(&mut self, block: usize) {
        let state = &mut self.blocks[block];
        state.references -= 1;
        if state.references == 0 {
            state.queued = self.now;
            self.queue.insert(self.now, block);
            self.now += 1;
        }
    }

    /// Gives back some blocks of a request in the rule's order.
    fn give_all(&mut self, blocks: impl DoubleEndedIterator<Item = usize>) {
        match self.order {
            Order::Forward => blocks.for_each(|block| self.give(block)),
            Order::Reverse => blocks.rev().for_each(|block| self.give(block)),
        }
    }

    /// Allocates a block. Ends the oldest requests if none is free.
    fn allocate(&mut self) -> usize {
        while self.queue.is_empty() {
            assert!(self.end_oldest(), "a request does not fit the memory alone");
        }
        let block = self.queue.values().next().copied().unwrap_or_default();
        if let Some(contents) = self.blocks[block].contents.take() {
            self.cached.remove(&contents);
        }
        self.take(block);
        block
    }

    fn end_oldest(&mut self) -> bool {
        let Some(tables) = self.running.pop_front() else { return false };
        tables.into_iter().for_each(|blocks| self.give_all(blocks.into_iter().flatten()));
        true
    }

    /// Gives back the blocks that no token after `done` tokens sees.
    fn slide(&mut self, tables: &mut Tables, done: usize) {
        for (at, blocks) in tables.iter_mut().enumerate() {
            let Some(window) = self.groups[at] else { continue };
            let out = ((done + 1).saturating_sub(window) / self.block_size).min(blocks.len());
            let left: Vec<usize> = blocks[..out].iter_mut().filter_map(Option::take).collect();
            self.give_all(left.into_iter());
        }
    }

    /// Registers the full blocks of `done` computed tokens.
    fn register(&mut self, tables: &Tables, asked: &Asked, from: usize, done: usize) {
        for (group, blocks) in tables.iter().enumerate() {
            let own = from / self.block_size..done / self.block_size;
            for (&block, &contents) in blocks[own.clone()].iter().zip(&asked.blocks[own]) {
                let (Some(block), key) = (block, (group, contents)) else { continue };
                if let std::collections::hash_map::Entry::Vacant(entry) = self.cached.entry(key) {
                    entry.insert(block);
                    self.blocks[block].contents = Some(key);
                }
            }
        }
    }
}

impl Replay for QueuedReplay {
    fn block_size(&self) -> usize {
        self.block_size
    }

    fn serve(&mut self, asked: &Asked) -> usize {
        if self.running.len() == IN_FLIGHT {
            self.end_oldest();
        }
        let hits = self.longest(&asked.blocks[..asked.most_hits()]);
        let find = |group: usize| -> Vec<Option<usize>> {
            let first = hits - needed(self.groups[group], hits, self.block_size);
            (0..hits).map(|at| (at >= first).then(|| self.cached[&(group, asked.blocks[at])])).collect()
        };
        let mut tables: Tables = (0..self.groups.len()).map(find).collect();
        tables.iter().flatten().flatten().for_each(|&block| self.take(block));
        let mut done = hits * self.block_size;
        while done < asked.computed() {
            self.slide(&mut tables, done);
            let next = asked.next(done);
            for blocks in &mut tables {
                while blocks.len() < next.div_ceil(self.block_size) {
                    blocks.push(Some(self.allocate()));
                }
            }
            self.register(&tables, asked, done, next);
            done = next;
        }
        self.running.push_back(tables);
        hits * self.block_size
    }
}
