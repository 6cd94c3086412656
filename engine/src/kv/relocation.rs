//! Swapping: block tables move from one pool to another, all or none (4.5 of the paper).

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::counts::Counts;
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
    // The counterpart of each block. `None` if one is to be allocated.
    let mut new: HashMap<(usize, u32), Option<u32>> = HashMap::new();
    let (mut acquired, mut missing, mut counts) = (Vec::new(), Vec::new(), Counts::default());
    let (from, mut target) = (from.blocks(), to.blocks());
    let lanes = tables.iter().flat_map(|table| table.lanes().iter().enumerate());
    for (group, src) in lanes.flat_map(|(group, lane)| lane.present().map(move |src| (group, src))) {
        let Entry::Vacant(entry) = new.entry((group, src)) else { continue };
        let present = target.acquire_counterpart(group, from.prefix(group, src).map(AsRef::as_ref));
        match present {
            Some(dst) => acquired.push((group, dst)),
            None => {
                missing.push((group, src));
                counts.add(group, 1);
            }
        }
        entry.insert(present);
    }
    if !target.fits(&counts, 0) {
        acquired.into_iter().rev().for_each(|(group, dst)| target.release(group, dst));
        return Err(OutOfBlocks);
    }
    target.claim(counts);
    for (group, src) in missing {
        let Some(dst) = target.allocate(group) else { unreachable!("the blocks were counted") };
        target.move_in(group, dst, &from, src);
        moves.push(BlockCopy { group: group as u32, src, dst });
        acquired.push((group, dst));
        new.insert((group, src), Some(dst));
    }
    drop((from, target));
    for table in tables {
        table.replace_blocks(to, |group, src| {
            new[&(group, src)].unwrap_or_else(|| unreachable!("all blocks have moved"))
        });
    }
    // The tables have their own references now.
    let mut target = to.blocks();
    acquired.into_iter().for_each(|(group, dst)| target.release(group, dst));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::prefix_hit;

    #[test]
    fn shared_blocks_move_once_and_stay_shared() {
        let (pool, swap) = (BlockPool::new(8, 4), BlockPool::new(4, 4));
        let mut first = BlockTable::new(&pool);
        first.reserve(10, &mut Vec::new()).unwrap();
        let mut second = first.fork();
        second.reserve(1, &mut Vec::new()).unwrap();
        let slots = |t: &BlockTable| (0..t.len()).map(|p| t.slot(0, p)).collect::<Vec<_>>();

        let mut moves = Vec::new();
        relocate([&mut first, &mut second], &swap, &mut moves).unwrap();
        assert_eq!((moves.len(), swap.num_free(), pool.num_free()), (4, 0, 8), "two blocks are shared, two are not");
        assert_eq!((first.len(), second.len()), (10, 11));
        assert_eq!(slots(&first)[..8], slots(&second)[..8]);
        assert_ne!(slots(&first)[8], slots(&second)[8]);
        assert_eq!(swap.usage().filled_slots, 8 + 2 + 3);
        assert_eq!(swap.check_integrity([&first, &second]), Ok(()));

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
            let mut table = prefix_hit(&pool, &tokens, false);
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
        assert_eq!(pool.check_integrity([&first, &second]), Ok(()));
        assert_eq!(swap.check_integrity([]), Ok(()));
    }
}
