//! The waiting groups: one line for each owner and priority, ordered by level and by the first group of each.
//!
//! ```text
//!  owner, priority  line                  preempted groups come first, in order of admission,
//!     7, 0          [3 preempted, 4]      then new groups, in order of arrival
//!     2, 0          [1, 2, 6]
//!     2, 5          [5]
//! ```
//!
//! A priority ages: the level of its lines sinks while more urgent groups go first, but not below theirs, so that it has
//! its turn at last. It is young again when one of its groups is admitted. So groups of one priority are never reordered.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::group::{LineId, Order, Rank, RequestId, SequenceGroup};
use crate::kv::BlockPool;

/// The waiting groups.
#[derive(Debug, Default)]
pub struct WaitingQueue {
    lines: HashMap<LineId, Line>,
    /// The lines, ordered by their level and the rank of their first group.
    order: BTreeMap<Order, LineId>,
    len: usize,
    /// The priorities of waiting groups.
    priorities: BTreeMap<i64, Age>,
    /// The steps after which a priority gains a level. 0 if it never does.
    ageing: u64,
    /// The most urgent priority of a group that waits or runs. No level sinks below it.
    floor: i64,
}

/// The waiting groups of one owner and priority.
#[derive(Debug)]
struct Line {
    /// In order of [`SequenceGroup::rank`], never empty.
    groups: VecDeque<SequenceGroup>,
    /// Whether a group was taken from this line.
    was_served: bool,
    /// The level of its first group, less what its priority has gained.
    level: i64,
}

impl Line {
    fn order(&self) -> Option<Order> {
        self.groups.front().map(|head| (self.level, head.rank()))
    }
}

/// How long a priority has waited.
#[derive(Debug, Default)]
struct Age {
    /// The number of its lines.
    lines: usize,
    /// The steps since one of its groups was admitted, or since the first came, that it waited for more urgent ones.
    steps: u64,
}

impl WaitingQueue {
    /// An empty queue. A priority gains a level after `ageing` steps of waiting, or never if that is 0.
    pub fn new(ageing: u64) -> Self {
        WaitingQueue { ageing, ..WaitingQueue::default() }
    }

    /// Begins a step: priorities are older if more urgent groups wait or run. `running` is the most urgent priority of a
    /// running group.
    pub fn tick(&mut self, running: Option<i64>) {
        if self.ageing == 0 {
            return;
        }
        let first = self.most_urgent_priority().min(running.unwrap_or(i64::MAX));
        let mut has_changed = std::mem::replace(&mut self.floor, first) != first;
        for (priority, age) in &mut self.priorities {
            // More steps would count if a more urgent priority came later.
            let most = priority.abs_diff(first).saturating_mul(self.ageing);
            let before = age.steps;
            age.steps = (before + 1).min(most);
            has_changed |= age.steps != before && age.steps.is_multiple_of(self.ageing);
        }
        if has_changed {
            self.reorder_all();
        }
    }

    /// The level of a line with the first group `head`.
    fn sunk(&self, head: &SequenceGroup) -> i64 {
        let steps = self.priorities.get(&head.params.priority).map_or(0, |age| age.steps);
        let gained = i64::try_from(steps.checked_div(self.ageing).unwrap_or(0)).unwrap_or(i64::MAX);
        head.level.min(head.level.saturating_sub(gained).max(self.floor))
    }

    /// Puts a line in its place after its groups have changed. Removes it if it is empty.
    fn reorder(&mut self, id: LineId) {
        let level = self.head(id).map(|head| self.sunk(head));
        let Entry::Occupied(mut entry) = self.lines.entry(id) else { return };
        let line = entry.get_mut();
        line.level = level.unwrap_or(line.level);
        match line.order() {
            Some(order) => drop(self.order.insert(order, id)),
            None => {
                entry.remove();
                if let Some(age) = self.priorities.get_mut(&id.priority) {
                    age.lines -= 1;
                }
                self.priorities.retain(|_, age| age.lines > 0);
            }
        }
    }

    /// Puts all lines in their places after levels have changed.
    fn reorder_all(&mut self) {
        std::mem::take(&mut self.order).into_values().for_each(|line| self.reorder(line));
    }

    /// The number of waiting groups.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no group waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether another line waits with a level of at most that of `line`.
    pub fn is_contended(&self, line: LineId) -> bool {
        let level = self.level(line);
        self.order.iter().take_while(|((other, _), _)| Some(*other) <= level).any(|(_, other)| *other != line)
    }

    /// The most urgent, lowest priority of the waiting groups. The highest number if none waits.
    pub fn most_urgent_priority(&self) -> i64 {
        self.priorities.keys().next().copied().unwrap_or(i64::MAX)
    }

    /// The level of a line.
    pub fn level(&self, line: LineId) -> Option<i64> {
        self.lines.get(&line).map(|line| line.level)
    }

    /// Whether a line has a waiting group.
    pub fn has(&self, line: LineId) -> bool {
        self.lines.contains_key(&line)
    }

