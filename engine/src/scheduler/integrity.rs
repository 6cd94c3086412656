//! A consistency check of queues and pools.

use std::collections::HashMap;

use super::Scheduler;
use crate::group::SequenceGroup;
use crate::kv::BlockTable;

impl Scheduler {
    /// Checks that queues and pools agree:
    /// - Every block is free, in use or pinned.
    /// - Running groups lease their adapters, and no others do.
    /// - Running groups use blocks of the cache, and waiting groups use at most blocks of the swap space.
    /// - Each owner's running groups of a priority come before its preempted ones, and these before its new ones.
    /// - Of the admitted groups of a priority, an earlier one is at least as urgent.
    /// - No part of a request is lost.
    ///
    /// # Errors
    /// Describes the first inconsistency.
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
        self.pool.check_integrity(running.into_iter().chain(pinned))?;
        self.pool.check_leases(self.running.iter().filter_map(|group| group.lease.as_ref()))?;
        if self.queue.iter().any(|group| group.lease.is_some()) {
            return Err("a waiting group leases an adapter".into());
        }
        if self.running.iter().any(|group| group.params.adapter.is_some() != group.lease.is_some()) {
            return Err("a running group does not lease its adapter".into());
        }
        self.swap
            .check_integrity(waiting.into_iter().filter(|table| !table.is_empty()))
            .map_err(|why| format!("swap space: {why}"))?;
        self.queue.check_integrity()?;
        let all = || self.running.iter().chain(self.queue.iter());
        self.parts.check_integrity(all())?;
        if !self.is_disturbed && !self.running.iter().is_sorted_by_key(|group| group.order()) {
            return Err("the running groups are out of order without being marked as disturbed".into());
        }
        if self.is_plenty() && !self.pool.fits(&self.blocks_at_most(), 0) {
            return Err("blocks might run out, but the scheduler assumes that they suffice".into());
        }
        if self.running.iter().any(SequenceGroup::is_new) {
            return Err("a running group was not admitted".into());
        }
        let mut latest = HashMap::new();
        for group in &self.running {
            let latest = latest.entry(group.line()).or_insert_with(|| group.order());
            *latest = group.order().max(*latest);
        }
        if self.queue.iter().any(|group| !group.is_new() && latest.get(&group.line()) > Some(&group.order())) {
            return Err("a preempted group waits although it comes before a running group of its owner".into());
        }
        self.check_levels()?;
        if all().flat_map(|g| &g.running).any(|s| s.table.len() > s.tokens.len()) {
            return Err("a sequence has slots for more tokens than it has".into());
        }
        Ok(())
    }

    fn check_levels(&self) -> Result<(), String> {
        let admitted = self.running.iter().chain(self.queue.iter()).filter(|group| !group.is_new());
        let mut ranked: Vec<_> = admitted.map(|group| (group.params.priority, group.rank(), group.level)).collect();
        ranked.sort_unstable();
        if ranked.iter().any(|(priority, _, level)| level > priority) {
            return Err("a group has a level above its priority".into());
        }
        match ranked.is_sorted_by(|one, other| one.0 < other.0 || one.2 <= other.2) {
            true => Ok(()),
            false => Err("a group is less urgent than a later one of its priority".into()),
        }
    }
}
