//! The physical blocks of a pool: a reference count for each, and the blocks without references.
//!
//! ```text
//!   free --- allocate ---> in use --- register ---> in use, registered
//!    ^                      |                       |      ^
//!    |<----- released ------+              released |      | find
//!    |                                              v      |
//!    +------------ allocate (evicted) ------------- cached-+
//! ```
//!
//! Cached blocks are free too. Empty blocks are allocated first, then cached blocks that a window left behind, then others
//! by age, see [`Value`]. `allocation.rs` has the rules for several groups of layers.

use std::ops::Range;
use std::sync::Arc;

use super::group::GroupBlocks;
use super::pages::{Pages, Value};
use super::residents::Residents;
use crate::kv::counts::Counts;
use crate::kv::groups::CacheGroup;
use crate::kv::log::{BlockEvent, Logger};
use crate::kv::prefix::{Prefix, PrefixId, PrefixIndex, Text};
use crate::kv::usage::PoolUsage;

/// All blocks of a pool. [`Blocks::acquire`] and [`Blocks::allocate`] take a reference, and [`Blocks::release`] drops
/// one.
#[derive(Debug)]
pub struct Blocks {
    pub(super) block_size: usize,
    pub(super) pages: Pages,
    pub(super) groups: Vec<GroupBlocks>,
    /// The prefixes under which full blocks are registered.
    pub(super) registered: PrefixIndex,
    /// Blocks that are about to be allocated, see [`Blocks::claim`].
    pub claims: Counts,
    /// The loaded adapters.
    pub(super) residents: Residents,
    /// Counts the releases of blocks.
    pub(super) now: u64,
    /// Units in a page, see [`GroupBlocks::units`].
    pub(super) page_units: usize,
    /// Blocks evicted since the last [`Blocks::take_evicted`], in order. `None` if they are not recorded.
    evicted: Option<Vec<EvictedBlock>>,
    pub(super) log: Option<Logger>,
}

/// A block that was evicted.
#[derive(Debug)]
pub struct EvictedBlock {
    /// Its group.
    pub group: usize,
    /// The block.
    pub block: u32,
    /// The prefix whose last tokens it held.
    pub prefix: Arc<Prefix>,
}

impl Blocks {
    /// `pages` pages of free blocks of `block_size` tokens.
    pub fn new(pages: u32, block_size: usize, groups: &[CacheGroup]) -> Self {
        let count = |group: &CacheGroup| group.blocks_per_page * pages as usize;
        let page_units = groups.iter().fold(1, |units, group| lcm(units, group.blocks_per_page));
        let blocks = |group| GroupBlocks::new(group, pages, groups.len(), page_units / group.blocks_per_page);
        Blocks {
            block_size,
            pages: Pages::new(pages, groups.len()),
            registered: PrefixIndex::new(groups.iter().map(count)),
            groups: groups.iter().map(blocks).collect(),
            claims: Counts::default(),
            residents: Residents::default(),
            now: 0,
            page_units,
            evicted: None,
            log: None,
        }
    }

