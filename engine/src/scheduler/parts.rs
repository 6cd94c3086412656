//! Divided requests: how many parts each has in progress, and the results of the parts that have ended.

use std::collections::{HashMap, HashSet};

use crate::group::{RequestId, SequenceGroup};

/// The requests that have been divided into parts.
#[derive(Debug, Default)]
pub struct Parts {
    requests: HashMap<RequestId, Divided>,
}

#[derive(Debug)]
struct Divided {
    /// Parts in progress.
    left: usize,
    /// The parts that have ended, joined.
    ended: Option<SequenceGroup>,
}

impl Parts {
    /// Whether no request is divided.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Notes that a group was divided, so its request has one more part.
    pub fn divided(&mut self, id: RequestId) {
        self.requests.entry(id).or_insert(Divided { left: 1, ended: None }).left += 1;
    }

    /// Notes that two parts in progress were joined again.
    pub fn joined(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.left -= 1;
            if request.left == 1 && request.ended.is_none() {
                self.requests.remove(&id);
            }
        }
    }

    /// Adds a part that has ended. Returns the whole request if it was the last part.
    pub fn end(&mut self, group: SequenceGroup) -> Option<SequenceGroup> {
        let id = group.id;
        let Some(request) = self.requests.get_mut(&id) else { return Some(group) };
        request.left -= 1;
        let whole = match request.ended.take() {
            Some(mut ended) => {
                ended.join(group);
                ended
            }
            None => group,
        };
        if request.left > 0 {
            request.ended = Some(whole);
            return None;
        }
        self.requests.remove(&id);
        Some(whole)
    }

    /// Removes requests that were dropped.
    pub fn remove(&mut self, lost: &HashSet<RequestId>) {
        self.requests.retain(|id, _| !lost.contains(id));
    }

    /// The requests with both ended and unfinished parts.
    pub fn begun(&self) -> impl Iterator<Item = RequestId> {
        self.requests.iter().filter(|(_, request)| request.ended.is_some()).map(|(id, _)| *id)
    }

    /// The number of parts in progress, minus one per divided request.
    pub fn num_extra(&self) -> usize {
        self.requests.values().map(|request| request.left - 1).sum()
    }

    /// Checks the counts against all `groups` in progress.
    ///
    /// # Errors
    /// Describes the first inconsistency.
    pub fn check_integrity<'a>(&self, groups: impl Iterator<Item = &'a SequenceGroup>) -> Result<(), String> {
        let mut left: HashMap<RequestId, usize> = HashMap::new();
        groups.for_each(|group| *left.entry(group.id).or_default() += 1);
        if let Some(id) = self.requests.keys().find(|id| !left.contains_key(id)) {
            return Err(format!("request {id} has no parts left"));
        }
        let counted = |id: &RequestId| self.requests.get(id).map_or(1, |request| request.left);
        match left.iter().find(|(id, left)| counted(id) != **left) {
            Some((id, left)) => Err(format!("request {id} has {left} parts, but {} are counted", counted(id))),
            None => Ok(()),
        }
    }
}
