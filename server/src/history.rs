//! Records the server's activity in each second of the last ten minutes, for the page's plots.
//!
//! A task of the runtime reads the counters once a second, which costs the engine's thread no time.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::metrics::Metrics;

/// The time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of samples kept: ten minutes.
const KEPT: usize = 600;
/// The fields of a sample, in order.
const FIELDS: [&str; 9] = [
    // Seconds since the server was started.
    "time",
    // Rates per second since the previous sample.
    "generated_tokens",
    "computed_tokens",
    // Answered requests, neither cancelled nor lost.
    "requests",
    // At the time of the sample.
    "running",
    "waiting",
    // Share of the KV blocks in use, from 0 to 1.
    "kv_used",
    // Seconds, over the requests that ended in the previous minute. Null if there were none.
    "first_token_p95",
    "per_token_p95",
];

type Sample = [Option<f64>; FIELDS.len()];

/// Samples of the last ten minutes, one per second.
#[derive(Debug)]
pub struct History {
    start: Instant,
    samples: Mutex<VecDeque<Sample>>,
}

/// The answer to `GET /debug/history`.
#[derive(Debug, Serialize)]
pub struct Excerpt {
    /// Seconds between two samples.
    interval: f64,
    /// Number of samples that the server keeps.
    kept: usize,
    /// The names of a sample's fields, in order.
    fields: [&'static str; FIELDS.len()],
    /// The samples, oldest first.
    samples: Vec<Sample>,
}

/// The counters at one moment.
struct Counters {
    at: Instant,
    generated_tokens: u64,
    computed_tokens: u64,
    requests: u64,
}

impl History {
    /// Creates the history of a server that starts now, and allocates its memory at once.
    pub fn new() -> Self {
        History { start: Instant::now(), samples: Mutex::new(VecDeque::with_capacity(KEPT)) }
    }

    /// Returns the time since the server was started.
    pub fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    /// Takes samples forever.
    pub async fn keep(&self, metrics: &Metrics) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await;
        let mut before = Counters::of(metrics, Instant::now());
        loop {
            ticks.tick().await;
            let after = Counters::of(metrics, Instant::now());
            self.push(sample(self.start, &before, &after, metrics));
            before = after;
        }
    }

    /// Returns the samples later than `after`, in seconds since the server was started.
    pub fn since(&self, after: f64) -> Excerpt {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let later = |sample: &&Sample| sample[0].is_some_and(|time| time > after);
        let samples = samples.iter().filter(later).copied().collect();
        Excerpt { interval: INTERVAL.as_secs_f64(), kept: KEPT, fields: FIELDS, samples }
    }

    fn push(&self, sample: Sample) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == KEPT {
            samples.pop_front();
        }
        samples.push_back(sample);
    }
}

impl Counters {
    fn of(metrics: &Metrics, at: Instant) -> Self {
        Counters {
            at,
            generated_tokens: metrics.generation_tokens.get(),
            computed_tokens: metrics.computed_tokens.get(),
            requests: metrics.finished.answered(),
        }
    }
}

fn sample(start: Instant, before: &Counters, after: &Counters, metrics: &Metrics) -> Sample {
    let seconds = (after.at - before.at).as_secs_f64();
    let a_second = |before: u64, after: u64| Some((after - before) as f64 / seconds);
    let latency = metrics.finished.latency(after.at);
    [
        Some((after.at - start).as_secs_f64()),
        a_second(before.generated_tokens, after.generated_tokens),
        a_second(before.computed_tokens, after.computed_tokens),
        a_second(before.requests, after.requests),
        Some(metrics.running.get() as f64),
        Some(metrics.waiting.get() as f64),
        Some(metrics.kv_usage.get()),
        latency.first_token_p95,
        latency.per_token_p95,
    ]
    .map(|value| value.map(short))
}

/// Rounds to five decimal places. Plots do not show more, and every digit costs bandwidth.
fn short(value: f64) -> f64 {
    (value * 1e5).round() / 1e5
}

#[cfg(test)]
mod tests {
    use engine::Completion;

    use super::*;

    #[test]
    fn ten_minutes_are_kept() {
        let history = History::new();
        for second in 1..=1000 {
            let mut sample = Sample::default();
            sample[0] = Some(f64::from(second));
            history.push(sample);
        }
        let all = history.since(0.0);
        assert_eq!((all.samples.len(), all.samples[0][0], all.samples[599][0]), (600, Some(401.0), Some(1000.0)));
        let last = history.since(998.0);
        assert_eq!(last.samples.iter().map(|s| s[0]).collect::<Vec<_>>(), [Some(999.0), Some(1000.0)]);
        assert!(history.since(1000.0).samples.is_empty());
    }

    #[test]
    fn rates_are_of_the_time_that_has_passed() {
        let (metrics, start) = (Metrics::new("test"), Instant::now());
        let before = Counters::of(&metrics, start + Duration::from_secs(7));
        metrics.generation_tokens.inc_by(30);
        metrics.computed_tokens.inc_by(50);
        metrics.running.set(3);
        let answered = Completion {
            id: 0,
            prompt: String::new(),
            prompt_tokens: Vec::new(),
            cached_tokens: 0,
            prompt_logprobs: None,
            embedding: None,
            outputs: Vec::new(),
            time_to_first_token: Duration::ZERO,
            time: Duration::ZERO,
        };
        metrics.finished.push(&answered);
        // A lost request does not count as answered.
        metrics.finished.lost(1, Duration::ZERO);
        let after = Counters::of(&metrics, start + Duration::from_secs(9));
        let sample = sample(start, &before, &after, &metrics);
        let numbers = [9.0, 15.0, 25.0, 0.5, 3.0, 0.0, 0.0].map(Some);
        assert_eq!((&sample[..7], &sample[7..]), (&numbers[..], &[None, None][..]));
    }
}
