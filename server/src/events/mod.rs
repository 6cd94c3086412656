//! KV events: publishes the prefixes in the KV cache for routers, in vLLM's format.
//!
//! ```text
//!  engine's thread --EventSource--> bounded queue --> task: numbers, msgpack --> PUB: topic, number, batch
//!     after a step                                      |
//!                                                       +--> the last batches <-- task: ROUTER, replay
//! ```
//!
//! The engine never waits. If the queue is full, the batch is dropped. Batches for subscribers that read too slowly are
//! dropped too. Subscribers see the gap in the batch numbers.

mod broadcast;
mod format;
mod listen;
mod publisher;
mod replay;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::Llm;
use engine::tools::kv::{CacheChange, CacheChanges, CacheGroup};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

pub use format::EventFormat;
pub use publisher::Publisher;

/// Maximum batches that wait to be published.
const QUEUE: usize = 4096;

/// The changes of one step.
#[derive(Debug)]
enum News {
    /// In a cache with these groups of layers.
    Changes(Vec<CacheChange>, Arc<[CacheGroup]>),
    /// The cache was cleared.
    Cleared,
}

/// The numbered changes of one step.
#[derive(Debug)]
struct Batch {
    /// Counts from 0 and includes dropped batches.
    number: u64,
    /// Seconds since 1970.
    time: f64,
    news: News,
}

/// The engine's side, which reports changes of the cache. Clones report to the same queue.
#[derive(Clone, Debug)]
pub struct EventSource {
    changes: Arc<Mutex<CacheChanges>>,
    /// The groups of layers of the engine that is followed.
    groups: Arc<Mutex<Arc<[CacheGroup]>>>,
    batches: mpsc::Sender<Batch>,
    next: Arc<AtomicU64>,
    dropped: Counter,
}

impl EventSource {
    /// Creates a source and its queue. `dropped` counts the batches that do not fit in the queue.
    fn new(dropped: Counter) -> (Self, mpsc::Receiver<Batch>) {
        let (batches, queue) = mpsc::channel(QUEUE);
        (
            EventSource {
                changes: Arc::default(),
                groups: Arc::new(Mutex::new(Arc::new([]))),
                batches,
                next: Arc::default(),
                dropped,
            },
            queue,
        )
    }

    /// Starts to follow the cache of `llm`, which must be empty. A previously followed engine must have been reported
    /// as [`Self::cleared`].
    pub fn follow(&self, llm: &mut Llm) {
        *self.groups() = llm.engine().config().groups.clone().into();
        llm.set_kv_log(self.changes.clone());
    }

    /// Reports the changes of a successful step.
    pub fn step(&self) {
        let changes = self.changes().take();
        if !changes.is_empty() {
            let groups = self.groups().clone();
            self.report(News::Changes(changes, groups));
        }
    }

    /// Reports that the engine and its cache are gone. Discards the changes of its last step.
    pub fn cleared(&self) {
        *self.changes() = CacheChanges::default();
        self.report(News::Cleared);
    }

    fn report(&self, news: News) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        if self.batches.try_send(Batch { number, time, news }).is_err() {
            self.dropped.inc();
            tracing::debug!(number, "a batch of KV events was dropped");
        }
    }

    fn groups(&self) -> MutexGuard<'_, Arc<[CacheGroup]>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, CacheChanges> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn a_full_queue_drops_batches_and_their_numbers_and_the_metrics_show_it() {
        let metrics = Metrics::new("m");
        let dropped = || {
            let text = metrics.text().unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("quire:kv_event_batches_dropped_total{"));
            line.and_then(|line| line.split(' ').next_back()?.parse::<u64>().ok())
        };
        let (source, mut queue) = EventSource::new(metrics.dropped_batches.clone());
        assert_eq!(dropped(), Some(0));
        for _ in 0..QUEUE + 5 {
            source.cleared();
        }
        assert_eq!(queue.try_recv().unwrap().number, 0);
        source.cleared();
        let numbers: Vec<u64> = std::iter::from_fn(|| Some(queue.try_recv().ok()?.number)).collect();
        let (last, others) = numbers.split_last().unwrap();
        assert_eq!(others, (1..QUEUE as u64).collect::<Vec<_>>());
        assert_eq!(*last, QUEUE as u64 + 5, "five are missing");
        assert_eq!(dropped(), Some(5));
    }

    #[test]
    fn steps_without_changes_are_not_reported() {
        let (source, mut queue) = EventSource::new(Counter::default());
        source.step();
        assert!(queue.try_recv().is_err());
    }
}
