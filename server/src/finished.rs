//! The most recently finished requests: how each ended and how long it took.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::Completion;
use engine::FinishReason;
use engine::RequestId;
use serde::Serialize;

/// Number of requests kept.
const KEPT: usize = 1024;
/// How long a finished request counts towards the latencies.
const WINDOW: Duration = Duration::from_secs(60);

/// The most recently finished requests. Clones share one log.
#[derive(Clone, Debug)]
pub struct FinishedRequests(Arc<Mutex<Log>>);

#[derive(Debug)]
struct Log {
    /// Number of requests since the start.
    total: u64,
    /// How many of them had no cancelled or failed output.
    answered: u64,
    /// The kept requests, the newest last.
    latest: VecDeque<(Instant, FinishedRequest)>,
}

/// A finished request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FinishedRequest {
    /// The engine's id of the request.
    pub id: RequestId,
    /// When it ended, in seconds since 1970.
    pub at: f64,
    /// Tokens of its prompt. `None` if the request was lost in a failed step.
    pub prompt_tokens: Option<usize>,
    /// Tokens of all its outputs.
    pub output_tokens: usize,
    /// Seconds from its arrival to its first token, if any.
    pub first_token: Option<f64>,
    /// Mean seconds per token after the first, if any.
    pub per_token: Option<f64>,
    /// Seconds from its arrival to its end.
    pub time: f64,
    /// How its outputs ended.
    pub ended: Ends,
}

/// The number of outputs of a request that ended for each reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ends {
    /// Ended by an end-of-text token or a stop string.
    #[serde(skip_serializing_if = "is_zero")]
    pub stop: usize,
    /// Ended at a limit: the requested tokens, the model's positions or the KV blocks.
    #[serde(skip_serializing_if = "is_zero")]
    pub length: usize,
    /// Ended because the request was cancelled.
    #[serde(skip_serializing_if = "is_zero")]
    pub abort: usize,
    /// Ended because a step failed. Such a request has no other data.
    #[serde(skip_serializing_if = "is_zero")]
    pub error: usize,
}

/// 95th percentiles, in seconds, of the latencies of the requests that finished in the last minute (up to the latest
/// 1,024). A percentile is `None` if no request has that latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Number of requests that finished in the last minute.
    pub requests: usize,
    /// From a request's arrival to its first token.
    pub first_token_p95: Option<f64>,
    /// Mean time per token of a request after its first token.
    pub per_token_p95: Option<f64>,
    /// From a request's arrival to its end. Cancelled and lost requests do not count.
    pub whole_p95: Option<f64>,
}

impl FinishedRequest {
    /// Whether no output of the request was cancelled or lost.
    fn is_answered(&self) -> bool {
        self.ended.abort + self.ended.error == 0
    }
}

impl Default for FinishedRequests {
    /// Creates an empty log and allocates its memory at once.
    fn default() -> Self {
        FinishedRequests(Arc::new(Mutex::new(Log { total: 0, answered: 0, latest: VecDeque::with_capacity(KEPT) })))
    }
}

impl FinishedRequests {
    /// Records a request that was answered or cancelled.
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

    /// Records a request that was lost in a failed step.
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

    /// Returns the number of requests since the start.
    pub fn total(&self) -> u64 {
        self.log().total
    }

    /// Returns the number of answered requests since the start: neither cancelled nor lost.
    pub fn answered(&self) -> u64 {
        self.log().answered
    }

    /// Returns the latest `most` requests, newest first.
    pub fn latest(&self, most: usize) -> Vec<FinishedRequest> {
        self.log().latest.iter().rev().take(most).map(|entry| entry.1).collect()
    }

    /// Returns the latencies of the minute before `now`.
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
        // No code that holds this lock can panic halfway through a change.
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

/// Seconds since the start of 1970.
pub fn seconds_since_1970() -> f64 {
    // A clock set before 1970 counts as 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Returns the smallest value that at least 95 % of the values do not exceed.
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
    fn the_oldest_are_dropped_but_still_counted() {
        let finished = FinishedRequests::default();
        for id in 0..2000 {
            finished.lost(id, Duration::from_secs(1));
        }
        assert_eq!((finished.total(), finished.answered()), (2000, 0));
        let latest = finished.latest(usize::MAX);
        assert_eq!((latest.len(), latest[0].id, latest[KEPT - 1].id), (KEPT, 1999, 2000 - KEPT as u64));
        let latency = finished.latency(Instant::now());
        assert_eq!(latency, Latency { requests: KEPT, ..Latency::default() }, "lost requests have no latency");
        assert_eq!(finished.latency(Instant::now() + WINDOW).requests, 0);
    }
}
