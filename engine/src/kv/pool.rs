//! The pool of physical blocks: a handle that the scheduler and all block tables share.

mod allocation;
mod blocks;
mod group;
mod integrity;
mod lease;
mod pages;
mod residents;
mod states;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) use self::blocks::{Blocks, EvictedBlock};
pub use self::lease::AdapterLease;
pub(super) use self::pages::Value;
use super::capacity;
use super::counts::Counts;
use super::groups::CacheGroup;
use super::log::{BlockEvent, Logger, SharedLog, Space};
use super::prefix::Prefix;
use super::usage::PoolUsage;

/// All physical blocks of a KV cache. Clones are handles to the same pool.
#[derive(Clone, Debug)]
pub struct BlockPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    block_size: usize,
    num_pages: usize,
    groups: Vec<CacheGroup>,
    has_windows: bool,
    has_states: bool,
    boundary: Option<usize>,
    blocks: Mutex<Blocks>,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks of `block_size` tokens each, for one group of layers.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        BlockPool::with_groups(num_blocks, block_size, &[CacheGroup::only(None)])
    }

    /// A pool of `num_pages` free pages with blocks of `block_size` tokens each, for several groups of layers.
    pub fn with_groups(num_pages: usize, block_size: usize, groups: &[CacheGroup]) -> Self {
        BlockPool::with_boundary(num_pages, block_size, groups, None)
    }

    /// As [`Self::with_groups`], for a model that encodes positions differently in sequences of more than `boundary`
    /// tokens.
    pub fn with_boundary(num_pages: usize, block_size: usize, groups: &[CacheGroup], boundary: Option<usize>) -> Self {
        let at_least_one =
            |group: &CacheGroup| CacheGroup { window: group.window.map(|window| window.max(1)), ..*group };
        let groups: Vec<CacheGroup> = groups.iter().map(at_least_one).collect();
        // Blocks have numbers of 32 bits.
        let most_per_page = groups.iter().map(|group| group.blocks_per_page).max().unwrap_or(1);
        let num_pages = num_pages.min(u32::MAX as usize / most_per_page - 4);
        let blocks = Mutex::new(Blocks::new(num_pages as u32, block_size, &groups));
        let has_windows = groups.iter().any(|group| group.window.is_some());
        let has_states = groups.iter().any(CacheGroup::is_state);
        BlockPool {
            shared: Arc::new(Shared { block_size, num_pages, groups, has_windows, has_states, boundary, blocks }),
        }
    }

    /// The number of tokens of the longest short sequence. `None` if the model encodes the positions of all sequences
    /// alike.
    pub fn boundary(&self) -> Option<usize> {
        self.shared.boundary
    }

    /// Whether a sequence of `tokens` tokens is long: the model encodes its positions differently, so its keys differ
    /// from the keys of a short sequence with the same tokens.
    pub fn is_long(&self, tokens: usize) -> bool {
        self.boundary().is_some_and(|boundary| tokens > boundary)
    }

    /// Sends all later block events to `log`.
    pub fn set_log(&self, log: SharedLog, space: Space) {
        self.blocks().log = Some(Logger { log, space });
    }

    /// Records in the log that a step was scheduled.
    pub fn record_step(&self) {
        let blocks = self.blocks();
        blocks.record(0, BlockEvent::Step(blocks.usage()));
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.shared.block_size
    }

    /// The groups of layers.
    pub fn groups(&self) -> &[CacheGroup] {
        &self.shared.groups
    }

    /// Whether any group has a sliding window.
    pub fn has_windows(&self) -> bool {
        self.shared.has_windows
    }

    /// Whether any group keeps states of recurrent layers.
    pub fn has_states(&self) -> bool {
        self.shared.has_states
    }

    /// The blocks of each group that a sequence of `tokens` tokens needs at a time, if at most `chunk` tokens are computed
    /// per step.
    pub fn blocks_at_once(&self, tokens: usize, chunk: usize) -> Counts {
        capacity::blocks_at_once(self.groups(), self.block_size(), tokens, chunk)
    }

    /// The pages, free or not. With one group, a page is a block.
    pub fn num_pages(&self) -> usize {
        self.shared.num_pages
    }

    /// Pages without references, including those with cached blocks.
    pub fn num_free(&self) -> usize {
        self.blocks().pages.num_free()
    }

    /// Whether the given numbers of blocks can be allocated, so that `spare_pages` pages without references are left.
    pub fn fits(&self, counts: &Counts, spare_pages: usize) -> bool {
        self.blocks().fits(counts, spare_pages)
    }

    /// Announces the allocations of `counts` blocks. Returns false, and changes nothing, if they do not fit. They then
    /// succeed in any order, if no other block is allocated before.
    pub fn claim(&self, counts: Counts) -> bool {
        let mut blocks = self.blocks();
        let fits = blocks.fits(&counts, 0);
        if fits {
            blocks.claim(counts);
        }
        fits
    }

    /// As [`Self::claim`], for up to `count` blocks of each group.
    pub fn claim_each(&self, count: usize) -> bool {
        match self.groups().len() {
            // Claims matter only to other groups.
            1 => count <= self.blocks().pages.num_free(),
            groups => self.claim(Counts::each(groups, count)),
        }
    }

    /// Whether an empty pool holds the given numbers of blocks besides `other_pages` pages.
    pub fn holds(&self, counts: &Counts, other_pages: usize) -> bool {
        capacity::pages_for(self.groups(), counts) + other_pages <= self.num_pages()
    }

    /// The size of the given blocks, in the units of [`PoolUsage`].
    pub fn units(&self, counts: &Counts) -> usize {
        if self.groups().len() == 1 {
            return counts.of(0);
        }
        let blocks = self.blocks();
        blocks.groups.iter().enumerate().map(|(at, group)| counts.of(at) * group.units).sum()
    }

    /// The size of the pool, in the units of [`PoolUsage`].
    pub fn num_units(&self) -> usize {
        self.units_of_pages(self.num_pages())
    }

    /// The size of some pages, in the units of [`PoolUsage`].
    pub fn units_of_pages(&self, pages: usize) -> usize {
        pages * self.blocks().page_units
    }

    /// The registered blocks of a group, in ascending order, each with the prefix whose last tokens it holds.
    pub fn registered(&self, group: usize) -> Vec<(u32, Arc<Prefix>)> {
        self.blocks().registered.all(group).map(|(block, prefix)| (block, prefix.clone())).collect()
    }

    /// The reference count of each page: the highest of its blocks, or the leases of its adapter.
    pub fn page_references(&self) -> Vec<u32> {
        let blocks = self.blocks();
        let mut refs = vec![0; self.num_pages()];
        for group in &blocks.groups {
            for (page, blocks) in group.uses.chunks(group.per_page as usize).enumerate() {
                refs[page] = blocks.iter().map(|block| block.refs).max().unwrap_or(0).max(refs[page]);
            }
        }
        for (page, refs) in refs.iter_mut().enumerate() {
            *refs = blocks.residents.leases_of_page(page as u32).unwrap_or(*refs);
        }
        refs
    }

    /// Pages without references that have cached blocks, in ascending order.
    pub fn cached_pages(&self) -> Vec<u32> {
        let blocks = self.blocks();
        let mut cached = blocks.pages.cached();
        cached.retain(|page| blocks.residents.leases_of_page(*page).is_none());
        cached
    }

    /// How much of the pool is in use.
    pub fn usage(&self) -> PoolUsage {
        self.blocks().usage()
    }

    /// How many blocks of a group are in use.
    pub fn group_usage(&self, group: usize) -> PoolUsage {
        self.blocks().group_usage(group)
    }

    /// Whether both are handles to the same pool.
    pub fn is(&self, other: &BlockPool) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Empties the prefix index. Called after a step failed that was to fill some of the blocks.
    pub fn reset_prefix_cache(&self) {
        self.blocks().reset_prefix_cache();
    }

    /// Locks the blocks.
    pub(super) fn blocks(&self) -> MutexGuard<'_, Blocks> {
        // Every operation leaves the blocks consistent, so a poisoned lock can be ignored.
        self.shared.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
