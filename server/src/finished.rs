//! The requests that ended lately: how each ended, and how long it took.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::group::RequestId;
use engine::llm::Completion;
use engine::sequence::FinishReason;
use serde::Serialize;

/// Requests that are remembered.
const KEPT: usize = 1024;
/// The time for which a request counts in the latencies.
const WINDOW: Duration = Duration::from_secs(60);

/// The requests that ended lately. Clones are of the same.
#[derive(Clone, Debug)]
pub struct FinishedRequests(Arc<Mutex<Log>>);

#[derive(Debug)]
struct Log {
    /// How many there were since the start.
    total: u64,
    /// How many of these had no output that was cancelled or failed.
    answered: u64,
    /// The latest last.
    latest: VecDeque<(Instant, FinishedRequest)>,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FinishedRequest {
    /// The engine's name for it.
    pub id: RequestId,
    /// When it ended, in seconds since 1970.
    pub at: f64,
    /// Length of its prompt; nothing if it was lost with a failed step.
    pub prompt_tokens: Option<usize>,
    /// Tokens of all its outputs.
    pub output_tokens: usize,
    /// Seconds from its arrival to its first token, if it had one.
    pub first_token: Option<f64>,
    /// Mean seconds for a token after the first, if there was one.
    pub per_token: Option<f64>,
    /// Seconds from its arrival to its end.
    pub time: f64,
    /// How its outputs ended.
    pub ended: Ends,
}

/// How many outputs of a request ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ends {
    /// With an end-of-text token or a stop string.
    #[serde(skip_serializing_if = "is_zero")]
    pub stop: usize,
    /// At a limit: the tokens that were asked for, the model's positions, or the KV blocks.
    #[serde(skip_serializing_if = "is_zero")]
    pub length: usize,
    /// Because the request was cancelled.
    #[serde(skip_serializing_if = "is_zero")]
    pub abort: usize,
    /// Because a step failed. Nothing else is known of such a request.
    #[serde(skip_serializing_if = "is_zero")]
    pub error: usize,
}

/// Latencies in seconds of the requests that ended in the last minute, of the latest 1,024 at most. Each is what 95 of a
/// hundred requests do not exceed; nothing where there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// How many requests these were.
    pub requests: usize,
    /// From a request's arrival to its first token.
    pub first_token_p95: Option<f64>,
    /// Mean time for a token of a request after the first.
    pub per_token_p95: Option<f64>,
    /// From a request's arrival to its end, of those that were not cancelled.
    pub whole_p95: Option<f64>,
}

impl FinishedRequest {
    /// Whether it was neither cancelled nor lost, as a whole.
    fn is_answered(&self) -> bool {
        self.ended.abort + self.ended.error == 0
    }
}

impl FinishedRequests {
    /// None yet. The memory for all is taken at once.
    pub fn new() -> Self {
        FinishedRequests(Arc::new(Mutex::new(Log { total: 0, answered: 0, latest: VecDeque::with_capacity(KEPT) })))
    }

    /// Notes a request that was answered, or cancelled.
    pub fn push(&self, completion: &Completion) {
        let longest = completion.outputs.iter().map(|o| o.tokens.len()).max().unwrap_or(0);
        let (first, whole) = (completion.time_to_first_token, completion.time);
        let mut ended = Ends::default();
        for output in &completion.outputs {
            match output.finish_reason {
                FinishReason::Stop => ended.stop += 1,
                FinishReason::Length => ended.length += 1,
                FinishReason::Abort => ended.abort += 1,
            }
        }
        self.log().push(FinishedRequest {
            id: completion.id,
            at: seconds_since_1970(),
            prompt_tokens: Some(completion.prompt_tokens.len()),
            output_tokens: completion.outputs.iter().map(|o| o.tokens.len()).sum(),
            first_token: (longest > 0).then_some(first.as_secs_f64()),
            per_token: (longest > 1).then(|| (whole - first).as_secs_f64() / (longest - 1) as f64),
            time: whole.as_secs_f64(),
            ended,
        });
    }

    /// Notes a request that was lost with a failed step.
    pub fn lost(&self, id: RequestId, time: Duration) {
        self.log().push(FinishedRequest {
            id,
            at: seconds_since_1970(),
            prompt_tokens: None,
            output_tokens: 0,
            first_token: None,
            per_token: None,
            time: time.as_secs_f64(),
            ended: Ends { error: 1, ..Ends::default() },
        });
    }

    /// How many there were since the start.
    pub fn total(&self) -> u64 {
        self.log().total
    }

    /// How many of these were answered: neither cancelled nor lost.
    pub fn answered(&self) -> u64 {
        self.log().answered
    }

    /// The last `most`, the latest first.
    pub fn latest(&self, most: usize) -> Vec<FinishedRequest> {
        self.log().latest.iter().rev().take(most).map(|entry| entry.1).collect()
    }

    /// Latencies of the minute before `now`.
    pub fn latency(&self, now: Instant) -> Latency {
        let recent: Vec<FinishedRequest> = {
            let log = self.log();
            let recent = log.latest.iter().rev().take_while(|entry| now.saturating_duration_since(entry.0) < WINDOW);
            recent.map(|entry| entry.1).collect()
        };
        let whole = |r: &FinishedRequest| r.is_answered().then_some(r.time);
        Latency {
            requests: recent.len(),
            first_token_p95: p95(recent.iter().filter_map(|r| r.first_token)),
            per_token_p95: p95(recent.iter().filter_map(|r| r.per_token)),
            whole_p95: p95(recent.iter().filter_map(whole)),
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // Nothing in here can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn push(&mut self, request: FinishedRequest) {
        if self.latest.len() == KEPT {
            self.latest.pop_front();
        }
        self.latest.push_back((Instant::now(), request));
        self.total += 1;
        self.answered += u64::from(request.is_answered());
    }
}

/// The time now.
pub fn seconds_since_1970() -> f64 {
    // A clock that is set to a time before 1970 counts as 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The least value that 95 of a hundred do not exceed.
fn p95(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * 95).div_ceil(100);
    values.get(rank.checked_sub(1)?).copied()
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_95th_percentile_is_a_value_that_was_there() {
        assert_eq!(p95([].into_iter()), None);
        assert_eq!(p95([3.0].into_iter()), Some(3.0));
        assert_eq!(p95((1..=20).rev().map(f64::from)), Some(19.0));
        assert_eq!(p95((1..=100).map(f64::from)), Some(95.0));
    }

    #[test]
    fn the_oldest_are_forgotten_and_still_counted() {
        let finished = FinishedRequests::new();
        for id in 0..2000 {
            finished.lost(id, Duration::from_secs(1));
        }
        assert_eq!((finished.total(), finished.answered()), (2000, 0));
        let latest = finished.latest(usize::MAX);
        assert_eq!((latest.len(), latest[0].id, latest[KEPT - 1].id), (KEPT, 1999, 2000 - KEPT as u64));
        let latency = finished.latency(Instant::now());
        assert_eq!(latency, Latency { requests: KEPT, ..Latency::default() }, "what was lost has no latency");
        assert_eq!(finished.latency(Instant::now() + WINDOW).requests, 0);
    }
}
