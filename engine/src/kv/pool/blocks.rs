//! The physical blocks of a pool: a reference count for each, and the free ones in the order in which they are taken.
//!
//! ```text
//!   free --- allocate ---> held --- register ---> held and known
//!    ^                      |                       |      ^
//!    |<----- released ------+              released |      | find
//!    |                                              v      |
//!    +------------ allocate (forgotten) ----------- cached-+
//! ```
//!
//! Cached blocks are free: they are taken when no other is left, the least recently used first.

use std::sync::Arc;

use crate::kv::free_list::FreeList;
use crate::kv::log::{BlockEvent, Logger};
use crate::kv::prefix::{Prefix, PrefixId, PrefixIndex};
use crate::kv::usage::PoolUsage;

/// All blocks of a pool. A reference is taken by [`Blocks::hold`], [`Blocks::allocate`] or [`Blocks::find`], and given
/// back by [`Blocks::release`].
#[derive(Debug)]
pub struct Blocks {
    pub(super) block_size: usize,
    /// Blocks without references. Those that are known stay for as long as there are others to take.
    pub(super) free: FreeList,
    /// The prefixes by which full blocks are found.
    pub(super) known: PrefixIndex,
    pub(super) uses: Vec<Use>,
    /// Sum of [`Use::filled`].
    pub(super) total_filled: usize,
    /// Free blocks that are known.
    pub(super) cached: usize,
    /// Blocks with more than one reference.
    pub(super) shared: usize,
    /// What cached blocks held that were allocated for other contents, in order, until it is taken; none if it is not kept.
    evicted: Option<Vec<(u32, Arc<Prefix>)>>,
    pub(super) log: Option<Logger>,
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    /// Its references.
    pub refs: u32,
    /// Its slots that hold a token.
    pub filled: u32,
}

impl Blocks {
    /// `num_blocks` free blocks of `block_size` tokens.
    pub fn new(num_blocks: u32, block_size: usize) -> Self {
        Blocks {
            block_size,
            free: FreeList::full(num_blocks),
            known: PrefixIndex::new(num_blocks as usize),
            uses: vec![Use::default(); num_blocks as usize],
            total_filled: 0,
            cached: 0,
            shared: 0,
            evicted: None,
            log: None,
        }
    }

    /// Passes an event on to the log, if there is one.
    pub fn record(&self, event: BlockEvent) {
        if let Some(log) = &self.log {
            log.record(event);
        }
    }

    /// Blocks without references, cached ones included.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// The references of a block.
    pub fn num_refs(&self, block: u32) -> usize {
        self.uses[block as usize].refs as usize
    }

