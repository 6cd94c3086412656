//! Requests that end, because their outputs are complete or because they are cut short.

use std::collections::HashSet;

use super::Scheduler;
use crate::group::{RequestId, SequenceGroup};

impl Scheduler {
    /// Ends outputs of a request early. Calls `end` for each of its groups.
    pub fn end(&mut self, id: RequestId, mut end: impl FnMut(&mut SequenceGroup)) {
        self.running.iter_mut().filter(|group| group.id == id).for_each(&mut end);
        let ended = self.queue.extract(|group| {
            if group.id == id {
                end(group);
            }
            group.is_finished()
        });
        self.finish(ended);
        self.retire();
    }

    /// Takes out the requests whose outputs are complete, one group per request.
    pub fn take_finished(&mut self) -> Vec<SequenceGroup> {
        self.retire();
        std::mem::take(&mut self.finished)
    }

    /// Drops every request with a running group, after a step failed and its keys and values are lost. A divided
    /// request is dropped as a whole. Running groups' blocks are freed, and only pinned blocks stay registered. Groups
    /// that were swapped out will be recomputed.
    pub fn drop_running(&mut self) {
        let lost: HashSet<RequestId> = self.running.drain(..).map(|group| group.id).collect();
        self.queue.extract(|group| {
            group.release(&self.pool);
            lost.contains(&group.id)
        });
        self.parts.remove(&lost);
        self.pool.reset_prefix_cache();
        self.swap.reset_prefix_cache();
    }

    /// Whether the request has a running or waiting group.
    pub fn contains(&self, id: RequestId) -> bool {
        self.running.iter().chain(self.queue.iter()).any(|group| group.id == id)
    }

    fn retire(&mut self) {
        let ended: Vec<_> = self.running.extract_if(.., |group| group.is_finished()).collect();
        self.finish(ended);
    }

    fn finish(&mut self, mut ended: Vec<SequenceGroup>) {
        ended.iter_mut().for_each(|group| group.lease = None);
        self.finished.extend(ended.into_iter().filter_map(|group| self.parts.end(group)));
    }
}
