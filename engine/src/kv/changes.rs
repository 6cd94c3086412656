//! What can be found in the KV cache and in the swap space, as changes from step to step. A router that follows them knows where
//! a prompt's beginning is cached.

use std::collections::HashMap;
use std::sync::Arc;

use super::log::{BlockEvent, EventLog, Space};
use super::prefix::Prefix;

/// A change of what can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheChange {
    /// A block of this pool holds the last tokens of this prefix now.
    Stored(Space, Arc<Prefix>),
    /// No block of this pool holds any more what has this [`PrefixId::hash`](super::PrefixId::hash).
    Removed(Space, u64),
}

/// Takes the changes in as they happen, and hands them out step by step. Blocks become known when a step is scheduled, and
/// hold what they are known by when it has succeeded. So [`Self::take`] is to be called after a step that succeeded; what
/// a step that failed was to store is forgotten with it, and never handed out.
///
/// Two blocks of a pool may hold the same, as when one of them was written after the block before the other had been forgotten.
/// The first of them counts as stored, the last as removed.
#[derive(Debug, Default)]
pub struct CacheChanges {
    /// What each known block holds.
    hashes: HashMap<(Space, u32), u64>,
    /// How many blocks hold it.
    holders: HashMap<(Space, u64), usize>,
    /// Since the last call of [`Self::take`]; what was stored and removed since then has left a gap.
    changes: Vec<Option<CacheChange>>,
    /// Where in `changes` something was stored.
    stored: HashMap<(Space, u64), usize>,
}

impl CacheChanges {
    /// The changes since the last call, in order.
    pub fn take(&mut self) -> Vec<CacheChange> {
        self.stored.clear();
        self.changes.drain(..).flatten().collect()
    }

    fn store(&mut self, space: Space, block: u32, prefix: Arc<Prefix>) {
        let hash = prefix.id().hash();
        self.hashes.insert((space, block), hash);
        let holders = self.holders.entry((space, hash)).or_default();
        *holders += 1;
        if *holders == 1 {
            self.stored.insert((space, hash), self.changes.len());
            self.changes.push(Some(CacheChange::Stored(space, prefix)));
        }
    }

    fn remove(&mut self, space: Space, block: u32) {
        let Some(hash) = self.hashes.remove(&(space, block)) else { return };
        let Some(holders) = self.holders.get_mut(&(space, hash)) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.holders.remove(&(space, hash));
            match self.stored.remove(&(space, hash)) {
                Some(at) => self.changes[at] = None,
                None => self.changes.push(Some(CacheChange::Removed(space, hash))),
            }
        }
    }
}

impl EventLog for CacheChanges {
    fn record(&mut self, space: Space, event: BlockEvent) {
        match event {
            BlockEvent::Register { block, prefix } => self.store(space, block, prefix),
            BlockEvent::Evict(block) => self.remove(space, block),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use std::sync::Mutex;

    use super::super::{BlockPool, BlockTable};
    use super::*;

    /// A table whose blocks of two tokens are known.
    fn table(pool: &BlockPool, tokens: &[u32]) -> BlockTable {
        let mut table = BlockTable::prefix_hit(pool, tokens);
        table.reserve(tokens.len() - table.len(), &mut Vec::new()).unwrap();
        table.register(tokens);
        table
    }

    fn watched(num_blocks: usize) -> (BlockPool, Arc<Mutex<CacheChanges>>) {
        let (pool, changes) = (BlockPool::new(num_blocks, 2), Arc::new(Mutex::new(CacheChanges::default())));
        pool.set_log(changes.clone(), Space::Cache);
        (pool, changes)
    }

    #[test]
    fn what_is_stored_names_its_tokens_and_what_comes_before() {
        let (pool, changes) = watched(3);
        let first = table(&pool, &[1, 2, 3, 4, 5]);
        let stored = changes.lock().unwrap().take();
        let known: Vec<_> = pool.known().into_iter().map(|(_, prefix)| prefix).collect();
        let stored_in_cache = |prefix| CacheChange::Stored(Space::Cache, prefix);
        assert_eq!(stored, known.iter().cloned().map(stored_in_cache).collect::<Vec<_>>());
        assert_eq!((known[0].parent(), known[0].tokens()), (None, &[1, 2][..]));
        assert_eq!((known[1].parent(), known[1].tokens()), (Some(known[0].id()), &[3, 4][..]));
        drop(first);
        assert_eq!(changes.lock().unwrap().take(), [], "what is cached can still be found");
        let hashes: Vec<u64> = known.iter().map(|prefix| prefix.id().hash()).collect();
        let _other = table(&pool, &[6, 7, 8, 9]);
        let now = changes.lock().unwrap().take();
        assert_eq!(
            (now.len(), &now[0]),
            (3, &CacheChange::Removed(Space::Cache, hashes[1])),
            "the end of a text is forgotten first"
        );
        let tokens = now[1..].iter().map(|change| match change {
            CacheChange::Stored(_, prefix) => prefix.tokens().to_vec(),
            CacheChange::Removed(..) => Vec::new(),
        });
        assert_eq!(tokens.collect::<Vec<_>>(), [[6, 7], [8, 9]]);
    }

    #[test]
    fn what_a_failed_step_was_to_store_is_never_handed_out() {
        let (pool, changes) = watched(8);
        let before = table(&pool, &[1, 2]);
        let hash = pool.known()[0].1.id().hash();
        assert_eq!(changes.lock().unwrap().take().len(), 1);
        let failed = table(&pool, &[1, 2, 3, 4]);
        pool.forget();
        assert_eq!(changes.lock().unwrap().take(), [CacheChange::Removed(Space::Cache, hash)]);
        drop((before, failed));
    }

    #[test]
    fn what_two_blocks_hold_is_stored_until_both_are_gone() {
        let (pool, changes) = watched(4);
        let held = table(&pool, &[1, 2, 3, 4]);
        let first = pool.known()[0].1.clone();
        let mut changes = changes.lock().unwrap();
        assert_eq!(changes.take().len(), 2);
        let second = pool.known()[1].1.clone();
        changes.record(Space::Cache, BlockEvent::Register { block: 7, prefix: second.clone() });
        changes.record(Space::Cache, BlockEvent::Evict(held.blocks()[1]));
        assert_eq!(changes.take(), []);
        changes.record(Space::Swap, BlockEvent::Register { block: 7, prefix: second.clone() });
        assert_eq!(changes.take(), [CacheChange::Stored(Space::Swap, second.clone())]);
        changes.record(Space::Swap, BlockEvent::Evict(7));
        let removed = CacheChange::Removed(Space::Swap, second.id().hash());
        assert_eq!(changes.take(), [removed], "what the swap space holds is counted apart");
        changes.record(Space::Cache, BlockEvent::Evict(7));
        changes.record(Space::Cache, BlockEvent::Evict(held.blocks()[0]));
        let removed = [second, first].map(|prefix| CacheChange::Removed(Space::Cache, prefix.id().hash()));
        assert_eq!(changes.take(), removed);
    }
}
