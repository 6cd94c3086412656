//! The contents of the prefix cache and the swap space, reported as changes per step. A router that follows the changes
//! knows which engine has a prompt's prefix cached.

use std::collections::HashMap;
use std::sync::Arc;

use super::log::{BlockEvent, EventLog, Place, Space};
use super::prefix::Prefix;

/// A change to the set of prefixes that lookups can find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheChange {
    /// A block of this pool and group now holds the last tokens of this prefix.
    Stored(Place, Arc<Prefix>),
    /// No block of this pool and group holds the prefix with this [`PrefixId::hash`](super::PrefixId::hash) any more.
    Removed(Place, u64),
}

/// Collects the changes as they happen and hands them out per step. A block is registered when a step is scheduled, but
/// its contents are valid only once the step succeeds. So call [`Self::take`] only after a step that succeeded. A
/// failed step clears the prefix index, so its blocks are never handed out.
///
/// Two blocks of a pool may hold the same prefix. This happens if a second block is written while an evicted parent
/// keeps lookups from finding the first. The prefix counts as stored with the first block, and as removed with the
/// last.
#[derive(Debug, Default)]
pub struct CacheChanges {
    /// The prefix hash of each registered block.
    hashes: HashMap<(Place, u32), u64>,
    /// The number of blocks that hold each prefix.
    holders: HashMap<(Place, u64), usize>,
    /// Changes since the last call of [`Self::take`]. A prefix that was stored and removed in this time leaves `None`.
    changes: Vec<Option<CacheChange>>,
    /// The index in `changes` of each stored prefix.
    stored: HashMap<(Place, u64), usize>,
}

impl CacheChanges {
    /// Returns the changes since the last call, in order.
    pub fn take(&mut self) -> Vec<CacheChange> {
        self.stored.clear();
        self.changes.drain(..).flatten().collect()
    }

    fn store(&mut self, place: Place, block: u32, prefix: Arc<Prefix>) {
        let hash = prefix.id().hash();
        self.hashes.insert((place, block), hash);
        let holders = self.holders.entry((place, hash)).or_default();
        *holders += 1;
        if *holders == 1 {
            self.stored.insert((place, hash), self.changes.len());
            self.changes.push(Some(CacheChange::Stored(place, prefix)));
        }
    }

    fn remove(&mut self, place: Place, block: u32) {
        let Some(hash) = self.hashes.remove(&(place, block)) else { return };
        let Some(holders) = self.holders.get_mut(&(place, hash)) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.holders.remove(&(place, hash));
            match self.stored.remove(&(place, hash)) {
                Some(at) => self.changes[at] = None,
                None => self.changes.push(Some(CacheChange::Removed(place, hash))),
            }
        }
    }
}

impl EventLog for CacheChanges {
    fn record(&mut self, space: Space, group: usize, event: BlockEvent) {
        let place = Place { space, group };
        match event {
            BlockEvent::Register { block, prefix } => self.store(place, block, prefix),
            BlockEvent::Evict(block) => self.remove(place, block),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use std::sync::Mutex;

    use super::super::{BlockPool, BlockTable, prefix_hit};
    use super::*;

    /// A table whose full blocks, of two tokens each, are registered.
    fn table(pool: &BlockPool, tokens: &[u32]) -> BlockTable {
        let mut table = prefix_hit(pool, tokens, false);
        table.reserve(tokens.len() - table.len(), &mut Vec::new()).unwrap();
        table.register(tokens);
        table
    }

    fn watched(num_blocks: usize) -> (BlockPool, Arc<Mutex<CacheChanges>>) {
        let (pool, changes) = (BlockPool::new(num_blocks, 2), Arc::new(Mutex::new(CacheChanges::default())));
        pool.set_log(changes.clone(), Space::Cache);
        (pool, changes)
    }

    const CACHE: Place = Place { space: Space::Cache, group: 0 };

    #[test]
    fn a_stored_prefix_has_its_tokens_and_its_parent() {
        let (pool, changes) = watched(3);
        let first = table(&pool, &[1, 2, 3, 4, 5]);
        let stored = changes.lock().unwrap().take();
        let registered: Vec<_> = pool.registered(0).into_iter().map(|(_, prefix)| prefix).collect();
        let stored_in_cache = |prefix| CacheChange::Stored(CACHE, prefix);
        assert_eq!(stored, registered.iter().cloned().map(stored_in_cache).collect::<Vec<_>>());
        assert_eq!((registered[0].parent(), registered[0].tokens()), (None, &[1, 2][..]));
        assert_eq!((registered[1].parent(), registered[1].tokens()), (Some(registered[0].id()), &[3, 4][..]));
        drop(first);
        assert_eq!(changes.lock().unwrap().take(), [], "cached blocks can still be found");
        let hashes: Vec<u64> = registered.iter().map(|prefix| prefix.id().hash()).collect();
        let _other = table(&pool, &[6, 7, 8, 9]);
        let now = changes.lock().unwrap().take();
        assert_eq!(
            (now.len(), &now[0]),
            (3, &CacheChange::Removed(CACHE, hashes[1])),
            "the end of a text is evicted first"
        );
        let tokens = now[1..].iter().map(|change| match change {
            CacheChange::Stored(_, prefix) => prefix.tokens().to_vec(),
            CacheChange::Removed(..) => Vec::new(),
        });
        assert_eq!(tokens.collect::<Vec<_>>(), [[6, 7], [8, 9]]);
    }

    #[test]
    fn the_blocks_of_a_failed_step_are_never_reported() {
        let (pool, changes) = watched(8);
        let before = table(&pool, &[1, 2]);
        let hash = pool.registered(0)[0].1.id().hash();
        assert_eq!(changes.lock().unwrap().take().len(), 1);
        let failed = table(&pool, &[1, 2, 3, 4]);
        pool.reset_prefix_cache();
        assert_eq!(changes.lock().unwrap().take(), [CacheChange::Removed(CACHE, hash)]);
        drop((before, failed));
    }

    #[test]
    fn a_prefix_in_two_blocks_is_removed_with_the_last() {
        let (pool, changes) = watched(4);
        let first_two = table(&pool, &[1, 2, 3, 4]);
        let first = pool.registered(0)[0].1.clone();
        let mut changes = changes.lock().unwrap();
        assert_eq!(changes.take().len(), 2);
        let second = pool.registered(0)[1].1.clone();
        changes.record(Space::Cache, 0, BlockEvent::Register { block: 7, prefix: second.clone() });
        changes.record(Space::Cache, 0, BlockEvent::Evict(first_two.lane(0).blocks()[1]));
        assert_eq!(changes.take(), []);
        let swap = Place { space: Space::Swap, group: 0 };
        changes.record(Space::Swap, 0, BlockEvent::Register { block: 7, prefix: second.clone() });
        assert_eq!(changes.take(), [CacheChange::Stored(swap, second.clone())]);
        changes.record(Space::Swap, 0, BlockEvent::Evict(7));
        let removed = CacheChange::Removed(swap, second.id().hash());
        assert_eq!(changes.take(), [removed], "the swap space is counted separately");
        changes.record(Space::Cache, 0, BlockEvent::Evict(7));
        changes.record(Space::Cache, 0, BlockEvent::Evict(first_two.lane(0).blocks()[0]));
        let removed = [second, first].map(|prefix| CacheChange::Removed(CACHE, prefix.id().hash()));
        assert_eq!(changes.take(), removed);
    }
}
