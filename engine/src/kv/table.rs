//! The block table: from a sequence's logical blocks to physical ones.

use std::collections::HashSet;

use super::pool::{Block, BlockPool};
use crate::backend::BlockCopy;

/// There are not enough free blocks; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBlocks;

/// Blocks that hold `tokens` tokens.
pub fn blocks_for(tokens: usize, block_size: usize) -> usize {
    tokens.div_ceil(block_size)
}

/// A sequence's logical blocks in order, filled from left to right. Only the last may have free slots.
#[derive(Clone, Debug)]
pub struct BlockTable {
    pool: BlockPool,
    blocks: Vec<Block>,
    len: usize,
}

impl BlockTable {
    /// An empty table over `pool`.
    pub fn new(pool: &BlockPool) -> Self {
        BlockTable { pool: pool.clone(), blocks: Vec::new(), len: 0 }
    }

    /// Tokens the table has slots for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no slots.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The physical blocks, in logical order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Where token `position` lies in the cache: `block * block_size + offset`.
    pub fn slot(&self, position: usize) -> u32 {
        let size = self.pool.block_size();
        self.blocks[position / size].id() * size as u32 + (position % size) as u32
    }

    /// A second table over the same blocks. Copies nothing: the first to write to a shared block copies it (4.4).
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// A table over the blocks of the first `tokens` tokens, which must be whole blocks.
    pub fn fork_prefix(&self, tokens: usize) -> Self {
        debug_assert!(tokens.is_multiple_of(self.pool.block_size()) && tokens <= self.len);
        let blocks = self.blocks[..tokens / self.pool.block_size()].to_vec();
        BlockTable { pool: self.pool.clone(), blocks, len: tokens }
    }

    /// Whether the table's blocks are those of `pool`.
    pub fn lies_in(&self, pool: &BlockPool) -> bool {
        self.pool.is(pool)
    }

    /// Exchanges each block for one of `pool`.
    pub(super) fn replace_blocks(&mut self, pool: &BlockPool, new: impl Fn(&Block) -> Block) {
        self.blocks = self.blocks.iter().map(new).collect();
        self.pool = pool.clone();
    }

    /// Makes room for `tokens` more tokens that only this table will see. A partly filled last block that is shared is
    /// replaced by a copy of its own, which the backend must make (copy-on-write) before it writes the new tokens.
    pub fn reserve(&mut self, tokens: usize, copies: &mut Vec<BlockCopy>) -> Result<(), OutOfBlocks> {
        if blocks_needed([(&*self, tokens)]) > self.pool.num_free() {
            return Err(OutOfBlocks);
        }
        let size = self.pool.block_size();
        if let Some(last) = self.writable_block(tokens).filter(|b| b.is_shared()) {
            let copy = self.pool.allocate().ok_or(OutOfBlocks)?;
            copies.push(BlockCopy { src: last.id(), dst: copy.id() });
            self.blocks.pop();
            self.blocks.push(copy);
        }
        let end = self.len + tokens;
        while self.blocks.len() < blocks_for(end, size) {
            self.blocks.push(self.pool.allocate().ok_or(OutOfBlocks)?);
        }
        for (i, block) in self.blocks.iter().enumerate().skip(self.len / size) {
            block.fill((end - i * size).min(size));
        }
        self.len = end;
        Ok(())
    }

    /// The partly filled last block, if `tokens` more tokens would write to it.
    fn writable_block(&self, tokens: usize) -> Option<&Block> {
        let partial = !self.len.is_multiple_of(self.pool.block_size());
        self.blocks.last().filter(|_| partial && tokens > 0)
    }
}

/// Free blocks it takes to reserve the given numbers of tokens in all the tables, one after the other: new blocks, and
/// copies of shared last blocks. The last to write to a block whose other holders have all left it needs no copy.
pub fn blocks_needed<'a>(plan: impl IntoIterator<Item = (&'a BlockTable, usize)>) -> usize {
    let mut needed = 0;
    let mut holders: Vec<(u32, usize)> = Vec::new();
    for (table, tokens) in plan {
        needed += blocks_for(table.len + tokens, table.pool.block_size()) - table.blocks.len();
        let Some(last) = table.writable_block(tokens) else { continue };
        let at = holders.iter().position(|h| h.0 == last.id()).unwrap_or_else(|| {
            holders.push((last.id(), last.num_refs()));
            holders.len() - 1
        });
        if holders[at].1 > 1 {
            holders[at].1 -= 1;
            needed += 1;
        }
    }
    needed
}

