use proptest::prelude::*;

use super::*;
use crate::kv::{CacheGroup, prefix_hit};

fn ids(table: &BlockTable) -> Vec<u32> {
    table.lane(0).blocks().to_vec()
}

#[test]
fn fills_blocks_from_left_to_right() {
    let pool = BlockPool::new(4, 4);
    let mut table = BlockTable::new(&pool);
    let mut copies = Vec::new();
    table.reserve(5, &mut copies).unwrap();
    assert_eq!((table.len(), ids(&table).len(), pool.num_free()), (5, 2, 2));
    assert_eq!(table.slot(0, 4), ids(&table)[1] * 4);
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
    assert_eq!(blocks_needed(&pool, tables.iter().map(|t| (t, 1))).of(0), 2);
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

#[test]
fn a_window_frees_its_first_blocks_and_the_others_keep_their_indices() {
    let pool = BlockPool::with_groups(7, 4, &[CacheGroup::only(Some(6))]);
    assert_eq!([1, 6, 20, 100].map(|tokens| pool.blocks_at_once(tokens, 1).of(0)), [1, 2, 3, 3]);
    assert_eq!([20, 100].map(|tokens| pool.blocks_at_once(tokens, 8).of(0)), [4, 4]);
    let tokens: Vec<u32> = (0..30).collect();
    let mut table = BlockTable::new(&pool);
    let mut copies = Vec::new();
    table.reserve(14, &mut copies).unwrap();
    table.register(&tokens);
    let slots: Vec<u32> = (9..14).map(|p| table.slot(0, p)).collect();
    table.slide();
    // Token 14 sees tokens 9 to 14.
    assert_eq!((table.lane(0).live_blocks().len(), table.lane(0).blocks().len(), pool.num_free()), (2, 4, 5));
    assert_eq!((9..14).map(|p| table.slot(0, p)).collect::<Vec<_>>(), slots);
    assert!(table.has_window_of(14) && table.has_window_of(13) && !table.has_window_of(12));
    // Forks get only the blocks that the table still has.
    let mut fork = table.fork();
    fork.reserve(9, &mut copies).unwrap();
    fork.slide();
    assert_eq!((copies.len(), fork.lane(0).blocks().len(), fork.lane(0).live_blocks().len()), (1, 6, 2));
    assert_eq!(pool.check_integrity([&table, &fork]), Ok(()));
    // Blocks behind the window stay registered until their memory is needed.
    assert_eq!(prefix_hit(&pool, &tokens[..9], false).len(), 8);
    drop((table, fork));
    assert_eq!((pool.num_free(), pool.check_integrity([])), (7, Ok(())));
}

#[derive(Clone, Debug)]
enum Op {
    Add,
    Reserve(usize, usize),
    Fork(usize),
    ForkPrefix(usize, usize),
    Register(usize, usize),
    Free(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        Just(Op::Add),
        (any::<usize>(), 0..40usize).prop_map(|(i, n)| Op::Reserve(i, n)),
        any::<usize>().prop_map(Op::Fork),
        (any::<usize>(), any::<usize>()).prop_map(|(i, n)| Op::ForkPrefix(i, n)),
        (any::<usize>(), any::<usize>()).prop_map(|(i, n)| Op::Register(i, n)),
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
        let mut past: Vec<Vec<u32>> = Vec::new();
        let mut next = 1;
        for op in ops {
            let pick = |i: usize| if tables.is_empty() { None } else { Some(i % tables.len()) };
            match op {
                Op::Add => tables.push((BlockTable::new(&pool), Vec::new())),
                Op::Reserve(i, n) => if let Some(i) = pick(i) {
                    let (table, tokens) = &mut tables[i];
                    let needed = blocks_needed(&pool, [(&*table, n)]).of(0);
                    let (free, before) = (pool.num_free(), (table.len(), ids(table)));
                    let mut copies = Vec::new();
                    if table.reserve(n, &mut copies).is_ok() {
                        prop_assert_eq!(free - needed, pool.num_free());
                        for c in copies {
                            let (src, dst) = (c.src as usize * block_size, c.dst as usize * block_size);
                            memory.copy_within(src..src + block_size, dst);
                        }
                        for _ in 0..n {
                            memory[table.slot(0, tokens.len()) as usize] = next;
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
                Op::Register(i, n) => if let Some(i) = pick(i) {
                    let (table, tokens) = &mut tables[i];
                    table.register(tokens);
                    past.push(tokens.clone());
                    // A prefix of this sequence, and an earlier sequence whose blocks may have been evicted.
                    let begin = tokens[..n % (tokens.len() + 1)].to_vec();
                    let hit = prefix_hit(&pool, &begin, false);
                    prop_assert_eq!(hit.len(), begin.len().saturating_sub(1) / block_size * block_size);
                    let old = &past[n % past.len()];
                    let maybe = prefix_hit(&pool, old, false);
                    let tokens = [begin[..hit.len()].to_vec(), old[..maybe.len()].to_vec()];
                    tables.extend([hit, maybe].into_iter().zip(tokens));
                },
                Op::Free(i) => if let Some(i) = pick(i) {
                    tables.swap_remove(i);
                },
            }
            for (table, tokens) in &tables {
                let read: Vec<u32> = (0..table.len()).map(|p| memory[table.slot(0, p) as usize]).collect();
                prop_assert_eq!(&read, tokens);
            }
            prop_assert_eq!(pool.check_integrity(tables.iter().map(|t| &t.0)), Ok(()));
        }
        drop(tables);
        prop_assert_eq!(pool.num_free(), num_blocks);
        prop_assert_eq!(pool.check_integrity([]), Ok(()));
    }
}
