//! Endpoints for operators, to observe the engine and cancel its requests.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::RequestId;
use serde::Deserialize;

use crate::app::App;
use crate::error::ApiError;
use crate::overview::overview;

/// Forbids caching, for answers that are valid only at this moment.
const NO_STORE: (header::HeaderName, &str) = (header::CACHE_CONTROL, "no-store");

/// The query of `GET /debug/history`.
#[derive(Debug, Deserialize)]
pub struct Since {
    /// Only return samples later than this time, in seconds since the server was started.
    #[serde(default)]
    after: f64,
}

/// `GET /debug/state`: returns the state of the server, the KV memory and the queues. Module `overview` documents its
/// form.
pub async fn state(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let json = overview(&app).await?;
    Ok(([(header::CONTENT_TYPE, "application/json"), NO_STORE], json).into_response())
}

/// `GET /debug/history`: returns one sample per second. Module `history` documents its fields.
pub async fn history(
    State(app): State<Arc<App>>,
    since: Result<Query<Since>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(since) = since.map_err(|_| ApiError::field("after", "after must be a number of seconds"))?;
    Ok(([NO_STORE], Json(app.history.since(since.after))).into_response())
}

/// `DELETE /debug/requests/{id}`: cancels an engine request, by its id in `/debug/state`. Its client gets the output so
/// far with the finish reason `abort`. Other prompts of the same HTTP request continue.
pub async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    let none = || ApiError::not_found(format!("no request {id:?} is in progress"));
    let id: RequestId = id.parse().map_err(|_| none())?;
    match app.worker.cancel(id).await {
        Some(true) => Ok(StatusCode::NO_CONTENT),
        Some(false) => Err(none()),
        None => Err(ApiError::unavailable("the engine is not running")),
    }
}