    /// The prefix by which a block is found.
    pub fn prefix(&self, block: u32) -> Option<&Arc<Prefix>> {
        self.known.prefix(block)
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

    /// Takes a free block. Cached ones go last, and are forgotten.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.free.take_first()?;
        if let Some(prefix) = self.known.remove(block) {
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

    /// Adds a reference to a block that is held or cached.
    pub fn hold(&mut self, block: u32) {
        let of = &mut self.uses[block as usize];
        of.refs += 1;
        if of.refs == 1 {
            // Only full blocks are known.
            of.filled = self.block_size as u32;
            self.free.remove(block);
            self.cached -= 1;
            self.total_filled += self.block_size;
        } else if of.refs == 2 {
            self.shared += 1;
        }
        self.record(BlockEvent::Share(block));
    }

    /// Drops a reference. Without any the block is free.
    pub fn release(&mut self, block: u32) {
        let of = &mut self.uses[block as usize];
        of.refs -= 1;
        if of.refs == 1 {
            self.shared -= 1;
        } else if of.refs == 0 {
            self.total_filled -= std::mem::take(&mut of.filled) as usize;
            if self.known.prefix(block).is_some() {
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
        let of = &mut self.uses[block as usize];
        let more = slots.saturating_sub(of.filled as usize);
        if more > 0 {
            of.filled = slots as u32;
            self.total_filled += more;
            self.record(BlockEvent::Fill { block, slots });
        }
    }

    /// Notes that only the first `slots` slots of a block, which a single table holds, still hold tokens.
    pub fn unfill(&mut self, block: u32, slots: usize) {
        let of = &mut self.uses[block as usize];
        debug_assert!(of.refs == 1 && slots <= of.filled as usize);
        self.total_filled -= of.filled as usize - slots;
        of.filled = slots as u32;
        self.record(BlockEvent::Fill { block, slots });
    }

    /// Holds the block with the last of `parent`'s tokens followed by `tokens`, if there is one.
    pub fn find(&mut self, parent: Option<PrefixId>, tokens: &[u32]) -> Option<(PrefixId, u32)> {
        let block = self.known.find(parent, tokens)?;
        let name = self.known.prefix(block)?.id();
        self.hold(block);
        Some((name, block))
    }

    /// Notes from now on what cached blocks held that are allocated for other contents.
    pub fn keep_evicted(&mut self) {
        self.evicted.get_or_insert_default();
    }

    /// What was evicted since the last call, in order: each block with the prefix that it was known by. Contents are there
    /// until the moves of the next step.
    pub fn take_evicted(&mut self) -> Vec<(u32, Arc<Prefix>)> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The block that is known by `prefix`.
    pub fn block_of(&self, prefix: &Prefix) -> Option<u32> {
        self.known.find_prefix(prefix)
    }

    /// The name of `parent`'s tokens followed by `tokens`, with which a block is known.
    pub fn known_as(&self, parent: Option<PrefixId>, tokens: &[u32]) -> Option<Arc<Prefix>> {
        self.known.prefix(self.known.find(parent, tokens)?).cloned()
    }

    /// Makes a full block known by its `tokens` and those before it, so that it can be found until its memory is needed.
    /// Returns their name, which is that of `named` where another pool knows these tokens. None if they cannot be known, see
    /// [`PrefixIndex::insert`].
    pub fn register(
        &mut self,
        block: u32,
        parent: Option<PrefixId>,
        tokens: &[u32],
        named: Option<Arc<Prefix>>,
    ) -> Option<PrefixId> {
        if let Some(prefix) = self.known.prefix(block) {
            return Some(prefix.id());
        }
        let name = match named.filter(|_| self.known.find(parent, tokens).is_none()) {
            Some(prefix) => {
                let name = prefix.id();
                self.known.insert_prefix(block, prefix).then_some(name)
            }
            None => self.known.insert(block, parent, tokens),
        };
        if let Some(prefix) = self.known.prefix(block) {
            self.record(BlockEvent::Register { block, prefix: prefix.clone() });
        }
        name
    }

    /// Takes a block for the contents of a block of another pool, which is known by `prefix` if at all. Also returns
    /// whether the contents must be moved here, since no block of this pool has them yet. None if there is no free
    /// block.
    pub fn counterpart(&mut self, prefix: Option<&Prefix>) -> Option<(u32, bool)> {
        match prefix.and_then(|prefix| self.known.find_prefix(prefix)) {
            Some(block) => {
                self.hold(block);
                Some((block, false))
            }
            None => Some((self.allocate()?, true)),
        }
    }

    /// Notes that the contents of `src`, a block of the pool `from`, are moved to `dst`, which is known by the same
    /// tokens from then on.
    pub fn take_over(&mut self, dst: u32, from: &Blocks, src: u32) {
        self.fill(dst, from.uses[src as usize].filled as usize);
        self.record(BlockEvent::Swap { src, dst });
        if let Some(prefix) = from.prefix(src) {
            self.make_known(dst, prefix);
        }
    }

    /// Notes that what `src`, a full block of another pool, was known by until it was evicted is moved to `dst`.
    pub fn take_in(&mut self, dst: u32, src: u32, prefix: &Arc<Prefix>) {
        self.fill(dst, self.block_size);
        self.record(BlockEvent::Swap { src, dst });
        self.make_known(dst, prefix);
    }

    fn make_known(&mut self, block: u32, prefix: &Arc<Prefix>) {
        if self.known.insert_prefix(block, prefix.clone()) {
            self.record(BlockEvent::Register { block, prefix: prefix.clone() });
        }
    }

    /// Forgets what blocks hold: a step that was to fill some of them failed.
    pub fn forget(&mut self) {
        for block in 0..self.uses.len() as u32 {
            if self.known.remove(block).is_some() {
                self.record(BlockEvent::Evict(block));
            }
        }
        self.cached = 0;
        drop(self.take_evicted());
    }

    /// Free blocks whose contents can still be found; ascending.
    pub fn cached(&self) -> Vec<u32> {
        let mut cached: Vec<u32> = self.free.iter().filter(|&b| self.known.prefix(b).is_some()).collect();
        cached.sort_unstable();
        cached
    }
}
