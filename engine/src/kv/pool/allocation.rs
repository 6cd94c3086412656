//! Choosing the block to allocate.
//!
//! A group can use two kinds of free blocks: those in its own pages that have references, which no other group can use,
//! and those of a page without references. Blocks without contents are taken first, then cached ones by value and age.
//! A page can be taken only if the blocks that other groups are about to allocate still find room.

use super::blocks::Blocks;
use super::pages::Value;
use crate::kv::counts::Counts;

impl Blocks {
    /// Whether the given numbers of blocks can be allocated, so that `spare_pages` pages without references are left.
    pub fn fits(&self, counts: &Counts, spare_pages: usize) -> bool {
        self.pages_for(counts) + spare_pages <= self.pages.num_free()
    }

    /// The pages without references that it takes to allocate the given numbers of blocks.
    fn pages_for(&self, counts: &Counts) -> usize {
        let pages = |(at, group): (usize, &super::group::GroupBlocks)| {
            let more = counts.of(at).saturating_sub(group.num_free_in_pages());
            if group.per_page == 1 { more } else { more.div_ceil(group.per_page as usize) }
        };
        self.groups.iter().enumerate().map(pages).sum()
    }

    /// Announces the allocations of `counts` blocks, which must fit. They succeed in any order, if no other block is
    /// allocated or acquired before.
    ///
    /// Proof: let a group still want `n` blocks and have `p` free ones in its pages. Together the groups need
    /// `ceil(max(0, n - p) / blocks per page)` pages each, and at first there are as many without references. Taking a
    /// block in a page subtracts one from both `n` and `p`. Taking a page if `n > p` makes the group need one page less.
    /// Taking one although `n <= p` happens only if more pages are left than all groups need. So there are always enough.
    pub fn claim(&mut self, counts: Counts) {
        self.claims = counts;
    }

    /// Whether a group may take a page without references although it has free blocks in its pages.
    fn can_spare_page(&self, group: usize) -> bool {
        self.claims.of(group) > self.groups[group].num_free_in_pages()
            || self.pages_for(&self.claims) < self.pages.num_free()
    }

    /// Takes a free block out of the lists. If it is cached, it loses its contents.
    pub(super) fn take_block(&mut self, group: usize) -> Option<u32> {
        let block = match self.groups[group].per_page {
            1 => self.take_page(group)?,
            _ => self.take_block_in_page(group)?,
        };
        self.claims.take_one(group);
        if self.groups.len() > 1 {
            let page = block / self.groups[group].per_page;
            self.pages.state(page).used += 1;
        }
        Some(block)
    }

    fn take_block_in_page(&mut self, group: usize) -> Option<u32> {
        if let Some(block) = self.groups[group].free.take_first(0) {
            return Some(block);
        }
        let oldest = self.groups[group].cached_in_pages.first().copied();
        let Some((worth, block)) = oldest.filter(|(worth, _)| {
            let is_older = self.pages.next_age().is_some_and(|age| (worth.value, worth.released) < age);
            self.pages.num_free() == 0 || is_older || !self.can_spare_page(group)
        }) else {
            let page = self.take_page(group)?;
            let own = &mut self.groups[group];
            let blocks = own.in_page(page);
            blocks.clone().skip(1).for_each(|block| own.add_free(block, false));
            return Some(blocks.start);
        };
        self.groups[group].cached_in_pages.remove(&(worth, block));
        self.evict(group, block);
        Some(block)
    }

    /// Takes a page without references. Its cached blocks, or its adapter, lose their contents.
    fn take_page(&mut self, group: usize) -> Option<u32> {
        let (page, cached) = self.pages.take(group)?;
        if let Some(owner) = cached {
            self.vacate(page, owner);
        }
        Some(page)
    }

    /// Takes a cached block out of the lists, because it gets a reference.
    pub(super) fn enter_use(&mut self, group: usize, block: u32) {
        let per_page = self.groups[group].per_page;
        if self.groups.len() == 1 && per_page == 1 {
            return self.pages.reclaim(block);
        }
        let page = block / per_page;
        let state = self.pages.state(page);
        state.used += 1;
        if state.used > 1 {
            self.groups[group].remove_free(block, true);
            return;
        }
        self.pages.reclaim(page);
        for other in self.groups[group].in_page(page).filter(|&other| other != block) {
            let is_cached = self.registered.prefix(group, other).is_some();
            self.groups[group].add_free(other, is_cached);
        }
    }

    /// Adds a block that has lost its last reference to the lists. `value` is set if it is cached.
    pub(super) fn leave_use(&mut self, group: usize, block: u32, value: Option<Value>, now: u64) {
        let per_page = self.groups[group].per_page;
        if self.groups.len() == 1 && per_page == 1 {
            return self.pages.release(block, value, now);
        }
        let page = block / per_page;
        let state = self.pages.state(page);
        state.used -= 1;
        if state.used > 0 {
            self.groups[group].add_free(block, value.is_some());
            return;
        }
        let mut highest = value;
        for other in self.groups[group].in_page(page).filter(|&other| other != block) {
            let is_cached = self.registered.prefix(group, other).is_some();
            self.groups[group].remove_free(other, is_cached);
            let worth = self.groups[group].worth[other as usize];
            highest = highest.max(is_cached.then_some(worth.value));
        }
        self.pages.release(page, highest, now);
    }
}