    /// The lines with waiting groups, in order.
    pub fn lines(&self) -> impl Iterator<Item = LineId> {
        self.order.values().copied()
    }

    /// The waiting groups, line by line.
    pub fn iter(&self) -> impl Iterator<Item = &SequenceGroup> {
        self.order.values().flat_map(|line| &self.lines[line].groups)
    }

    /// The first group of the first line.
    pub fn front(&self) -> Option<&SequenceGroup> {
        self.iter().next()
    }

    /// The first group of a line.
    pub fn head(&self, line: LineId) -> Option<&SequenceGroup> {
        self.lines.get(&line)?.groups.front()
    }

    /// Whether a group was taken from the line since it was last empty.
    pub fn was_served(&self, line: LineId) -> bool {
        self.lines.get(&line).is_some_and(|line| line.was_served)
    }

    /// Queues a group in its line.
    pub fn insert(&mut self, group: SequenceGroup) {
        self.len += 1;
        let (id, rank) = (group.line(), group.rank());
        let line = match self.lines.entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.priorities.entry(id.priority).or_default().lines += 1;
                entry.insert(Line { groups: VecDeque::new(), was_served: false, level: group.level })
            }
        };
        let before = line.order();
        let at = line.groups.partition_point(|other| other.rank() < rank);
        line.groups.insert(at, group);
        if at == 0 {
            before.map(|order| self.order.remove(&order));
            self.reorder(id);
        }
    }

    /// Removes and returns the first group of a line, which keeps the level that the line has now. Its priority is young
    /// again.
    pub fn take(&mut self, id: LineId) -> Option<SequenceGroup> {
        let line = self.lines.get_mut(&id)?;
        let order = line.order()?;
        line.was_served = true;
        let mut group = line.groups.pop_front()?;
        group.level = line.level;
        self.len -= 1;
        self.order.remove(&order);
        let steps = self.priorities.get_mut(&id.priority).map_or(0, |age| std::mem::take(&mut age.steps));
        self.reorder(id);
        if steps > 0 {
            self.reorder_all();
        }
        Some(group)
    }

    /// Makes preempted groups of `priority` that rank before `rank` at least as urgent as `level`.
    pub fn lift(&mut self, priority: i64, rank: Rank, level: i64) {
        for (_, line) in self.lines.iter_mut().filter(|(id, _)| id.priority == priority) {
            let earlier = line.groups.iter_mut().take_while(|group| !group.is_new() && group.rank() < rank);
            earlier.for_each(|group| group.level = group.level.min(level));
        }
        self.reorder_all();
    }

    /// Divides the first group of a line, which keeps `keep` outputs. The rest waits behind it. Returns the request's id.
    pub fn split_head(&mut self, line: LineId, keep: usize, pool: &BlockPool) -> Option<RequestId> {
        let rest = self.lines.get_mut(&line)?.groups.front_mut()?.split(keep, pool);
        let id = rest.id;
        self.insert(rest);
        Some(id)
    }

    /// Removes and returns every group that `is_out` accepts. `is_out` may change any group.
    pub fn extract(&mut self, mut is_out: impl FnMut(&mut SequenceGroup) -> bool) -> Vec<SequenceGroup> {
        let mut out = Vec::new();
        for id in self.lines().collect::<Vec<_>>() {
            let Some(line) = self.lines.get_mut(&id) else { continue };
            let (mut at, order) = (0, line.order());
            while at < line.groups.len() {
                if is_out(&mut line.groups[at]) {
                    out.extend(line.groups.remove(at));
                } else {
                    at += 1;
                }
            }
            order.map(|order| self.order.remove(&order));
            self.reorder(id);
        }
        self.len -= out.len();
        out
    }

    /// Checks that the lines, their order, their levels and the counts agree.
    ///
    /// # Errors
    /// Describes the first inconsistency.
    pub fn check_integrity(&self) -> Result<(), String> {
        let lines = self.lines.values().map(|line| &line.groups);
        if lines.clone().map(VecDeque::len).sum::<usize>() != self.len {
            return Err("the queue counts a wrong number of groups".into());
        }
        if !lines.clone().all(|line| line.iter().is_sorted_by(|a, b| a.rank() < b.rank())) {
            return Err("the waiting groups of a line are out of order".into());
        }
        if !self.lines.values().all(|line| line.groups.front().map(|head| self.sunk(head)) == Some(line.level)) {
            return Err("a line has a wrong level".into());
        }
        let first =
            |(order, id): (&Order, &LineId)| self.lines.get(id).is_some_and(|line| line.order() == Some(*order));
        if self.order.len() != self.lines.len() || !self.order.iter().all(first) {
            return Err("the lines are out of order".into());
        }
        let count = |priority: i64| self.lines.keys().filter(|id| id.priority == priority).count();
        match self.priorities.iter().find(|(priority, age)| age.lines == 0 || age.lines != count(**priority)) {
            Some((priority, _)) => Err(format!("the lines of priority {priority} are miscounted")),
            None => Ok(()),
        }
    }
}
