//! Swapping: block tables move from one pool to another, all of them or none (4.5 of the paper).

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::pool::{Block, BlockPool};
use super::table::{BlockTable, OutOfBlocks};
use crate::backend::BlockCopy;

/// Moves tables to `to`. A block that several of them hold moves once, and they share it afterwards. The contents
/// follow when the backend makes the `moves`.
///
/// # Errors
/// If `to` has too few free blocks; nothing has changed then.
pub fn relocate<'a>(
    tables: impl IntoIterator<Item = &'a mut BlockTable>,
    to: &BlockPool,
    moves: &mut Vec<BlockCopy>,
) -> Result<(), OutOfBlocks> {
    let tables: Vec<&mut BlockTable> = tables.into_iter().collect();
    let mut new: HashMap<u32, Block> = HashMap::new();
    let before = moves.len();
    for block in tables.iter().flat_map(|t| t.blocks()) {
        if let Entry::Vacant(place) = new.entry(block.id()) {
            let Some(copy) = to.allocate() else {
                moves.truncate(before);
                return Err(OutOfBlocks);
            };
            copy.fill(block.filled());
            moves.push(BlockCopy { src: block.id(), dst: copy.id() });
            place.insert(copy);
        }
    }
    for table in tables {
        table.replace_blocks(to, |old| new[&old.id()].clone());
    }
    Ok(())
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
        assert!(back.is_empty() && first.lies_in(&swap) && swap.num_free() == 0 && pool.num_free() == 3);
        drop(third);
        relocate([&mut first, &mut second], &pool, &mut back).unwrap();
        assert_eq!(back.iter().map(|m| m.src).collect::<Vec<_>>(), moves.iter().map(|m| m.dst).collect::<Vec<_>>());
        assert_eq!((swap.num_free(), pool.num_free()), (4, 4));
        assert!(first.lies_in(&pool) && slots(&first)[..8] == slots(&second)[..8]);
    }
}
