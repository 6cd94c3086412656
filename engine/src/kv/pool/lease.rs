//! A lease of an adapter: while it exists, the adapter stays loaded.

use super::BlockPool;
use crate::load::adapter::AdapterDigest;

/// A lease of a loaded adapter. Cloning adds a lease, and dropping one gives it back. So errors and aborts cannot keep an
/// adapter in memory.
#[derive(Debug)]
pub struct AdapterLease {
    pool: BlockPool,
    slot: u32,
}

impl AdapterLease {
    /// The adapter's slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }
}

impl Clone for AdapterLease {
    fn clone(&self) -> Self {
        self.pool.blocks().share_lease(self.slot);
        AdapterLease { pool: self.pool.clone(), slot: self.slot }
    }
}

impl Drop for AdapterLease {
    fn drop(&mut self) {
        self.pool.blocks().end_lease(self.slot);
    }
}

impl BlockPool {
    /// The free pages that a lease of an adapter of `pages` pages takes. 0 if it is leased already.
    pub fn pages_to_lease(&self, digest: &AdapterDigest, pages: usize) -> usize {
        self.blocks().pages_to_lease(digest, pages)
    }

    /// Leases a loaded adapter. `None` if it is not loaded.
    pub fn lease(&self, digest: &AdapterDigest) -> Option<AdapterLease> {
        let slot = self.blocks().lease(digest)?;
        Some(AdapterLease { pool: self.clone(), slot })
    }

    /// Takes pages for an adapter that is not loaded. `None` if too few pages have no references. The caller must load the
    /// adapter's contents into the slot.
    pub fn load_adapter(&self, digest: AdapterDigest, pages: usize) -> Option<AdapterLease> {
        let slot = self.blocks().load_adapter(digest, pages)?;
        Some(AdapterLease { pool: self.clone(), slot })
    }

    /// The slots whose adapters were evicted since the last call, in order. A slot may have a new adapter already.
    pub fn take_evicted_adapters(&self) -> Vec<u32> {
        self.blocks().take_evicted_adapters()
    }

    /// Checks that each loaded adapter has as many leases as `leases`, the list of all of them, contains.
    ///
    /// # Errors
    /// Describes the first inconsistency.
    pub fn check_leases<'a>(&self, leases: impl IntoIterator<Item = &'a AdapterLease>) -> Result<(), String> {
        let mut found = std::collections::BTreeMap::<u32, u32>::new();
        leases.into_iter().for_each(|lease| *found.entry(lease.slot).or_default() += 1);
        for (slot, counted) in self.blocks().residents.leases() {
            let leases = found.remove(&slot).unwrap_or(0);
            if leases != counted {
                return Err(format!("the adapter in slot {slot} has {leases} leases, but counts {counted}"));
            }
        }
        match found.first_key_value() {
            Some((slot, _)) => Err(format!("slot {slot} is leased, but empty")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;
    use crate::kv::{BlockTable, CacheGroup};

    fn digest(byte: u8) -> AdapterDigest {
        AdapterDigest([byte; 32])
    }

    fn fill(pool: &BlockPool, tokens: usize) -> Option<BlockTable> {
        let mut table = BlockTable::new(pool);
        table.reserve(tokens, &mut Vec::new()).ok().map(|()| table)
    }

    #[test]
    fn an_idle_adapter_is_evicted_when_its_pages_are_needed() {
        for groups in [vec![CacheGroup::only(None)], vec![CacheGroup::only(None); 2]] {
            // Each block is a page, and a table has one in each group.
            let per_block = groups.len();
            let pool = BlockPool::with_groups(4 * per_block, 2, &groups);
            let lease = pool.load_adapter(digest(1), 2 * per_block).unwrap();
            assert_eq!((pool.num_free(), pool.usage().adapter_blocks), (2 * per_block, 2 * per_block));
            assert!(pool.load_adapter(digest(2), 3 * per_block).is_none(), "too few pages");
            assert!(fill(&pool, 6).is_none(), "a leased adapter keeps its pages");
            let again = lease.clone();
            drop(lease);
            assert_eq!(pool.check_leases([&again]), Ok(()));
            assert!(pool.check_leases([]).is_err());
            drop(again);
            assert_eq!((pool.num_free(), pool.check_integrity([])), (4 * per_block, Ok(())));
            // Two blocks leave it in peace, the third evicts it.
            let table = fill(&pool, 4).unwrap();
            let lease = pool.lease(&digest(1)).unwrap();
            assert_eq!((lease.slot(), pool.num_free()), (0, 0));
            drop((table, lease));
            assert!(pool.take_evicted_adapters().is_empty());
            let table = fill(&pool, 6).unwrap();
            assert_eq!(pool.take_evicted_adapters(), [0]);
            assert!(pool.lease(&digest(1)).is_none());
            assert_eq!((pool.usage().adapter_blocks, pool.check_integrity([&table])), (0, Ok(())));
        }
    }

    #[test]
    fn the_adapter_that_was_used_last_stays() {
        let pool = BlockPool::new(6, 2);
        let leases = [1, 2].map(|byte| pool.load_adapter(digest(byte), 2).unwrap());
        drop(leases);
        drop(pool.lease(&digest(1)).unwrap());
        let third = pool.load_adapter(digest(3), 3).unwrap();
        assert_eq!((pool.take_evicted_adapters(), third.slot()), (vec![1], 1), "the slot is used again");
        assert!(pool.lease(&digest(1)).is_some() && pool.lease(&digest(2)).is_none());
        assert_eq!((pool.pages_to_lease(&digest(1), 2), pool.pages_to_lease(&digest(3), 3)), (2, 0));
        assert_eq!(pool.check_integrity([]), Ok(()));
        // A failed step may have lost its contents.
        drop(third);
        pool.reset_prefix_cache();
        let mut evicted = pool.take_evicted_adapters();
        evicted.sort_unstable();
        assert_eq!((evicted, pool.num_free(), pool.check_integrity([])), (vec![0, 1], 6, Ok(())));
    }
}
