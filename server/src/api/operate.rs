//! Endpoints that describe the server itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::exposition::Exposition;
use crate::worker::Status;

/// The server's description of its own API, OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("../openapi.json");

/// `GET /health`: 200 unless the engine has failed for good.
pub async fn health(State(app): State<Arc<App>>) -> Result<(), ApiError> {
    match &*app.worker.status().borrow() {
        Status::Broken(why) => Err(ApiError::unavailable(format!("the model cannot be loaded: {why}"))),
        _ => Ok(()),
    }
}

/// `GET /ready`: 200 while the server accepts requests.
pub async fn ready(State(app): State<Arc<App>>) -> Result<(), ApiError> {
    app.ready()
}

/// `GET /version`.
pub async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// `GET /metrics`, in the format that the client prefers.
pub async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let text = app.metrics.text().map_err(|e| ApiError::internal(e.to_string()))?;
    let format = Exposition::wanted(headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()));
    let headers = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    Ok((headers, format.of(text)).into_response())
}

/// `GET /v1/models`: the model, then its adapters.
pub async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let base = model_card(&app, &app.model, app.created, None);
    let adapters = app.adapters.list();
    let adapters = adapters.iter().map(|(name, loaded)| model_card(&app, name, *loaded, Some(&app.model)));
    let all: Vec<Value> = [base].into_iter().chain(adapters).collect();
    Json(json!({"object": "list", "data": all}))
}

/// `GET /v1/models/{model}`.
pub async fn model(State(app): State<Arc<App>>, Path(model): Path<String>) -> Result<Json<Value>, ApiError> {
    if model == app.model {
        return Ok(Json(model_card(&app, &model, app.created, None)));
    }
    match app.adapters.list().into_iter().find(|(name, _)| *name == model) {
        Some((name, loaded)) => Ok(Json(model_card(&app, &name, loaded, Some(&app.model)))),
        None => Err(ApiError::model_not_found(&model, &app.model)),
    }
}

/// `GET /openapi.json`.
pub async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

/// Answers 404 for an unknown path.
pub async fn path_not_found() -> ApiError {
    ApiError::not_found("this path does not exist")
}

/// Answers 405 for a method that the path does not support.
pub async fn method_not_allowed() -> ApiError {
    ApiError::malformed(axum::http::StatusCode::METHOD_NOT_ALLOWED, "this path does not support this method")
}

/// Describes the model, or one of its adapters, whose `parent` is the model.
fn model_card(app: &App, id: &str, created: u64, parent: Option<&str>) -> Value {
    let mut card = json!({
        "id": id,
        "object": "model",
        "created": created,
        "owned_by": "quire",
        "max_model_len": app.context_len(),
    });
    if let Some(parent) = parent {
        card["parent"] = parent.into();
    }
    card
}
