//! The waiting groups: one line per owner, ordered by the first group of each.
//!
//! ```text
//!  owner  line                  preempted groups come first, in order of admission,
//!    7    [3 preempted, 4]      then new groups, in order of arrival
//!    2    [1, 2, 6]
//!    9    [5]
//! ```

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::group::{OwnerId, Rank, RequestId, SequenceGroup};
use crate::kv::BlockPool;

/// The waiting groups.
#[derive(Debug, Default)]
pub struct WaitingQueue {
    lines: HashMap<OwnerId, Line>,
    /// The owners, ordered by the rank of the first group in their line.
    order: BTreeMap<Rank, OwnerId>,
    len: usize,
}

/// The waiting groups of one owner.
#[derive(Debug, Default)]
struct Line {
    /// In order of [`SequenceGroup::rank`], never empty.
    groups: VecDeque<SequenceGroup>,
    /// Whether a group was taken from this line.
    was_served: bool,
}

impl WaitingQueue {
    /// The number of waiting groups.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no group waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether more than one owner waits.
    pub fn is_contended(&self) -> bool {
        self.lines.len() > 1
    }

    /// Whether `owner` has a waiting group.
    pub fn has(&self, owner: OwnerId) -> bool {
        self.lines.contains_key(&owner)
    }

    /// The owners with waiting groups, in order.
    pub fn owners(&self) -> impl Iterator<Item = OwnerId> {
        self.order.values().copied()
    }

    /// The waiting groups, line by line.
    pub fn iter(&self) -> impl Iterator<Item = &SequenceGroup> {
        self.order.values().flat_map(|owner| &self.lines[owner].groups)
    }

    /// The first group of the first line.
    pub fn front(&self) -> Option<&SequenceGroup> {
        self.iter().next()
    }

    /// The first waiting group of an owner.
    pub fn head(&self, owner: OwnerId) -> Option<&SequenceGroup> {
        self.lines.get(&owner)?.groups.front()
    }

    /// Whether a group was taken from the owner's line since the line was last empty.
    pub fn was_served(&self, owner: OwnerId) -> bool {
        self.lines.get(&owner).is_some_and(|line| line.was_served)
    }

    /// Queues a group in its owner's line.
    pub fn insert(&mut self, group: SequenceGroup) {
        self.len += 1;
        let (owner, rank) = (group.owner, group.rank());
        let line = &mut self.lines.entry(owner).or_default().groups;
        let at = line.partition_point(|other| other.rank() < rank);
        if at == 0 {
            if let Some(head) = line.front() {
                self.order.remove(&head.rank());
            }
            self.order.insert(rank, owner);
        }
        line.insert(at, group);
    }

    /// Removes and returns the first group of an owner.
    pub fn take(&mut self, owner: OwnerId) -> Option<SequenceGroup> {
        let Entry::Occupied(mut entry) = self.lines.entry(owner) else { return None };
        let line = entry.get_mut();
        line.was_served = true;
        let group = line.groups.pop_front()?;
        self.len -= 1;
        self.order.remove(&group.rank());
        match line.groups.front() {
            Some(head) => drop(self.order.insert(head.rank(), owner)),
            None => drop(entry.remove()),
        }
        Some(group)
    }

    /// Divides the first group of an owner, which keeps `keep` outputs. The rest waits behind it. Returns the request's
    /// id.
    pub fn split_head(&mut self, owner: OwnerId, keep: usize, pool: &BlockPool) -> Option<RequestId> {
        let rest = self.lines.get_mut(&owner)?.groups.front_mut()?.split(keep, pool);
        let id = rest.id;
        self.insert(rest);
        Some(id)
    }

    /// Removes and returns every group that `is_out` accepts. `is_out` may change any group.
    pub fn extract(&mut self, mut is_out: impl FnMut(&mut SequenceGroup) -> bool) -> Vec<SequenceGroup> {
        let mut out = Vec::new();
        for owner in self.owners().collect::<Vec<_>>() {
            let Some(Line { groups: line, .. }) = self.lines.get_mut(&owner) else { continue };
            let (mut at, head) = (0, line.front().map(SequenceGroup::rank));
            while at < line.len() {
                if is_out(&mut line[at]) {
                    out.extend(line.remove(at));
                } else {
                    at += 1;
                }
            }
            let new_head = line.front().map(SequenceGroup::rank);
            if new_head != head {
                head.map(|rank| self.order.remove(&rank));
                new_head.map(|rank| self.order.insert(rank, owner));
            }
        }
        self.lines.retain(|_, line| !line.groups.is_empty());
        self.len -= out.len();
        out
    }

    /// Checks that the lines, their order and the count agree.
    ///
    /// # Errors
    /// Describes the first inconsistency.
    pub fn check_integrity(&self) -> Result<(), String> {
        let lines = self.lines.values().map(|line| &line.groups);
        if lines.clone().map(VecDeque::len).sum::<usize>() != self.len {
            return Err("the queue counts a wrong number of groups".into());
        }
        if !lines.clone().all(|line| line.iter().is_sorted_by(|a, b| a.rank() < b.rank())) {
            return Err("an owner's waiting groups are out of order".into());
        }
        let first = |(rank, owner): (&Rank, &OwnerId)| self.head(*owner).is_some_and(|head| head.rank() == *rank);
        if self.order.len() != self.lines.len() || !self.order.iter().all(first) {
            return Err("the owners are out of order".into());
        }
        Ok(())
    }
}
