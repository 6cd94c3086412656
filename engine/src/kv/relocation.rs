//! Swapping: block tables move from one pool to another, all or none (4.5 of the paper).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::pool::BlockPool;
use super::table::{BlockTable, OutOfBlocks};
use crate::kv::BlockCopy;

/// Moves tables from another pool, the same for all, to `to`. A block that several tables share moves once, and they
/// share it afterwards. If `to` already has the contents of a registered block, its block is shared instead. The
/// contents arrive when the backend makes the `moves`.
///
/// # Errors
/// If `to` has too few free blocks. Nothing is changed then.
pub fn relocate<'a>(
    tables: impl IntoIterator<Item = &'a mut BlockTable>,
    to: &BlockPool,
    moves: &mut Vec<BlockCopy>,
) -> Result<(), OutOfBlocks> {
    let tables: Vec<&mut BlockTable> = tables.into_iter().collect();
    let Some(from) = tables.first().map(|table| table.pool().clone()) else { return Ok(()) };
    debug_assert!(!from.is(to) && tables.iter().all(|table| table.pool().is(&from)));
    let mut new: HashMap<u32, u32> = HashMap::new();
    let (mut acquired, mut moved) = (Vec::new(), Vec::new());
    let (from, mut target) = (from.blocks(), to.blocks());
    for &src in tables.iter().flat_map(|t| t.live_blocks()) {
        if let Entry::Vacant(entry) = new.entry(src) {
            let Some((dst, must_move)) = target.counterpart(from.prefix(src).map(AsRef::as_ref)) else {
                acquired.into_iter().rev().for_each(|dst| target.release(dst));
                return Err(OutOfBlocks);
            };
            if must_move {
                moved.push(BlockCopy { src, dst });
            }
            acquired.push(dst);
            entry.insert(dst);
        }
    }
    // Only now is it certain that all tables move: a block must not be registered if its contents may never arrive.
    for &BlockCopy { src, dst } in &moved {
        target.move_in(dst, &from, src);
    }
    moves.extend(moved);
    drop((from, target));
    for table in tables {
        table.replace_blocks(to, |src| new[&src]);
    }
    // The tables have their own references now.
    let mut target = to.blocks();
    acquired.into_iter().for_each(|dst| target.release(dst));
    Ok(())
}

/// The number of free blocks of `to` that [`relocate`] takes for the tables that are not in `to` yet. A shared block
/// counts once, and a block whose contents are already in use in `to` does not count.
pub fn blocks_to_relocate<'a>(tables: impl IntoIterator<Item = &'a BlockTable>, to: &BlockPool) -> usize {
    let mut seen = HashSet::new();
    let mut moved = 0;
    for table in tables.into_iter().filter(|table| !table.pool().is(to)) {
        let (from, target) = (table.pool().blocks(), to.blocks());
        let is_in_use = |src| {
            from.prefix(src).and_then(|prefix| target.block_of(prefix)).is_some_and(|dst| target.num_refs(dst) > 0)
        };
        moved += table.live_blocks().iter().filter(|src| seen.insert(**src) && !is_in_use(**src)).count();
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_blocks_move_once_and_stay_shared() {
        let (pool, swap) = (BlockPool::new(8, 4), BlockPool::new(4, 4));
        let mut first = BlockTable::new(&pool);
        first.reserve(10, &mut Vec::new()).unwrap();
        let mut second = first.fork();
        second.reserve(1, &mut Vec::new()).unwrap();
        let slots = |t: &BlockTable| (0..t.len()).map(|p| t.slot(p)).collect::<Vec<_>>();

        let mut moves = Vec::new();
        relocate([&mut first, &mut second], &swap, &mut moves).unwrap();
        assert_eq!((moves.len(), swap.num_free(), pool.num_free()), (4, 0, 8), "two blocks are shared, two are not");
        assert_eq!((first.len(), second.len()), (10, 11));
        assert_eq!(slots(&first)[..8], slots(&second)[..8]);
        assert_ne!(slots(&first)[8], slots(&second)[8]);
        assert_eq!(swap.usage().filled_slots, 8 + 2 + 3);
        assert_eq!(swap.check_integrity(first.blocks().iter().chain(second.blocks())), Ok(()));

        let mut third = BlockTable::new(&pool);
        third.reserve(20, &mut Vec::new()).unwrap();
        let mut back = Vec::new();
        assert_eq!(relocate([&mut first, &mut second], &pool, &mut back), Err(OutOfBlocks));
        assert!(back.is_empty() && first.pool().is(&swap) && swap.num_free() == 0 && pool.num_free() == 3);
        drop(third);
        relocate([&mut first, &mut second], &pool, &mut back).unwrap();
        assert_eq!(back.iter().map(|m| m.src).collect::<Vec<_>>(), moves.iter().map(|m| m.dst).collect::<Vec<_>>());
        assert_eq!((swap.num_free(), pool.num_free()), (4, 4));
        assert!(first.pool().is(&pool) && slots(&first)[..8] == slots(&second)[..8]);
    }

    #[test]
    fn contents_registered_in_the_target_do_not_move() {
        let (pool, swap) = (BlockPool::new(8, 4), BlockPool::new(8, 4));
        let tokens: Vec<u32> = (0..10).collect();
        let table = || {
            let mut table = BlockTable::prefix_hit(&pool, &tokens);
            table.reserve(10 - table.len(), &mut Vec::new()).unwrap();
            table.register(&tokens);
            table
        };
        let (mut first, mut second) = (table(), table());
        assert_eq!(pool.usage().shared_blocks, 2);
        let relocated = |table: &mut BlockTable, to: &BlockPool| {
            let mut moves = Vec::new();
            relocate([table], to, &mut moves).unwrap();
            moves.len()
        };
        assert_eq!(
            (relocated(&mut first, &swap), relocated(&mut second, &swap)),
            (3, 1),
            "two blocks are in the swap space already"
        );
        assert_eq!((swap.usage().shared_blocks, pool.usage().cached_blocks), (2, 2));
        assert_eq!(
            (relocated(&mut first, &pool), relocated(&mut second, &pool)),
            (1, 1),
            "two blocks never left the cache"
        );
        assert_eq!((pool.usage().shared_blocks, swap.usage().cached_blocks), (2, 2));
        let tight = BlockPool::new(2, 4);
        assert_eq!(relocate([&mut first], &tight, &mut Vec::new()), Err(OutOfBlocks));
        assert_eq!(tight.usage().cached_blocks, 0, "blocks that did not move are not registered");
        assert_eq!(pool.check_integrity(first.blocks().iter().chain(second.blocks())), Ok(()));
        assert_eq!(swap.check_integrity([]), Ok(()));
    }
}
