//! The blocks of one group of layers.

use std::collections::BTreeSet;

use super::pages::Value;
use crate::kv::free_list::FreeList;
use crate::kv::groups::CacheGroup;

/// The blocks of a group: the first `blocks_per_page` are in the first page, and so on. Most pages may belong to other
/// groups.
#[derive(Debug)]
pub struct GroupBlocks {
    /// Blocks in a page.
    pub per_page: u32,
    /// The size of a block, in units that every group's blocks are multiples of.
    pub units: usize,
    /// The reference counts.
    pub uses: Vec<BlockState>,
    /// For each block, what its contents are worth. Empty if the pool has only one group.
    pub worth: Vec<Worth>,
    /// Unregistered blocks without references, in pages that have references.
    pub free: FreeList,
    /// Registered blocks without references, in pages that have references. The first are evicted first.
    pub cached_in_pages: BTreeSet<(Worth, u32)>,
    /// Sum of [`BlockState::filled`].
    pub total_filled: usize,
    /// Blocks with references.
    pub used: usize,
    /// Registered blocks without references.
    pub cached: usize,
    /// Blocks with more than one reference.
    pub shared: usize,
}

/// The state of a block.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockState {
    /// The number of references.
    pub refs: u32,
    /// The number of slots that hold a token.
    pub filled: u32,
}

/// The worth of a cached block's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worth {
    /// The value.
    pub value: Value,
    /// When it lost its last reference.
    pub released: u64,
    /// Whether a lookup has found it.
    pub was_found: bool,
}

impl GroupBlocks {
    /// The blocks of a group in `pages` pages, all of them free. `groups` is the number of groups, and `units` the size
    /// of a block.
    pub fn new(group: &CacheGroup, pages: u32, groups: usize, units: usize) -> Self {
        let per_page = group.blocks_per_page as u32;
        let count = pages as usize * per_page as usize;
        GroupBlocks {
            per_page,
            units,
            uses: vec![BlockState::default(); count],
            worth: if groups > 1 { vec![Worth::default(); count] } else { Vec::new() },
            free: FreeList::empty(if per_page > 1 { count as u32 } else { 0 }),
            cached_in_pages: BTreeSet::new(),
            total_filled: 0,
            used: 0,
            cached: 0,
            shared: 0,
        }
    }

    /// Blocks without references in pages that have references. Only this group can use them.
    pub fn num_free_in_pages(&self) -> usize {
        self.free.len() + self.cached_in_pages.len()
    }

    /// The blocks of a page.
    pub fn in_page(&self, page: u32) -> std::ops::Range<u32> {
        page * self.per_page..(page + 1) * self.per_page
    }

    /// Makes a block without references available, in a page that has references.
    pub fn add_free(&mut self, block: u32, is_cached: bool) {
        if is_cached {
            self.cached_in_pages.insert((self.worth[block as usize], block));
        } else {
            self.free.push_last(0, block);
        }
    }

    /// Reverses [`Self::add_free`].
    pub fn remove_free(&mut self, block: u32, is_cached: bool) {
        if is_cached {
            self.cached_in_pages.remove(&(self.worth[block as usize], block));
        } else {
            self.free.remove(block);
        }
    }
}
