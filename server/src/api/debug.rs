//! What operators see of the engine, and can do to its requests.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::group::RequestId;
use serde::Deserialize;

use crate::app::App;
use crate::error::ApiError;
use crate::overview::overview;

/// Marks an answer that is true at this moment only, so that it is not cached.
const NO_STORE: (header::HeaderName, &str) = (header::CACHE_CONTROL, "no-store");

/// Which samples are asked for.
#[derive(Debug, Deserialize)]
pub struct Since {
    /// Those later than this time, in seconds since the server was started.
    #[serde(default)]
    after: f64,
}

/// `GET /debug/state`: the server, the KV memory and the queues; for its form see the source of `overview`.
pub async fn state(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let json = overview(&app).await?;
    Ok(([(header::CONTENT_TYPE, "application/json"), NO_STORE], json).into_response())
}

/// `GET /debug/history`: a sample for each of the last seconds; for its form see the source of `history`.
pub async fn history(
    State(app): State<Arc<App>>,
    since: Result<Query<Since>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(since) = since.map_err(|_| ApiError::field("after", "after must be a number of seconds"))?;
    Ok(([NO_STORE], Json(app.history.since(since.after))).into_response())
}

/// `DELETE /debug/requests/{id}`: cancels a request of the engine, by its id in `/debug/state`. A client that waits for it gets
/// what there is of it, with the reason `abort`; other prompts of the same HTTP request go on.
pub async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    let none = || ApiError::not_found(format!("no request {id:?} is in progress"));
    let id: RequestId = id.parse().map_err(|_| none())?;
    match app.worker.cancel(id).await {
        Some(true) => Ok(StatusCode::NO_CONTENT),
        Some(false) => Err(none()),
        None => Err(ApiError::unavailable("there is no engine at present")),
    }
}
