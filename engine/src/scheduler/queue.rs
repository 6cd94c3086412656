//! The waiting groups: one line per owner, ordered by level and by the first group of each. A line's level sinks while
//! its groups wait, so that less urgent groups have their turn at last.
//!
//! ```text
//!  owner  line                  preempted groups come first, in order of admission,
//!    7    [3 preempted, 4]      then new groups, in order of arrival
//!    2    [1, 2, 6]
//!    9    [5]
//! ```

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::group::{Order, OwnerId, RequestId, SequenceGroup};
use crate::kv::BlockPool;

/// The waiting groups.
#[derive(Debug, Default)]
pub struct WaitingQueue {
    lines: HashMap<OwnerId, Line>,
    /// The owners, ordered by the level of their line and the rank of its first group.
    order: BTreeMap<Order, OwnerId>,
    len: usize,
    /// The number of steps so far.
    now: u64,
    /// The steps after which a waiting group gains a level. 0 if it never does.
    ageing: u64,
}

/// The waiting groups of one owner, which have one priority.
#[derive(Debug)]
struct Line {
    /// In order of [`SequenceGroup::rank`], never empty.
    groups: VecDeque<SequenceGroup>,
    /// Whether a group was taken from this line.
    was_served: bool,
    /// The level of its most urgent group. The first group has it too, since the others wait for it.
    level: i64,
}

impl Line {
    fn order(&self) -> Option<Order> {
        self.groups.front().map(|head| (self.level, head.rank()))
    }

    /// The line's level in step `now`, if a group gains a level after `ageing` steps.
    fn aged(&self, now: u64, ageing: u64) -> i64 {
        let level = |group: &SequenceGroup| {
            let waited = group.waited + (now - group.queued_at);
            let gained = i64::try_from(waited / ageing).unwrap_or(i64::MAX);
            group.level.min(group.params.priority.saturating_sub(gained))
        };
        self.groups.iter().map(level).min().unwrap_or(self.level)
    }
}

impl WaitingQueue {
    /// An empty queue. A waiting group gains a level after `ageing` steps, or never if that is 0.
    pub fn new(ageing: u64) -> Self {
        WaitingQueue { ageing, ..WaitingQueue::default() }
    }

    /// Begins a step: groups have waited for one step more.
    pub fn tick(&mut self) {
        self.now += 1;
        if self.ageing > 0 {
            std::mem::take(&mut self.order).into_values().for_each(|owner| self.reorder(owner));
        }
    }

    /// Puts an owner's line in its place after its groups have changed or waited. Removes it if it is empty.
    fn reorder(&mut self, owner: OwnerId) {
        let Entry::Occupied(mut entry) = self.lines.entry(owner) else { return };
        let line = entry.get_mut();
        if self.ageing > 0 {
            line.level = line.aged(self.now, self.ageing);
        }
        match line.order() {
            Some(order) => drop(self.order.insert(order, owner)),
            None => drop(entry.remove()),
        }
    }

    /// The number of waiting groups.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no group waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether another owner waits with a level of at most that of `owner`.
    pub fn is_contended(&self, owner: OwnerId) -> bool {
        let level = self.level(owner);
        self.order.iter().take_while(|((other, _), _)| Some(*other) <= level).any(|(_, other)| *other != owner)
    }

    /// The most urgent, lowest priority of the first groups in all lines.
    pub fn most_urgent_priority(&self) -> i64 {
        let heads = self.lines.values().filter_map(|line| line.groups.front());
        heads.map(|head| head.params.priority).min().unwrap_or(i64::MAX)
    }

    /// The level of an owner's line.
    pub fn level(&self, owner: OwnerId) -> Option<i64> {
        self.lines.get(&owner).map(|line| line.level)
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
    pub fn insert(&mut self, mut group: SequenceGroup) {
        self.len += 1;
        group.queued_at = self.now;
        let (owner, rank, level) = (group.owner, group.rank(), group.level);
        let line = self.lines.entry(owner).or_insert(Line { groups: VecDeque::new(), was_served: false, level });
        let before = line.order();
        let at = line.groups.partition_point(|other| other.rank() < rank);
        line.groups.insert(at, group);
        line.level = line.level.min(level);
        let after = line.order();
        if after != before {
            before.map(|order| self.order.remove(&order));
            after.map(|order| self.order.insert(order, owner));
        }
    }

    /// Removes and returns the first group of an owner, which keeps the level that it has now.
    pub fn take(&mut self, owner: OwnerId) -> Option<SequenceGroup> {
        let line = self.lines.get_mut(&owner)?;
        let order = line.order()?;
        line.was_served = true;
        let mut group = line.groups.pop_front()?;
        group.level = line.level;
        group.waited += self.now - group.queued_at;
        self.len -= 1;
        self.order.remove(&order);
        self.reorder(owner);
        Some(group)
    }

    /// Divides the first group of an owner, which keeps `keep` outputs. The rest waits behind it. Returns the request's
    /// id.
    pub fn split_head(&mut self, owner: OwnerId, keep: usize, pool: &BlockPool) -> Option<RequestId> {
        let mut rest = self.lines.get_mut(&owner)?.groups.front_mut()?.split(keep, pool);
        rest.waited += self.now - rest.queued_at;
        let id = rest.id;
        self.insert(rest);
        Some(id)
    }

    /// Removes and returns every group that `is_out` accepts. `is_out` may change any group.
    pub fn extract(&mut self, mut is_out: impl FnMut(&mut SequenceGroup) -> bool) -> Vec<SequenceGroup> {
        let mut out = Vec::new();
        for owner in self.owners().collect::<Vec<_>>() {
            let Some(line) = self.lines.get_mut(&owner) else { continue };
            let (mut at, order) = (0, line.order());
            while at < line.groups.len() {
                if is_out(&mut line.groups[at]) {
                    out.extend(line.groups.remove(at));
                } else {
                    at += 1;
                }
            }
            order.map(|order| self.order.remove(&order));
            self.reorder(owner);
        }
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
        let first =
            |(order, owner): (&Order, &OwnerId)| self.lines.get(owner).is_some_and(|line| line.order() == Some(*order));
        if self.order.len() != self.lines.len() || !self.order.iter().all(first) {
            return Err("the owners are out of order".into());
        }
        Ok(())
    }
}
