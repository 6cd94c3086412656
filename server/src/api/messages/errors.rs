//! Errors in the form that Anthropic's clients expect.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

use crate::error::ApiError;
use crate::guard;

/// Anthropic's status for an overloaded server.
const OVERLOADED: u16 = 529;
/// Anthropic's name of the header with a request's id.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The inner fields of an error.
#[derive(Debug, Serialize)]
pub struct ErrorFields {
    r#type: &'static str,
    message: String,
}

impl From<&ApiError> for ErrorFields {
    fn from(error: &ApiError) -> Self {
        let kind = match error.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        ErrorFields { r#type: kind, message: error.message.clone() }
    }
}

/// Converts the errors of `/v1/messages` to Anthropic's form, whichever layer returned them. Also copies the request's id to
/// Anthropic's header.
pub async fn shape_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_own = path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let response = next.run(request).await;
    if !is_own {
        return response;
    }
    let error = response.extensions().get::<ApiError>().cloned();
    let (mut head, mut body) = response.into_parts();
    let id = head.headers.get(guard::REQUEST_ID).cloned();
    if let Some(error) = error {
        if error.status == StatusCode::SERVICE_UNAVAILABLE {
            head.status = StatusCode::from_u16(OVERLOADED).unwrap_or(error.status);
        }
        let id = id.as_ref().and_then(|id| id.to_str().ok());
        body = Body::from(json!({"type": "error", "error": ErrorFields::from(&error), "request_id": id}).to_string());
        head.headers.remove(header::CONTENT_LENGTH);
    }
    head.headers.extend(id.map(|id| (REQUEST_ID, id)));
    Response::from_parts(head, body)
}
