//! A check that queues and pools agree.

use std::collections::HashMap;

use super::Scheduler;
use crate::group::SequenceGroup;
use crate::kv::BlockTable;

impl Scheduler {
    /// Checks that queues and pools agree: every block is free, held or pinned, running groups hold blocks of the cache
    /// and waiting ones at most blocks of the swap space; that an owner's running groups came before its preempted
    /// ones, and these before its new ones; and that no part of a request is lost.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        let running: Vec<&BlockTable> = self.running.iter().flat_map(SequenceGroup::tables).collect();
        let waiting: Vec<&BlockTable> = self.queue.iter().flat_map(SequenceGroup::tables).collect();
        if !running.iter().all(|t| t.pool().is(&self.pool)) {
            return Err("a running group is swapped out".into());
        }
        if !waiting.iter().all(|t| t.is_empty() || t.pool().is(&self.swap)) {
            return Err("a waiting group holds blocks of the cache".into());
        }
        let pinned = self.prefixes.pinned_tables();
        self.pool.check_integrity(running.into_iter().chain(pinned).flat_map(BlockTable::held))?;
        self.swap
            .check_integrity(waiting.into_iter().flat_map(BlockTable::held))
            .map_err(|why| format!("swap space: {why}"))?;
        self.queue.check_integrity()?;
        let all = || self.running.iter().chain(self.queue.iter());
        self.parts.check_integrity(all())?;
        if !self.is_disturbed && !self.running.iter().is_sorted_by_key(|group| group.rank()) {
            return Err("the running groups are out of order, and nobody knows".into());
        }
        if self.is_plenty() && self.blocks_at_most() > self.pool.num_free() {
            return Err("blocks might run out, but are taken to suffice".into());
        }
        if self.running.iter().any(SequenceGroup::is_new) {
            return Err("a running group was not admitted".into());
        }
        let mut latest = HashMap::new();
        for group in &self.running {
            let latest = latest.entry(group.owner).or_insert_with(|| group.rank());
            *latest = group.rank().max(*latest);
        }
        if self.queue.iter().any(|group| !group.is_new() && latest.get(&group.owner) > Some(&group.rank())) {
            return Err("a group waits that came before others of its owner which run".into());
        }
        if all().flat_map(|g| &g.running).any(|s| s.table.len() > s.tokens.len()) {
            return Err("a sequence holds slots for tokens it does not have".into());
        }
        Ok(())
    }
}
