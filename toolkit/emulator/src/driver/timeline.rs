//! The times at which work would begin and end on a GPU with concurrent streams.
//!
//! The emulator executes one piece of work at a time, and only when it must. On a GPU, work begins when it is submitted
//! or when its dependencies end, independently of other streams. Event times follow the GPU's model: each piece of work
//! takes as long as the emulator needs for it, and streams overlap.

use super::queue::{QueuedWork, StreamId, StreamOrder};
use std::collections::HashMap;
use std::time::Instant;

/// The end times of work, by stream and by sequence number.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    /// The end of each stream's last work item.
    streams: HashMap<StreamId, (StreamOrder, Instant)>,
    /// The end of each work item that other streams may wait for, by sequence number.
    works: HashMap<u64, Instant>,
}

impl Timeline {
    /// The time when work begins.
    pub fn start<W>(&self, item: &QueuedWork<W>) -> Instant {
        let before = |(stream, (order, _)): &(&StreamId, &(StreamOrder, Instant))| item.comes_after(**stream, *order);
        let ends = self.streams.iter().filter(before).map(|(_, (_, end))| *end);
        let awaited = item.after().and_then(|seq| self.works.get(&seq)).copied();
        ends.chain(awaited).fold(item.asked(), Instant::max)
    }

    /// Records the time when work ends.
    pub fn end<W>(&mut self, item: &QueuedWork<W>, at: Instant) {
        self.streams.insert(item.stream(), (item.order(), at));
        self.works.insert(item.seq(), at);
    }

    /// Drops all recorded end times, which are in the past now. Work submitted later begins after them anyway.
    pub fn clear(&mut self) {
        self.streams.clear();
        self.works.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    use super::*;
    use crate::driver::queue::{Until, WorkQueue};
    use std::time::Duration;

    /// The begin and end of each queued item in seconds after the first. Each item's work is its duration.
    fn times(queue: &mut WorkQueue<u64>) -> Vec<(u64, u64)> {
        let mut timeline = Timeline::default();
        let items = queue.take(Until::Everything);
        let first = items[0].asked();
        let times = items.iter().map(|item| {
            let start = timeline.start(item);
            timeline.end(item, start + Duration::from_secs(item.work));
            let since = (start - first).as_secs();
            (since, since + item.work)
        });
        times.collect()
    }

    #[test]
    fn streams_overlap() {
        let mut queue = WorkQueue::default();
        queue.push(1, StreamOrder::NonBlocking, None, 100);
        queue.push(2, StreamOrder::NonBlocking, None, 200);
        let event = queue.push(1, StreamOrder::NonBlocking, None, 50);
        queue.push(2, StreamOrder::NonBlocking, Some(event), 100);
        queue.push(3, StreamOrder::NonBlocking, Some(event), 100);
        assert_eq!(times(&mut queue), [(0, 100), (0, 200), (100, 150), (200, 300), (150, 250)]);
    }

    #[test]
    fn the_default_stream_waits_for_blocking_ones() {
        let mut queue = WorkQueue::default();
        queue.push(1, StreamOrder::Blocking, None, 100);
        queue.push(2, StreamOrder::NonBlocking, None, 300);
        queue.push(0, StreamOrder::Default, None, 100);
        queue.push(1, StreamOrder::Blocking, None, 100);
        assert_eq!(times(&mut queue), [(0, 100), (0, 300), (100, 200), (200, 300)]);
    }
}
