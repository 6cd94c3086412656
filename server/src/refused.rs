//! The requests that were refused recently, with the reasons.
//!
//! Entries contain only text from the server's answers and no part of a request's body. The number of entries and the
//! length of each are limited.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use serde::Serialize;

use crate::error::Reason;
use crate::finished::seconds_since_1970;

/// Maximum number of entries.
const MAX_ENTRIES: usize = 50;
/// Maximum characters of a reason.
const MAX_REASON: usize = 300;

/// The requests that were refused recently. Refusals of the same kind share an entry.
#[derive(Debug, Default)]
pub struct RefusedRequests(Mutex<VecDeque<RefusedRequest>>);

/// Requests that were refused for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusedRequest {
    /// When the latest of them was refused, in seconds since 1970.
    pub at: f64,
    /// The number of these requests.
    pub times: u64,
    /// The status of the answers.
    pub status: u16,
    /// The endpoint.
    pub endpoint: String,
    /// The reason, as the answers gave it.
    pub reason: String,
}

impl RefusedRequests {
    /// Records that a request to `endpoint` was refused.
    pub fn push(&self, endpoint: &str, status: StatusCode, Reason(reason): &Reason) {
        let reason = match reason.char_indices().nth(MAX_REASON) {
            Some((end, _)) => format!("{}...", &reason[..end]),
            None => reason.clone(),
        };
        let (endpoint, status) = (endpoint.to_owned(), status.as_u16());
        let mut refused = RefusedRequest { at: seconds_since_1970(), times: 1, status, endpoint, reason };
        let mut entries = self.entries();
        let same = |r: &RefusedRequest| {
            (r.status, &r.endpoint, &r.reason) == (refused.status, &refused.endpoint, &refused.reason)
        };
        if let Some(before) = entries.iter().position(same).and_then(|at| entries.remove(at)) {
            refused.times += before.times;
        }
        entries.truncate(MAX_ENTRIES - 1);
        entries.push_front(refused);
    }

    /// Returns all entries, the latest first.
    pub fn latest(&self) -> Vec<RefusedRequest> {
        self.entries().iter().cloned().collect()
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<RefusedRequest>> {
        // A panic while the lock is held leaves the list valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(refused: &RefusedRequests, endpoint: &str, reason: &str) {
        refused.push(endpoint, StatusCode::BAD_REQUEST, &Reason(reason.to_owned()));
    }

    #[test]
    fn the_same_refusal_is_counted_and_comes_first() {
        let refused = RefusedRequests::default();
        for reason in ["a", "b", "a"] {
            push(&refused, "/x", reason);
        }
        push(&refused, "/y", "a");
        let found: Vec<_> = refused.latest().into_iter().map(|r| (r.endpoint, r.reason, r.times)).collect();
        let wanted = [("/y", "a", 1), ("/x", "a", 2), ("/x", "b", 1)];
        assert_eq!(found, wanted.map(|(endpoint, reason, times)| (endpoint.into(), reason.into(), times)));
    }

    #[test]
    fn entries_and_their_lengths_are_bounded() {
        let refused = RefusedRequests::default();
        for i in 0..1000 {
            push(&refused, "/x", &format!("{i}{}", "ü".repeat(10_000)));
        }
        let latest = refused.latest();
        assert_eq!(latest.len(), MAX_ENTRIES);
        assert!(latest[0].reason.starts_with("999ü") && latest[MAX_ENTRIES - 1].reason.starts_with("950ü"));
        assert!(latest.iter().all(|r| r.reason.chars().count() == MAX_REASON + 3 && r.reason.ends_with("...")));
    }
}