/// How many blocks the tables hold, those that they share counted once.
pub fn distinct_blocks<'a>(tables: impl IntoIterator<Item = &'a BlockTable>) -> usize {
    tables.into_iter().flat_map(|t| &t.blocks).map(Block::id).collect::<HashSet<u32>>().len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(table: &BlockTable) -> Vec<u32> {
        table.blocks().iter().map(Block::id).collect()
    }

    #[test]
    fn fills_blocks_from_left_to_right() {
        let pool = BlockPool::new(4, 4);
        let mut table = BlockTable::new(&pool);
        let mut copies = Vec::new();
        table.reserve(5, &mut copies).unwrap();
        assert_eq!((table.len(), ids(&table).len(), pool.num_free()), (5, 2, 2));
        assert_eq!(table.slot(4), ids(&table)[1] * 4);
        assert_eq!(table.reserve(12, &mut copies), Err(OutOfBlocks));
        assert_eq!((table.len(), pool.num_free()), (5, 2));
        table.reserve(11, &mut copies).unwrap();
        assert_eq!((pool.num_free(), pool.usage().filled_slots), (0, 16));
        assert!(copies.is_empty());
    }

    #[test]
    fn copies_a_shared_partial_block_once_for_all_but_the_last_writer() {
        let pool = BlockPool::new(8, 4);
        let mut tables = vec![BlockTable::new(&pool)];
        let mut copies = Vec::new();
        tables[0].reserve(6, &mut copies).unwrap();
        tables.extend([tables[0].fork(), tables[0].fork()]);
        let shared = ids(&tables[0]);
        assert_eq!(blocks_needed(tables.iter().map(|t| (t, 1))), 2);
        for table in &mut tables {
            table.reserve(1, &mut copies).unwrap();
        }
        assert_eq!(copies.iter().map(|c| c.src).collect::<Vec<_>>(), [shared[1], shared[1]]);
        assert_eq!(ids(&tables[2]), shared, "the last owner writes in place");
        assert!(tables.iter().all(|t| ids(t)[0] == shared[0]), "full blocks stay shared");
        assert_eq!(pool.num_free(), 8 - 4);
    }

    #[test]
    fn a_full_shared_block_is_never_copied() {
        let pool = BlockPool::new(4, 4);
        let mut a = BlockTable::new(&pool);
        let mut copies = Vec::new();
        a.reserve(4, &mut copies).unwrap();
        let mut b = a.fork();
        b.reserve(1, &mut copies).unwrap();
        assert!(copies.is_empty());
        assert_eq!(pool.num_free(), 2);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Add,
        Reserve(usize, usize),
        Fork(usize),
        ForkPrefix(usize, usize),
        Free(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            Just(Op::Add),
            (any::<usize>(), 0..40usize).prop_map(|(i, n)| Op::Reserve(i, n)),
            any::<usize>().prop_map(Op::Fork),
            (any::<usize>(), any::<usize>()).prop_map(|(i, n)| Op::ForkPrefix(i, n)),
            any::<usize>().prop_map(Op::Free),
        ]
    }

    proptest! {
        /// Random operations against a plain model: every table must read back exactly the tokens appended to it.
        #[test]
        fn tables_never_see_each_others_writes(
            ops in prop::collection::vec(op(), 1..200),
            num_blocks in 1..40usize,
            block_size in 1..20usize,
        ) {
            let pool = BlockPool::new(num_blocks, block_size);
            let mut memory = vec![0u32; num_blocks * block_size];
            let mut tables: Vec<(BlockTable, Vec<u32>)> = Vec::new();
            let mut next = 1;
            for op in ops {
                let pick = |i: usize| if tables.is_empty() { None } else { Some(i % tables.len()) };
                match op {
                    Op::Add => tables.push((BlockTable::new(&pool), Vec::new())),
                    Op::Reserve(i, n) => if let Some(i) = pick(i) {
                        let (table, tokens) = &mut tables[i];
                        let needed = blocks_needed([(&*table, n)]);
                        let (free, before) = (pool.num_free(), (table.len(), ids(table)));
                        let mut copies = Vec::new();
                        if table.reserve(n, &mut copies).is_ok() {
                            prop_assert_eq!(free - needed, pool.num_free());
                            for c in copies {
                                let (src, dst) = (c.src as usize * block_size, c.dst as usize * block_size);
                                memory.copy_within(src..src + block_size, dst);
                            }
                            for _ in 0..n {
                                memory[table.slot(tokens.len()) as usize] = next;
                                tokens.push(next);
                                next += 1;
                            }
                        } else {
                            prop_assert!(needed > free);
                            prop_assert_eq!(before, (table.len(), ids(table)));
                        }
                    },
                    Op::Fork(i) => if let Some(i) = pick(i) {
                        tables.push((tables[i].0.fork(), tables[i].1.clone()));
                    },
                    Op::ForkPrefix(i, n) => if let Some(i) = pick(i) {
                        let n = n % (tables[i].0.len() / block_size + 1) * block_size;
                        tables.push((tables[i].0.fork_prefix(n), tables[i].1[..n].to_vec()));
                    },
                    Op::Free(i) => if let Some(i) = pick(i) {
                        tables.swap_remove(i);
                    },
                }
                for (table, tokens) in &tables {
                    let read: Vec<u32> = (0..table.len()).map(|p| memory[table.slot(p) as usize]).collect();
                    prop_assert_eq!(&read, tokens);
                }
                prop_assert_eq!(pool.check_integrity(tables.iter().flat_map(|t| t.0.blocks())), Ok(()));
            }
            drop(tables);
            prop_assert_eq!(pool.num_free(), num_blocks);
            prop_assert_eq!(pool.check_integrity([]), Ok(()));
        }
    }
}
