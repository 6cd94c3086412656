//! Compaction: blocks move to fewer pages, so that other groups of layers can use the pages that become free.
//!
//! Blocks of different sequences and ages share pages. When some are given back, the rest may be scattered over more
//! pages than they need. That matters only if a group of sequences that runs alone is short of blocks.

use std::collections::HashMap;

use super::log::BlockEvent;
use super::moves::BlockCopy;
use super::pool::{BlockPool, Blocks};
use super::table::BlockTable;

/// Moves blocks of a pool to the fullest pages of their groups, until each group has at most one page that is partly in
/// use. `tables` are all tables of the pool. Returns false, and moves nothing, if that is so already.
///
/// Afterwards `n` blocks of a group take `ceil(n / blocks per page)` pages. So any further blocks fit if they would fit
/// an empty pool together with these.
pub fn compact<'a>(
    pool: &BlockPool,
    tables: impl IntoIterator<Item = &'a mut BlockTable>,
    copies: &mut Vec<BlockCopy>,
) -> bool {
    let mut moved: HashMap<(usize, u32), u32> = HashMap::new();
    let mut blocks = pool.blocks();
    for group in 0..pool.groups().len() {
        for (src, dst) in blocks.compaction(group) {
            blocks.move_within(group, src, dst);
            copies.push(BlockCopy { group: group as u32, src, dst });
            moved.insert((group, src), dst);
        }
    }
    drop(blocks);
    if moved.is_empty() {
        return false;
    }
    for table in tables {
        table.replace_blocks(pool, |group, block| moved.get(&(group, block)).copied().unwrap_or(block));
    }
    // The tables have their own references now.
    let mut blocks = pool.blocks();
    moved.into_iter().for_each(|((group, _), dst)| blocks.release(group, dst));
    true
}

impl Blocks {
    /// The moves that compact a group: blocks of its emptiest pages, and the free blocks of its fullest pages that
    /// receive their contents. Moving fewer blocks would not be enough.
    fn compaction(&self, group: usize) -> Vec<(u32, u32)> {
        let per_page = self.per_page(group);
        let is_used = |block: &u32| self.num_refs(group, *block) > 0;
        let mut pages: Vec<(usize, std::ops::Range<u32>)> =
            self.pages_of(group).map(|page| (page.clone().filter(is_used).count(), page)).collect();
        pages.retain(|(used, _)| *used > 0);
        pages.sort_by_key(|(used, page)| (std::cmp::Reverse(*used), page.start));
        let total: usize = pages.iter().map(|(used, _)| used).sum();
        let (kept, cleared) = pages.split_at(total.div_ceil(per_page));
        let from = cleared.iter().flat_map(|(_, page)| page.clone()).filter(is_used);
        let to = kept.iter().flat_map(|(_, page)| page.clone()).filter(|block| !is_used(block));
        from.zip(to).collect()
    }

    /// Notes that the contents of `src` move to the free block `dst`, which gets a reference. `src` keeps its references,
    /// and lookups find its contents there until they are evicted.
    fn move_within(&mut self, group: usize, src: u32, dst: u32) {
        self.allocate_in_page(group, dst);
        self.fill(group, dst, self.num_filled(group, src));
        self.record(group, BlockEvent::Copy { src, dst });
    }
}
