//! The routes, and the middleware layers that every request passes.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use subtle::ConstantTimeEq;
use tower::util::MapRequest;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, RequestId, SetRequestIdLayer};

use crate::api::{adapters, chat, completions, debug, embeddings, messages, operate, responses, tokenize};
use crate::app::App;
use crate::error::{ApiError, Reason};
use crate::guard::{Guard, REQUEST_ID, check_host, check_origin};
use crate::page;

/// The header in which Anthropic's clients send the key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Maximum bytes of a client's own request id. Longer ids are replaced.
const MAX_REQUEST_ID: usize = 128;
/// Maximum number of headers in a request.
const MAX_HEADERS: usize = 64;
/// Maximum bytes of all headers of a request together.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// The paths that the page, Prometheus and load balancers poll.
const POLLED: [&str; 5] = ["/debug/state", "/debug/history", "/metrics", "/health", "/ready"];

/// Creates the server's routes and layers.
pub fn router(app: Arc<App>, guard: Guard) -> Router {
    let cors = guard.cors();
    let guard = Arc::new(guard);
    let guarded = Router::new()
        .route("/v1/completions", post(completions::create))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/models", get(operate::models))
        .route("/v1/models/{*model}", get(operate::model))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/debug/state", get(debug::state))
        .route("/debug/history", get(debug::history))
        .route("/debug/requests/{id}", delete(debug::cancel))
        .route_layer(from_fn_with_state(app.clone(), authorize))
        .route_layer(from_fn_with_state(app.clone(), count));
    let open = Router::new()
        .route("/", get(page::index))
        .route("/page/{file}", get(page::file))
        .route("/health", get(operate::health))
        .route("/ready", get(operate::ready))
        .route("/version", get(operate::version))
        .route("/metrics", get(operate::metrics))
        .route("/openapi.json", get(operate::openapi));
    // The layer added last sees a request first.
    let all = guarded
        .merge(open)
        .fallback(operate::path_not_found)
        .method_not_allowed_fallback(operate::method_not_allowed)
        .with_state(app)
        .layer(CatchPanicLayer::custom(|_| ApiError::internal("internal server error").into_response()))
        .layer(from_fn_with_state(guard.clone(), check_origin))
        .layer(cors)
        .layer(from_fn_with_state(guard, check_host))
        .layer(from_fn(log))
        .layer(PropagateRequestIdLayer::new(REQUEST_ID))
        .layer(SetRequestIdLayer::new(REQUEST_ID, MakeRequestUuid))
        .layer(from_fn(check_head))
        .layer(from_fn(messages::shape_errors));
    // Layers of a router run after route matching, so the path is normalised outside the router.
    Router::new().fallback_service(MapRequest::new(all, with_plain_path))
}

/// Normalises a request's path: removes slashes at its end and merges repeated slashes.
fn with_plain_path(mut request: Request) -> Request {
    let uri = request.uri();
    let path = uri.path();
    if path.contains("//") || (path.len() > 1 && path.ends_with('/')) {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut parts_of_uri = uri.clone().into_parts();
        parts_of_uri.path_and_query = PathAndQuery::try_from(format!("/{}{query}", parts.join("/"))).ok();
        if let Ok(plain) = Uri::from_parts(parts_of_uri) {
            *request.uri_mut() = plain;
        }
    }
    request
}

/// Refuses requests without the right API key, which may be in either header. The comparison takes constant time for a
/// key of given length.
async fn authorize(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    if let Some(key) = &app.options.api_key {
        let headers = request.headers();
        let token = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let sent = [token, headers.get(API_KEY).map(HeaderValue::as_bytes)];
        if !sent.iter().flatten().any(|sent| bool::from(sent.ct_eq(key.as_bytes()))) {
            return Err(ApiError::unauthorized());
        }
    }
    Ok(next.run(request).await)
}

/// Counts error responses, and records why requests were refused.
async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let endpoint = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let status = response.status();
    app.metrics.error(status);
    if let (true, Some(reason)) = (status.is_client_error(), response.extensions().get::<Reason>()) {
        app.refused.push(endpoint.as_ref().map_or("?", MatchedPath::as_str), status, reason);
    }
    response
}

/// Returns the key after the scheme `Bearer`. The scheme is case-insensitive.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"Bearer ";
    let (scheme, key) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(key.trim_ascii_start())
}

/// Refuses requests with too many or too large headers, and drops request ids that would flood the log.
async fn check_head(mut request: Request, next: Next) -> Result<Response, ApiError> {
    let headers = request.headers_mut();
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        let why = format!("there may be at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together");
        return Err(ApiError::malformed(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why));
    }
    if headers.get(REQUEST_ID).is_some_and(|id| id.len() > MAX_REQUEST_ID || id.to_str().is_err()) {
        headers.remove(REQUEST_ID);
    }
    Ok(next.run(request).await)
}

/// Logs every request when its response begins. Successful requests to polled paths are logged at debug level.
async fn log(request: Request, next: Next) -> Response {
    let start = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let id = request.extensions().get::<RequestId>().cloned();
    let response = next.run(request).await;
    let id = id.as_ref().and_then(|id| id.header_value().to_str().ok()).unwrap_or_default();
    let (status, seconds) = (response.status().as_u16(), start.elapsed().as_secs_f64());
    if method == Method::GET && POLLED.contains(&path.as_str()) && response.status().is_success() {
        tracing::debug!(%method, path, status, seconds, id, "request");
    } else {
        tracing::info!(%method, path, status, seconds, id, "request");
    }
    response
}
