//! A consistency check: the pool's counts must agree with each other and with the block tables.

use super::BlockPool;
use super::blocks::Blocks;
use super::group::GroupBlocks;
use super::pages::Value;
use crate::kv::table::BlockTable;

impl BlockPool {
    /// Checks the reference counts, the pages and the lists of free blocks. Every block must have as many references as
    /// it occurs in `tables`, which are all tables. It must be free if it has none.
    ///
    /// # Errors
    /// Describes the first inconsistency.
    pub fn check_integrity<'a>(&self, tables: impl IntoIterator<Item = &'a BlockTable>) -> Result<(), String> {
        let blocks = self.blocks();
        let mut refs: Vec<Vec<u32>> = blocks.groups.iter().map(|group| vec![0; group.uses.len()]).collect();
        for table in tables {
            for (group, lane) in table.lanes().iter().enumerate() {
                lane.present().for_each(|block| refs[group][block as usize] += 1);
            }
        }
        for (at, refs) in refs.iter().enumerate() {
            check_group(&blocks, at, refs).map_err(|why| format!("group {at}: {why}"))?;
        }
        check_pages(&blocks)
    }
}

/// Checks the counts of a group against the references of its blocks in the tables.
fn check_group(blocks: &Blocks, at: usize, refs: &[u32]) -> Result<(), String> {
    let group = &blocks.groups[at];
    if let Some(b) = (0..refs.len()).find(|&b| refs[b] != group.uses[b].refs) {
        return Err(format!("block {b} is in {} tables but counts {} references", refs[b], group.uses[b].refs));
    }
    if let Some(b) = group.uses.iter().position(|usage| usage.refs == 0 && usage.filled != 0) {
        return Err(format!("free block {b} claims to hold tokens"));
    }
    let filled = || group.uses.iter().map(|usage| usage.filled as usize);
    if filled().sum::<usize>() != group.total_filled || filled().any(|f| f > blocks.block_size) {
        return Err(format!("{} slots are filled but {} are counted", filled().sum::<usize>(), group.total_filled));
    }
    let count = |is: fn(u32) -> bool| group.uses.iter().filter(|usage| is(usage.refs)).count();
    let (used, shared) = (count(|refs| refs > 0), count(|refs| refs > 1));
    if (used, shared) != (group.used, group.shared) {
        let counted = (group.used, group.shared);
        return Err(format!("{used} blocks are in use and {shared} shared, but {counted:?} are counted"));
    }
    let registered: Vec<u32> = blocks.registered.all(at).map(|(block, _)| block).collect();
    let cached = registered.iter().filter(|&&block| group.uses[block as usize].refs == 0).count();
    if cached != group.cached || registered.len() != blocks.registered.len(at) {
        return Err(format!("{cached} blocks are cached but {} are counted", group.cached));
    }
    Ok(())
}

/// Checks that each page is free or in use, and that the free blocks of pages in use are in their group's lists.
fn check_pages(blocks: &Blocks) -> Result<(), String> {
    let mut is_free = vec![false; blocks.pages.len()];
    let mut order = Vec::new();
    for page in blocks.pages.free() {
        if std::mem::replace(&mut is_free[page as usize], true) {
            return Err(format!("page {page} is free twice"));
        }
        let group = blocks.pages.states().get(page as usize).map_or(0, |state| state.group as usize);
        order.push(highest(blocks, group, page));
    }
    if order.len() != blocks.pages.num_free() || !order.is_sorted() {
        return Err("pages with cached blocks are not last in the list of free pages, or their number is wrong".into());
    }
    for (at, group) in blocks.groups.iter().enumerate() {
        let mut free_in_pages = 0;
        for page in 0..blocks.pages.len() as u32 {
            if let Some(leases) = blocks.residents.leases_of_page(page) {
                if (leases == 0) != is_free[page as usize]
                    || group.in_page(page).any(|b| group.uses[b as usize].refs > 0)
                {
                    return Err(format!("page {page} of an adapter with {leases} leases is free, or has blocks"));
                }
                continue;
            }
            let is_own = blocks.pages.states().get(page as usize).is_none_or(|state| state.group as usize == at);
            let used = group.in_page(page).filter(|&block| group.uses[block as usize].refs > 0).count();
            if used > 0 && !is_own || is_own && (used == 0) != is_free[page as usize] {
                return Err(format!("page {page} has {used} blocks in use, its own group: {is_own}"));
            }
            if blocks.pages.states().get(page as usize).is_some_and(|state| is_own && state.used as usize != used) {
                return Err(format!("page {page} counts a wrong number of blocks in use"));
            }
            if !is_own && group.in_page(page).any(|block| blocks.prefix(at, block).is_some()) {
                return Err(format!("a block of group {at} is registered in page {page} of another group"));
            }
            if used > 0 {
                free_in_pages += group.per_page as usize - used;
            }
        }
        check_free_in_pages(blocks, at, group, free_in_pages)?;
    }
    Ok(())
}

/// The highest value of the cached blocks in a page without references.
fn highest(blocks: &Blocks, at: usize, page: u32) -> Option<Value> {
    if blocks.residents.leases_of_page(page).is_some() {
        return Some(Value::High);
    }
    // A page that an adapter had has no group.
    let group = blocks.groups.get(at)?;
    let cached = group.in_page(page).filter(|&block| blocks.prefix(at, block).is_some());
    cached.map(|block| group.worth.get(block as usize).map_or(Value::High, |worth| worth.value)).max()
}

/// Checks the lists of a group's free blocks in pages that have references.
fn check_free_in_pages(blocks: &Blocks, at: usize, group: &GroupBlocks, count: usize) -> Result<(), String> {
    let cached = group
        .cached_in_pages
        .iter()
        .map(|&(worth, block)| worth == group.worth[block as usize] && blocks.prefix(at, block).is_some());
    let free = group.free.iter(0).map(|block| blocks.prefix(at, block).is_none());
    let right: Vec<bool> = free.chain(cached).collect();
    if right.len() != count || group.num_free_in_pages() != count || right.contains(&false) {
        return Err(format!("group {at} has {count} free blocks in its pages, but lists {}", right.len()));
    }
    let listed = group.free.iter(0).chain(group.cached_in_pages.iter().map(|(_, block)| *block));
    match listed.into_iter().find(|&block| group.uses[block as usize].refs > 0) {
        Some(block) => Err(format!("block {block} of group {at} is both in use and free")),
        None => Ok(()),
    }
}
