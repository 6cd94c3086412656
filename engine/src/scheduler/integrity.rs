//! Whether queues and pools agree.

use super::Scheduler;
use crate::group::SequenceGroup;
use crate::kv::BlockTable;

impl Scheduler {
    /// Proves that queues and pools agree: every block is free, held or pinned, running groups hold blocks of the cache and
    /// waiting ones at most blocks of the swap space, and arrival order is kept.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        let running: Vec<&BlockTable> = self.running.iter().flat_map(SequenceGroup::tables).collect();
        let waiting: Vec<&BlockTable> = self.waiting.iter().flat_map(SequenceGroup::tables).collect();
        if !running.iter().all(|t| t.pool().is(&self.pool)) {
            return Err("a running group is swapped out".into());
        }
        if !waiting.iter().all(|t| t.is_empty() || t.pool().is(&self.swap)) {
            return Err("a waiting group holds blocks of the cache".into());
        }
        let pinned = self.prefixes.pinned_tables();
        self.pool.check_integrity(running.into_iter().chain(pinned).flat_map(BlockTable::blocks))?;
        self.swap
            .check_integrity(waiting.into_iter().flat_map(BlockTable::blocks))
            .map_err(|why| format!("swap space: {why}"))?;
        let all = || self.running.iter().chain(&self.waiting);
        if !all().is_sorted_by_key(|g| g.id) {
            return Err("groups are out of order".into());
        }
        if all().flat_map(|g| &g.running).any(|s| s.table.len() > s.tokens.len()) {
            return Err("a sequence holds slots for tokens it does not have".into());
        }
        Ok(())
    }
}
