//! Queued work of a context, and the order in which it must run.
//!
//! Work stays queued until a caller asks for its result. A program that forgets to wait therefore sees the undone work
//! in every run. On a GPU the mistake would show only now and then.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

/// The id of a stream in its context.
pub(super) type StreamId = u32;

/// How a stream is ordered relative to other streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamOrder {
    /// The default stream: it waits for all blocking streams, and they wait for it.
    Default,
    /// A stream that is ordered with the default stream.
    Blocking,
    /// A stream that is not ordered with the default stream.
    NonBlocking,
}

/// A piece of work queued in a stream.
#[derive(Clone, Debug)]
pub(super) struct QueuedWork<W> {
    seq: u64,
    stream: StreamId,
    order: StreamOrder,
    /// The sequence number of work in another stream that must end first.
    after: Option<u64>,
    /// When the work was submitted.
    asked: Instant,
    pub work: W,
}

/// Selects the work that must run now, along with everything it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// All work.
    Everything,
    /// All work of a stream.
    Stream(StreamId),
    /// One piece of work.
    Work(u64),
}

/// The queued work of a context, in submission order. No item depends on a later one.
#[derive(Debug)]
pub(super) struct WorkQueue<W> {
    items: VecDeque<QueuedWork<W>>,
    next: u64,
}

impl<W> Default for WorkQueue<W> {
    fn default() -> Self {
        Self { items: VecDeque::new(), next: 1 }
    }
}

impl<W> WorkQueue<W> {
    /// Queues work and returns its sequence number.
    pub fn push(&mut self, stream: StreamId, order: StreamOrder, after: Option<u64>, work: W) -> u64 {
        let seq = self.next;
        self.next += 1;
        self.items.push_back(QueuedWork { seq, stream, order, after, asked: Instant::now(), work });
        seq
    }

    /// The sequence number that the next work item will get.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether any selected work is still queued.
    pub fn is_pending(&self, until: Until) -> bool {
        self.items.iter().any(|item| until.matches(item))
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Drops all queued work.
    pub fn clear(&mut self) {
        self.items.clear();
    }

    /// Takes the first item that depends neither on an earlier item nor on running work.
    pub fn take_ready(&mut self, running: &[QueuedWork<()>]) -> Option<QueuedWork<W>> {
        let mut pending = Pending::default();
        running.iter().for_each(|item| pending.add(item));
        let ready = self.items.iter().position(|item| {
            let ready = !pending.holds_up(item);
            pending.add(item);
            ready
        })?;
        self.items.remove(ready)
    }

    /// Takes the selected work and everything it depends on, in order.
    pub fn take(&mut self, until: Until) -> Vec<QueuedWork<W>> {
        let mut streams = HashSet::new();
        let mut works = HashSet::new();
        let (mut default, mut blocking) = (false, false);
        let mut due = Vec::new();
        let mut rest = VecDeque::new();
        // Iterates from the last item to the first, so dependencies come after the items that need them.
        while let Some(item) = self.items.pop_back() {
            let needed = until.matches(&item)
                || streams.contains(&item.stream)
                || works.contains(&item.seq)
                || default && item.order == StreamOrder::Default
                || blocking && item.order == StreamOrder::Blocking;
            if !needed {
                rest.push_front(item);
                continue;
            }
            streams.insert(item.stream);
            works.extend(item.after);
            default |= item.order == StreamOrder::Blocking;
            blocking |= item.order == StreamOrder::Default;
            due.push(item);
        }
        self.items = rest;
        due.reverse();
        due
    }
}

impl<W> QueuedWork<W> {
    /// The sequence number that `push` returned.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Splits the item into its queue entry and the work.
    pub fn parts(self) -> (QueuedWork<()>, W) {
        let Self { seq, stream, order, after, asked, work } = self;
        (QueuedWork { seq, stream, order, after, asked, work: () }, work)
    }

    /// The stream that the work was submitted to.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// How the stream is ordered relative to other streams.
    pub fn order(&self) -> StreamOrder {
        self.order
    }

    /// The sequence number of work in another stream that must end first.
    pub fn after(&self) -> Option<u64> {
        self.after
    }

    /// When the work was submitted.
    pub fn asked(&self) -> Instant {
        self.asked
    }

    /// Whether the work must wait for earlier work of the given stream.
    pub fn comes_after(&self, stream: StreamId, order: StreamOrder) -> bool {
        self.stream == stream
            || self.order == StreamOrder::Default && order == StreamOrder::Blocking
            || self.order == StreamOrder::Blocking && order == StreamOrder::Default
    }

