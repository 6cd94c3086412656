//! The answer to `GET /debug/state`: the engine's [`Snapshot`] with the server's own data.
//!
//! ```json
//! {
//!   "server": {
//!     "version": "0.1.0", "model": "opt-story-3m",
//!     "uptime": 3600.5,                 // seconds since the server was started
//!     "chat": true,                     // whether the model has a chat template
//!     "limits": {"max_queue": 1024, ..} // see `RequestLimits`, times in seconds
//!   },
//!   "counts": {"finished": 900, "failed": 0, "refused": 2, "invalid": 1, "aborted": 3}, // since the server was started
//!   "latency": {"requests": 42, "first_token_p95": 0.1, "per_token_p95": 0.006, "whole_p95": 1.2}, // of the last minute
//!   "finished": [                       // the latest finished requests, newest first
//!     {"id": 7, "at": 1764000000.5,      // when it ended, in seconds since 1970
//!      "prompt_tokens": 9, "output_tokens": 80, "first_token": 0.1, "per_token": 0.006, "time": 0.5,
//!      "ended": {"stop": 1, "length": 1}} // how its outputs ended: also "abort" and "error"
//!   ],
//!   "refused": [                        // the last refusals, the latest first, with equal ones counted
//!     {"at": 1764000000.5, "times": 3, "status": 400, "endpoint": "/v1/completions", "reason": "n must be .."}
//!   ],
//!   ..                                  // the fields of `Snapshot`
//! }
//! ```

use std::time::{Duration, Instant};

use axum::body::Bytes;
use serde::Serialize;

use crate::app::App;
use crate::error::ApiError;
use crate::finished::{FinishedRequest, Latency};
use crate::options::RequestLimits;
use crate::refused::RefusedRequest;
use crate::worker::{Snapshot, Status};

/// An overview up to this old is sent again instead of a new one.
const AGE: Duration = Duration::from_millis(50);
/// Number of finished requests shown.
const FINISHED: usize = 50;

/// The server and its engine at one moment. The module's documentation shows the fields.
#[derive(Debug, Serialize)]
struct Overview<'a> {
    server: Server<'a>,
    counts: Counts,
    latency: Latency,
    finished: Vec<FinishedRequest>,
    refused: Vec<RefusedRequest>,
    #[serde(flatten)]
    snapshot: &'a Snapshot,
}

#[derive(Debug, Serialize)]
struct Server<'a> {
    version: &'static str,
    model: &'a str,
    uptime: f64,
    chat: bool,
    limits: &'a RequestLimits,
}

/// Counts of requests since the server was started.
#[derive(Debug, Serialize)]
struct Counts {
    /// Finished by the engine for any reason.
    finished: u64,
    /// Answered with a server error.
    failed: u64,
    /// Refused for lack of capacity.
    refused: u64,
    /// Refused because the request is invalid.
    invalid: u64,
    /// Cancelled before they ended.
    aborted: u64,
}

/// Returns the state of server and engine as JSON. Answers are cached for a short time, so that open pages do not slow
/// requests down.
///
/// # Errors
/// 503 if the engine is not running.
pub async fn overview(app: &App) -> Result<Bytes, ApiError> {
    let mut last = app.overview.lock().await;
    if let Some((made, json)) = &*last
        && made.elapsed() < AGE
    {
        return Ok(json.clone());
    }
    if *app.worker.status().borrow() == Status::Loading {
        return Err(ApiError::unavailable("the model is being loaded"));
    }
    let none = || ApiError::unavailable("the engine is not running");
    let snapshot = app.worker.snapshot().await.ok_or_else(none)?;
    let json = serde_json::to_vec(&Overview::new(app, &snapshot)).map_err(|e| ApiError::internal(e.to_string()))?;
    let json = Bytes::from(json);
    *last = Some((tokio::time::Instant::now(), json.clone()));
    Ok(json)
}

impl<'a> Overview<'a> {
    /// Combines the state of `app` with the engine's `snapshot`.
    fn new(app: &'a App, snapshot: &'a Snapshot) -> Self {
        let metrics = &app.metrics;
        Overview {
            server: Server {
                version: env!("CARGO_PKG_VERSION"),
                model: &app.model,
                uptime: app.history.uptime().as_secs_f64(),
                chat: app.template.is_some(),
                limits: &app.options.limits,
            },
            counts: Counts {
                finished: metrics.finished.total(),
                failed: metrics.failed.get(),
                refused: metrics.refused.get(),
                invalid: metrics.invalid.get(),
                aborted: metrics.aborted.get(),
            },
            latency: metrics.finished.latency(Instant::now()),
            finished: metrics.finished.latest(FINISHED),
            refused: app.refused.latest(),
            snapshot,
        }
    }
}
