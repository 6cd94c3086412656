//! What `GET /debug/state` says: the engine's [`Snapshot`], and around it what the server knows.
//!
//! ```json
//! {
//!   "server": {
//!     "version": "0.1.0", "model": "opt-story-3m",
//!     "uptime": 3600.5,                 // seconds since the server was started
//!     "chat": true,                     // whether the model has a chat template
//!     "limits": {"max_queue": 1024, ..} // see `RequestLimits`; times in seconds
//!   },
//!   "counts": {"finished": 900, "failed": 0, "refused": 2, "invalid": 1, "aborted": 3}, // since the server was started
//!   "latency": {"requests": 42, "first_token_p95": 0.1, "per_token_p95": 0.006, "whole_p95": 1.2}, // of the last minute
//!   "finished": [                       // the last requests that ended, the latest first
//!     {"id": 7, "at": 1764000000.5,      // when it ended, in seconds since 1970
//!      "prompt_tokens": 9, "output_tokens": 80, "first_token": 0.1, "per_token": 0.006, "time": 0.5,
//!      "ended": {"stop": 1, "length": 1}} // how its outputs ended; also "abort" and "error"
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

/// A client that asks within this time of another gets the same.
const AGE: Duration = Duration::from_millis(50);
/// Finished requests that are shown.
const FINISHED: usize = 50;

/// The server and its engine at one moment; see the module.
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

/// Requests since the server was started.
#[derive(Debug, Serialize)]
struct Counts {
    /// That the engine finished, in whatever way.
    finished: u64,
    /// Answered with an error that is not the client's fault.
    failed: u64,
    /// Refused for lack of room.
    refused: u64,
    /// Refused for what they are.
    invalid: u64,
    /// Cancelled before their end.
    aborted: u64,
}

/// The state of server and engine as JSON. The engine is asked a few times a second at most, so that pages that are
/// open do not slow requests down.
///
/// # Errors
/// 503 if there is no engine.
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
    let none = || ApiError::unavailable("there is no engine at present");
    let snapshot = app.worker.snapshot().await.ok_or_else(none)?;
    let json = serde_json::to_vec(&Overview::new(app, &snapshot)).map_err(|e| ApiError::internal(e.to_string()))?;
    let json = Bytes::from(json);
    *last = Some((tokio::time::Instant::now(), json.clone()));
    Ok(json)
}

impl<'a> Overview<'a> {
    /// Of `app`, whose engine's state is `snapshot`.
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
