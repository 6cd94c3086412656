//! The physical blocks of a pool: a reference count for each, and the free blocks in allocation order.
//!
//! ```text
//!   free --- allocate ---> in use --- register ---> in use, registered
//!    ^                      |                       |      ^
//!    |<----- released ------+              released |      | find
//!    |                                              v      |
//!    +------------ allocate (evicted) ------------- cached-+
//! ```
//!
//! Cached blocks are free too. They are allocated only when no other free block is left, least recently used first.

use std::sync::Arc;

use crate::kv::free_list::FreeList;
use crate::kv::log::{BlockEvent, Logger};
use crate::kv::prefix::{Prefix, PrefixId, PrefixIndex};
use crate::kv::usage::PoolUsage;

/// All blocks of a pool. [`Blocks::acquire`], [`Blocks::allocate`] and [`Blocks::find`] take a reference, and
/// [`Blocks::release`] drops one.
#[derive(Debug)]
pub struct Blocks {
    pub(super) block_size: usize,
    /// Blocks without references. Cached blocks come last.
    pub(super) free: FreeList,
    /// The prefixes under which full blocks are registered.
    pub(super) registered: PrefixIndex,
    pub(super) uses: Vec<BlockState>,
    /// Sum of [`BlockState::filled`].
    pub(super) total_filled: usize,
    /// Free blocks that are registered.
    pub(super) cached: usize,
    /// Blocks with more than one reference.
    pub(super) shared: usize,
    /// Blocks evicted since the last [`Blocks::take_evicted`], in order, with their prefixes. `None` if they are not
    /// recorded.
    evicted: Option<Vec<(u32, Arc<Prefix>)>>,
    pub(super) log: Option<Logger>,
}

/// The state of a block.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockState {
    /// The number of references.
    pub refs: u32,
    /// The number of slots that hold a token.
    pub filled: u32,
}

impl Blocks {
    /// `num_blocks` free blocks of `block_size` tokens.
    pub fn new(num_blocks: u32, block_size: usize) -> Self {
        Blocks {
            block_size,
            free: FreeList::full(num_blocks),
            registered: PrefixIndex::new(num_blocks as usize),
            uses: vec![BlockState::default(); num_blocks as usize],
            total_filled: 0,
            cached: 0,
            shared: 0,
            evicted: None,
            log: None,
        }
    }

    /// Records an event in the log, if there is one.
    pub fn record(&self, event: BlockEvent) {
        if let Some(log) = &self.log {
            log.record(event);
        }
    }

    /// Blocks without references, including cached ones.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// The reference count of a block.
    pub fn num_refs(&self, block: u32) -> usize {
        self.uses[block as usize].refs as usize
    }

    /// The prefix that a block is registered under.
    pub fn prefix(&self, block: u32) -> Option<&Arc<Prefix>> {
        self.registered.prefix(block)
    }

    /// How much of the pool is in use.
    pub fn usage(&self) -> PoolUsage {
        let used_blocks = self.uses.len() - self.free.len();
        PoolUsage {
            num_blocks: self.uses.len(),
            used_blocks,
            shared_blocks: self.shared,
            cached_blocks: self.cached,
            used_slots: used_blocks * self.block_size,
            filled_slots: self.total_filled,
        }
    }

