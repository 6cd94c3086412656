//! What was done lately, a second.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use engine::stats::Stats;
use serde::Serialize;

/// The time that rates are taken over.
const WINDOW: Duration = Duration::from_secs(5);
/// The time between two marks within it.
const MARK: Duration = Duration::from_millis(250);

/// Counters over the last seconds.
#[derive(Debug)]
pub struct Rates {
    start: Instant,
    marks: VecDeque<(Instant, Counters)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    steps: usize,
    computed_tokens: usize,
    generated_tokens: usize,
    requests: u64,
}

/// Events a second, over the last seconds in which there was something to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PerSecond {
    /// Steps of the engine.
    pub steps: f64,
    /// Tokens run through the model, those of prompts included.
    pub computed_tokens: f64,
    /// Tokens generated.
    pub generated_tokens: f64,
    /// Requests completed.
    pub requests: f64,
}

impl Rates {
    /// For an engine that begins now.
    pub fn new() -> Self {
        Rates { start: Instant::now(), marks: VecDeque::new() }
    }

    /// Time since then.
    pub fn age(&self, now: Instant) -> Duration {
        now - self.start
    }

    /// Takes in the counters and the number of requests completed, if the last time was long enough ago.
    pub fn observe(&mut self, now: Instant, stats: &Stats, requests: u64) {
        if self.marks.back().is_some_and(|mark| now - mark.0 < MARK) {
            return;
        }
        let counters = Counters {
            steps: stats.steps,
            computed_tokens: stats.computed_tokens,
            generated_tokens: stats.sampled_tokens,
            requests,
        };
        self.marks.push_back((now, counters));
        self.forget(now);
    }

    /// The rates at `now`.
    pub fn per_second(&self, now: Instant) -> PerSecond {
        let recent = || self.marks.iter().filter(|mark| now - mark.0 <= WINDOW);
        let (Some((start, a)), Some((_, b))) = (recent().next(), recent().next_back()) else {
            return PerSecond::default();
        };
        let seconds = (now - *start).as_secs_f64().max(MARK.as_secs_f64());
        PerSecond {
            steps: (b.steps - a.steps) as f64 / seconds,
            computed_tokens: (b.computed_tokens - a.computed_tokens) as f64 / seconds,
            generated_tokens: (b.generated_tokens - a.generated_tokens) as f64 / seconds,
            requests: (b.requests - a.requests) as f64 / seconds,
        }
    }

    fn forget(&mut self, now: Instant) {
        while self.marks.front().is_some_and(|mark| now - mark.0 > WINDOW) {
            self.marks.pop_front();
        }
    }
}
