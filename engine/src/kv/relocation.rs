//! Swapping: block tables move from one pool to another, all of them or none (4.5 of the paper).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::pool::BlockPool;
use super::table::{BlockTable, OutOfBlocks};
use crate::kv::BlockCopy;

/// Moves tables to `to`. A block that several of them hold moves once, and they share it afterwards. A known block
/// whose contents `to` has already is shared and does not move. The contents follow when the backend makes the `moves`.
/// All tables lie in one other pool.
///
/// # Errors
/// If `to` has too few free blocks; nothing has changed then.
pub fn relocate<'a>(
    tables: impl IntoIterator<Item = &'a mut BlockTable>,
    to: &BlockPool,
    moves: &mut Vec<BlockCopy>,
) -> Result<(), OutOfBlocks> {
    let tables: Vec<&mut BlockTable> = tables.into_iter().collect();
    let Some(from) = tables.first().map(|table| table.pool().clone()) else { return Ok(()) };
    debug_assert!(!from.is(to) && tables.iter().all(|table| table.pool().is(&from)));
    let mut new: HashMap<u32, u32> = HashMap::new();
    let (mut held, mut moved) = (Vec::new(), Vec::new());
    let (from, mut there) = (from.blocks(), to.blocks());
    for &src in tables.iter().flat_map(|t| t.held()) {
        if let Entry::Vacant(place) = new.entry(src) {
            let Some((dst, must_move)) = there.counterpart(from.prefix(src).map(AsRef::as_ref)) else {
                held.into_iter().rev().for_each(|dst| there.release(dst));
                return Err(OutOfBlocks);
            };
            if must_move {
                moved.push(BlockCopy { src, dst });
            }
            held.push(dst);
            place.insert(dst);
        }
    }
    // Not before all are sure to move: a block must not be found by contents that never come.
    for &BlockCopy { src, dst } in &moved {
        there.take_over(dst, &from, src);
    }
    moves.extend(moved);
    drop((from, there));
    for table in tables {
        table.replace_blocks(to, |src| new[&src]);
    }
    // The tables have references of their own now.
    let mut there = to.blocks();
    held.into_iter().for_each(|dst| there.release(dst));
    Ok(())
}

/// Free blocks of `to` that it takes to [`relocate`] the tables that do not lie there: what they share moves once, and what `to`
/// holds already does not move.
pub fn blocks_to_relocate<'a>(tables: impl IntoIterator<Item = &'a BlockTable>, to: &BlockPool) -> usize {
    let mut seen = HashSet::new();
    let mut moved = 0;
    for table in tables.into_iter().filter(|table| !table.pool().is(to)) {
        let (from, there) = (table.pool().blocks(), to.blocks());
        let is_held =
            |src| from.prefix(src).and_then(|prefix| there.block_of(prefix)).is_some_and(|dst| there.num_refs(dst) > 0);
        moved += table.held().iter().filter(|src| seen.insert(**src) && !is_held(**src)).count();
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_shared_is_moved_once_and_shared_afterwards() {
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
    fn what_is_known_there_is_not_moved() {
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
        assert_eq!((relocated(&mut first, &swap), relocated(&mut second, &swap)), (3, 1), "two blocks are there");
        assert_eq!((swap.usage().shared_blocks, pool.usage().cached_blocks), (2, 2));
        assert_eq!((relocated(&mut first, &pool), relocated(&mut second, &pool)), (1, 1), "two blocks never left");
        assert_eq!((pool.usage().shared_blocks, swap.usage().cached_blocks), (2, 2));
        let tight = BlockPool::new(2, 4);
        assert_eq!(relocate([&mut first], &tight, &mut Vec::new()), Err(OutOfBlocks));
        assert_eq!(tight.usage().cached_blocks, 0, "what did not move is not known");
        assert_eq!(pool.check_integrity(first.blocks().iter().chain(second.blocks())), Ok(()));
        assert_eq!(swap.check_integrity([]), Ok(()));
    }
}