    /// Allocates a free block. Cached blocks are taken last and lose their contents.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.free.take_first()?;
        if let Some(prefix) = self.registered.remove(block) {
            self.cached -= 1;
            self.record(BlockEvent::Evict(block));
            if let Some(evicted) = &mut self.evicted {
                evicted.push((block, prefix));
            }
        }
        self.uses[block as usize].refs = 1;
        self.record(BlockEvent::Allocate(block));
        Some(block)
    }

    /// Adds a reference to a block that is in use or cached.
    pub fn acquire(&mut self, block: u32) {
        let usage = &mut self.uses[block as usize];
        usage.refs += 1;
        if usage.refs == 1 {
            // Only full blocks are registered.
            usage.filled = self.block_size as u32;
            self.free.remove(block);
            self.cached -= 1;
            self.total_filled += self.block_size;
        } else if usage.refs == 2 {
            self.shared += 1;
        }
        self.record(BlockEvent::Share(block));
    }

    /// Drops a reference. A block without references is free, or cached if it is registered.
    pub fn release(&mut self, block: u32) {
        let usage = &mut self.uses[block as usize];
        usage.refs -= 1;
        if usage.refs == 1 {
            self.shared -= 1;
        } else if usage.refs == 0 {
            self.total_filled -= std::mem::take(&mut usage.filled) as usize;
            if self.registered.prefix(block).is_some() {
                self.cached += 1;
                self.free.push_last(block);
            } else {
                self.free.push_first(block);
            }
        }
        self.record(BlockEvent::Free(block));
    }

    /// Notes that at least the first `slots` slots of a block hold tokens.
    pub fn fill(&mut self, block: u32, slots: usize) {
        let usage = &mut self.uses[block as usize];
        let more = slots.saturating_sub(usage.filled as usize);
        if more > 0 {
            usage.filled = slots as u32;
            self.total_filled += more;
            self.record(BlockEvent::Fill { block, slots });
        }
    }

    /// Notes that only the first `slots` slots of a block still hold tokens. Exactly one table may reference the block.
    pub fn unfill(&mut self, block: u32, slots: usize) {
        let usage = &mut self.uses[block as usize];
        debug_assert!(usage.refs == 1 && slots <= usage.filled as usize);
        self.total_filled -= usage.filled as usize - slots;
        usage.filled = slots as u32;
        self.record(BlockEvent::Fill { block, slots });
    }

    /// Takes a reference to the block that holds `tokens`, preceded by the tokens of `parent`, if one is registered.
    pub fn find(&mut self, parent: Option<PrefixId>, tokens: &[u32]) -> Option<(PrefixId, u32)> {
        let block = self.registered.find(parent, tokens)?;
        let id = self.registered.prefix(block)?.id();
        self.acquire(block);
        Some((id, block))
    }

    /// Starts recording the prefixes of evicted blocks.
    pub fn keep_evicted(&mut self) {
        self.evicted.get_or_insert_default();
    }

    /// Returns the blocks evicted since the last call, in order, each with its prefix. Their contents stay valid until
    /// the moves of the next step.
    pub fn take_evicted(&mut self) -> Vec<(u32, Arc<Prefix>)> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The block that is registered under `prefix`.
    pub fn block_of(&self, prefix: &Prefix) -> Option<u32> {
        self.registered.find_prefix(prefix)
    }

    /// The prefix of a registered block that holds `tokens`, preceded by the tokens of `parent`.
    pub fn registered_prefix(&self, parent: Option<PrefixId>, tokens: &[u32]) -> Option<Arc<Prefix>> {
        self.registered.prefix(self.registered.find(parent, tokens)?).cloned()
    }

    /// Registers a full block by its `tokens` and the tokens before them. Lookups find it until its memory is needed.
    /// Returns the id of its prefix. If another pool has registered the same tokens under `prefix`, the id stays the
    /// same. Returns `None` if the index cannot take the block, see [`PrefixIndex::insert`].
    pub fn register(
        &mut self,
        block: u32,
        parent: Option<PrefixId>,
        tokens: &[u32],
        prefix: Option<Arc<Prefix>>,
    ) -> Option<PrefixId> {
        if let Some(prefix) = self.registered.prefix(block) {
            return Some(prefix.id());
        }
        let id = match prefix.filter(|_| self.registered.find(parent, tokens).is_none()) {
            Some(prefix) => {
                let id = prefix.id();
                self.registered.insert_prefix(block, prefix).then_some(id)
            }
            None => self.registered.insert(block, parent, tokens),
        };
        if let Some(prefix) = self.registered.prefix(block) {
            self.record(BlockEvent::Register { block, prefix: prefix.clone() });
        }
        id
    }

    /// Takes a reference to the block that receives the contents of another pool's block, registered under `prefix` if
    /// at all. If a block of this pool has the same contents, returns it and false. Otherwise allocates a block and
    /// returns it and true: the contents must be moved. Returns `None` if no block is free.
    pub fn counterpart(&mut self, prefix: Option<&Prefix>) -> Option<(u32, bool)> {
        match prefix.and_then(|prefix| self.registered.find_prefix(prefix)) {
            Some(block) => {
                self.acquire(block);
                Some((block, false))
            }
            None => Some((self.allocate()?, true)),
        }
    }

    /// Notes that the contents of `src`, a block of the pool `from`, move to `dst`. Registers `dst` under the prefix of
    /// `src`.
    pub fn move_in(&mut self, dst: u32, from: &Blocks, src: u32) {
        self.fill(dst, from.uses[src as usize].filled as usize);
        self.record(BlockEvent::Swap { src, dst });
        if let Some(prefix) = from.prefix(src) {
            self.register_prefix(dst, prefix);
        }
    }

    /// Notes that the contents of `src`, a full block evicted from another pool, move to `dst`. Registers `dst` under
    /// `prefix`.
    pub fn offload_in(&mut self, dst: u32, src: u32, prefix: &Arc<Prefix>) {
        self.fill(dst, self.block_size);
        self.record(BlockEvent::Swap { src, dst });
        self.register_prefix(dst, prefix);
    }

    fn register_prefix(&mut self, block: u32, prefix: &Arc<Prefix>) {
        if self.registered.insert_prefix(block, prefix.clone()) {
            self.record(BlockEvent::Register { block, prefix: prefix.clone() });
        }
    }

    /// Empties the prefix index. Called after a step failed that was to fill some of the blocks.
    pub fn reset_prefix_cache(&mut self) {
        for block in 0..self.uses.len() as u32 {
            if self.registered.remove(block).is_some() {
                self.record(BlockEvent::Evict(block));
            }
        }
        self.cached = 0;
        drop(self.take_evicted());
    }

    /// Cached blocks, in ascending order: free, but still found by prefix lookups.
    pub fn cached(&self) -> Vec<u32> {
        let mut cached: Vec<u32> = self.free.iter().filter(|&b| self.registered.prefix(b).is_some()).collect();
        cached.sort_unstable();
        cached
    }
}