    /// Records an event in the log, if there is one.
    pub fn record(&self, group: usize, event: BlockEvent) {
        if let Some(log) = &self.log {
            log.record(group, event);
        }
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The reference count of a block.
    pub fn num_refs(&self, group: usize, block: u32) -> usize {
        self.groups[group].uses[block as usize].refs as usize
    }

    /// The number of slots of a block that hold a token.
    pub fn num_filled(&self, group: usize, block: u32) -> usize {
        self.groups[group].uses[block as usize].filled as usize
    }

    /// Blocks of a group in a page.
    pub fn per_page(&self, group: usize) -> usize {
        self.groups[group].per_page as usize
    }

    /// The blocks of each page of a group.
    pub fn pages_of(&self, group: usize) -> impl Iterator<Item = Range<u32>> {
        let is_own =
            move |page: &u32| self.pages.states().get(*page as usize).is_none_or(|state| state.group as usize == group);
        (0..self.pages.len() as u32).filter(is_own).map(move |page| self.groups[group].in_page(page))
    }

    /// The prefix that a block is registered under.
    pub fn prefix(&self, group: usize, block: u32) -> Option<&Arc<Prefix>> {
        self.registered.prefix(group, block)
    }

    /// How much of the pool is in use.
    pub fn usage(&self) -> PoolUsage {
        let mut usage = PoolUsage {
            num_blocks: self.pages.len() * self.page_units,
            adapter_blocks: self.residents.num_pages() * self.page_units,
            ..PoolUsage::default()
        };
        for group in &self.groups {
            usage.used_blocks += group.used * group.units;
            usage.shared_blocks += group.shared * group.units;
            usage.cached_blocks += group.cached * group.units;
            usage.used_slots += group.used * self.block_size;
            usage.filled_slots += group.total_filled;
        }
        usage
    }

    /// How many blocks of a group are in use. Its share of the memory changes, so `num_blocks` counts all pages.
    pub fn group_usage(&self, group: usize) -> PoolUsage {
        let group = &self.groups[group];
        PoolUsage {
            num_blocks: group.uses.len(),
            used_blocks: group.used,
            shared_blocks: group.shared,
            cached_blocks: group.cached,
            adapter_blocks: 0,
            used_slots: group.used * self.block_size,
            filled_slots: group.total_filled,
        }
    }

    /// Allocates a free block. Cached blocks are taken last and lose their contents.
    pub fn allocate(&mut self, group: usize) -> Option<u32> {
        let block = self.take_block(group)?;
        self.begin_use(group, block);
        Some(block)
    }

    /// Allocates a certain free block in a page that has references.
    pub fn allocate_in_page(&mut self, group: usize, block: u32) {
        let is_cached = self.registered.prefix(group, block).is_some();
        self.groups[group].remove_free(block, is_cached);
        self.evict(group, block);
        self.pages.state(block / self.groups[group].per_page).used += 1;
        self.begin_use(group, block);
    }

    fn begin_use(&mut self, group: usize, block: u32) {
        let own = &mut self.groups[group];
        own.uses[block as usize].refs = 1;
        own.used += 1;
        self.record(group, BlockEvent::Allocate(block));
    }

    /// Removes a block from the prefix index because it is about to be reused.
    pub(super) fn evict(&mut self, group: usize, block: u32) {
        let Some(prefix) = self.registered.remove(group, block) else { return };
        let own = &mut self.groups[group];
        own.cached -= 1;
        let is_low = own.worth.get(block as usize).is_some_and(|worth| worth.value == Value::Low);
        self.record(group, BlockEvent::Evict(block));
        if let Some(evicted) = self.evicted.as_mut().filter(|_| !is_low) {
            evicted.push(EvictedBlock { group, block, prefix });
        }
    }

    /// Adds a reference to a block that is in use or cached.
    pub fn acquire(&mut self, group: usize, block: u32) {
        let own = &mut self.groups[group];
        let usage = &mut own.uses[block as usize];
        usage.refs += 1;
        if usage.refs == 1 {
            // Only full blocks are registered.
            usage.filled = self.block_size as u32;
            own.cached -= 1;
            own.used += 1;
            own.total_filled += self.block_size;
            self.enter_use(group, block);
        } else if usage.refs == 2 {
            own.shared += 1;
        }
        self.record(group, BlockEvent::Share(block));
    }

    /// As [`Self::acquire`], for a block that a lookup has found.
    pub fn acquire_found(&mut self, group: usize, block: u32) {
        self.acquire(group, block);
        if let Some(worth) = self.groups[group].worth.get_mut(block as usize) {
            worth.was_found = true;
        }
    }

    /// Drops a reference. A block without references is free, or cached if it is registered.
    pub fn release(&mut self, group: usize, block: u32) {
        self.release_as(group, block, Value::High);
    }

    /// As [`Self::release`], for a block that the window has left behind. If no lookup has found it yet, it gets only this
    /// value: a longer prefix does not need it, and no prompt is known to branch off there.
    pub fn release_behind(&mut self, group: usize, block: u32, value: Value) {
        let is_new = self.groups[group].worth.get(block as usize).is_some_and(|worth| !worth.was_found);
        self.release_as(group, block, if is_new { value } else { Value::High });
    }

    pub(super) fn release_as(&mut self, group: usize, block: u32, value: Value) {
        let own = &mut self.groups[group];
        let usage = &mut own.uses[block as usize];
        usage.refs -= 1;
        if usage.refs == 1 {
            own.shared -= 1;
        } else if usage.refs == 0 {
            own.total_filled -= std::mem::take(&mut usage.filled) as usize;
            own.used -= 1;
            let is_cached = self.registered.prefix(group, block).is_some();
            own.cached += usize::from(is_cached);
            self.now += 1;
            if let Some(worth) = own.worth.get_mut(block as usize) {
                (worth.value, worth.released) = (value, self.now);
            }
            self.leave_use(group, block, is_cached.then_some(value), self.now);
        }
        self.record(group, BlockEvent::Free(block));
    }

    /// Notes that at least the first `slots` slots of a block hold tokens.
    pub fn fill(&mut self, group: usize, block: u32, slots: usize) {
        let own = &mut self.groups[group];
        let usage = &mut own.uses[block as usize];
        let more = slots.saturating_sub(usage.filled as usize);
        if more > 0 {
            usage.filled = slots as u32;
            own.total_filled += more;
            self.record(group, BlockEvent::Fill { block, slots });
        }
    }

    /// Notes that only the first `slots` slots of a block still hold tokens. Exactly one table may reference the block.
    pub fn unfill(&mut self, group: usize, block: u32, slots: usize) {
        let own = &mut self.groups[group];
        let usage = &mut own.uses[block as usize];
        debug_assert!(usage.refs == 1 && slots <= usage.filled as usize);
        own.total_filled -= usage.filled as usize - slots;
        usage.filled = slots as u32;
        self.record(group, BlockEvent::Fill { block, slots });
    }

    /// Returns the block of a group that holds `text`, if one is registered.
    pub fn find(&self, group: usize, text: &Text<'_>) -> Option<u32> {
        self.registered.find(group, text)
    }

    /// Starts recording the prefixes of evicted blocks.
    pub fn keep_evicted(&mut self) {
        self.evicted.get_or_insert_default();
    }

    /// Returns the blocks evicted since the last call, in order, except those of [`Value::Low`]. Their contents stay
    /// valid until the moves of the next step.
    pub fn take_evicted(&mut self) -> Vec<EvictedBlock> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The prefix that ends with `text`, if any group has a registered block for it.
    pub fn known(&self, text: &Text<'_>) -> Option<Arc<Prefix>> {
        self.registered.known(text).cloned()
    }

    /// Registers full blocks, one for each group that still has one, by their `text`. Lookups find them until their
    /// memory is needed. Returns the id of their prefix. If another pool has registered the same tokens under `prefix`,
    /// the id stays the same. Returns `None` if no group can take the block, see [`PrefixIndex::insert`].
    pub fn register(
        &mut self,
        blocks: impl Iterator<Item = (usize, u32)>,
        text: &Text<'_>,
        prefix: Option<Arc<Prefix>>,
    ) -> Option<PrefixId> {
        let known = self.known(text);
        let mut is_registered = known.is_some();
        let prefix = known.or(prefix).unwrap_or_else(|| self.registered.create(text));
        for (group, block) in blocks {
            is_registered |= self.prefix(group, block).is_some() || self.register_prefix(group, block, &prefix);
        }
        is_registered.then(|| prefix.id())
    }

    /// Takes a reference to a block for the contents of another pool's block. `prefix` is that block's prefix, if it has
    /// one. If a block of this pool has the same contents, returns it and false. Otherwise allocates a block and
    /// returns it and true: the contents must be moved. Returns `None` if no block is free.
    pub fn counterpart(&mut self, group: usize, prefix: Option<&Prefix>) -> Option<(u32, bool)> {
        match self.acquire_counterpart(group, prefix) {
            Some(block) => Some((block, false)),
            None => Some((self.allocate(group)?, true)),
        }
    }

    /// Takes a reference to the block that is registered under `prefix`, if there is one.
    pub fn acquire_counterpart(&mut self, group: usize, prefix: Option<&Prefix>) -> Option<u32> {
        let block = self.registered.find(group, &Text::from(prefix?))?;
        self.acquire(group, block);
        Some(block)
    }

    /// Notes that the contents of `src`, a block of the pool `from`, move to `dst`. Registers `dst` under the prefix of
    /// `src`.
    pub fn move_in(&mut self, group: usize, dst: u32, from: &Blocks, src: u32) {
        self.fill(group, dst, from.groups[group].uses[src as usize].filled as usize);
        self.record(group, BlockEvent::Swap { src, dst });
        if let Some(prefix) = from.prefix(group, src) {
            self.register_prefix(group, dst, prefix);
        }
    }

    /// Notes that the contents of a full block evicted from another pool move to `dst`. Registers `dst` under its prefix.
    pub fn offload_in(&mut self, dst: u32, evicted: &EvictedBlock) {
        let &EvictedBlock { group, block: src, ref prefix } = evicted;
        self.fill(group, dst, self.block_size);
        self.record(group, BlockEvent::Swap { src, dst });
        self.register_prefix(group, dst, prefix);
    }

    /// Registers an unregistered block. Returns false if the index cannot take it.
    pub(super) fn register_prefix(&mut self, group: usize, block: u32, prefix: &Arc<Prefix>) -> bool {
        let is_registered = self.registered.insert(group, block, prefix);
        if is_registered {
            if let Some(worth) = self.groups[group].worth.get_mut(block as usize) {
                worth.was_found = false;
            }
            self.record(group, BlockEvent::Register { block, prefix: prefix.clone() });
        }
        is_registered
    }

    /// Empties the prefix index. Called after a step failed that was to fill some of the blocks.
    pub fn reset_prefix_cache(&mut self) {
        // The step may not have loaded them.
        self.evict_idle_adapters();
        for group in 0..self.groups.len() {
            for block in 0..self.groups[group].uses.len() as u32 {
                if self.registered.remove(group, block).is_some() {
                    self.record(group, BlockEvent::Evict(block));
                }
            }
            let own = &mut self.groups[group];
            own.cached = 0;
            for (_, block) in std::mem::take(&mut own.cached_in_pages) {
                own.free.push_last(0, block);
            }
        }
        self.pages.forget_cached();
        drop(self.take_evicted());
    }
}

fn lcm(a: usize, b: usize) -> usize {
    (1..=b).map(|times| times * a).find(|multiple| multiple.is_multiple_of(b)).unwrap_or(a)
}