    /// Whether the work must wait for any running work.
    pub fn waits_for(&self, running: &[QueuedWork<()>]) -> bool {
        let mut pending = Pending::default();
        running.iter().for_each(|item| pending.add(item));
        pending.holds_up(self)
    }
}

/// Unfinished work that later work may depend on.
#[derive(Default)]
struct Pending {
    streams: HashSet<StreamId>,
    works: HashSet<u64>,
    default: bool,
    blocking: bool,
}

impl Pending {
    fn add<W>(&mut self, item: &QueuedWork<W>) {
        self.streams.insert(item.stream);
        self.works.insert(item.seq);
        self.default |= item.order == StreamOrder::Default;
        self.blocking |= item.order == StreamOrder::Blocking;
    }

    fn holds_up<W>(&self, item: &QueuedWork<W>) -> bool {
        self.streams.contains(&item.stream)
            || item.after.is_some_and(|seq| self.works.contains(&seq))
            || self.default && item.order == StreamOrder::Blocking
            || self.blocking && item.order == StreamOrder::Default
    }
}

impl Until {
    pub fn matches<W>(self, item: &QueuedWork<W>) -> bool {
        match self {
            Self::Everything => true,
            Self::Stream(stream) => item.stream == stream,
            Self::Work(seq) => item.seq == seq,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    use super::*;

    fn taken(queue: &mut WorkQueue<&'static str>, until: Until) -> Vec<&'static str> {
        queue.take(until).into_iter().map(|item| item.work).collect()
    }

    #[test]
    fn taking_a_stream_leaves_other_streams() {
        let mut queue = WorkQueue::default();
        queue.push(1, StreamOrder::Blocking, None, "a");
        queue.push(2, StreamOrder::Blocking, None, "b");
        queue.push(1, StreamOrder::Blocking, None, "c");
        assert_eq!(taken(&mut queue, Until::Stream(1)), ["a", "c"]);
        assert!(queue.is_pending(Until::Stream(2)) && !queue.is_pending(Until::Stream(1)));
        assert_eq!(taken(&mut queue, Until::Everything), ["b"]);
    }

    #[test]
    fn taking_work_takes_its_dependencies() {
        let mut queue = WorkQueue::default();
        queue.push(1, StreamOrder::NonBlocking, None, "first");
        let event = queue.push(1, StreamOrder::NonBlocking, None, "event");
        queue.push(1, StreamOrder::NonBlocking, None, "later");
        queue.push(2, StreamOrder::NonBlocking, Some(event), "wait");
        let last = queue.push(2, StreamOrder::NonBlocking, None, "last");
        queue.push(2, StreamOrder::NonBlocking, None, "beyond");
        assert_eq!(taken(&mut queue, Until::Work(last)), ["first", "event", "wait", "last"]);
        assert_eq!(taken(&mut queue, Until::Work(last)), [""; 0]);
        assert_eq!(taken(&mut queue, Until::Everything), ["later", "beyond"]);
    }

    #[test]
    fn work_without_dependencies_is_ready() {
        let mut queue = WorkQueue::default();
        queue.push(1, StreamOrder::NonBlocking, None, "running");
        let running = [queue.take_ready(&[]).unwrap().parts().0];
        let event = queue.push(1, StreamOrder::NonBlocking, None, "behind");
        queue.push(2, StreamOrder::NonBlocking, Some(event), "after");
        queue.push(2, StreamOrder::NonBlocking, None, "later");
        queue.push(3, StreamOrder::NonBlocking, None, "free");
        assert_eq!(queue.take_ready(&running).unwrap().work, "free");
        assert!(queue.take_ready(&running).is_none());
        assert_eq!(queue.take_ready(&[]).unwrap().work, "behind");
        assert_eq!(queue.take_ready(&[]).unwrap().work, "after");
    }

    #[test]
    fn the_default_stream_is_ordered_with_blocking_streams_only() {
        let mut queue = WorkQueue::default();
        queue.push(1, StreamOrder::Blocking, None, "before");
        queue.push(2, StreamOrder::NonBlocking, None, "free");
        queue.push(0, StreamOrder::Default, None, "default");
        queue.push(3, StreamOrder::Blocking, None, "after");
        queue.push(1, StreamOrder::Blocking, None, "later");
        assert_eq!(taken(&mut queue, Until::Stream(3)), ["before", "default", "after"]);
        assert_eq!(taken(&mut queue, Until::Everything), ["free", "later"]);
    }
}
