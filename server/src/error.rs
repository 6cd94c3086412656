//! Errors in the form that OpenAI's clients expect: a status, and a body with a message, a type and the field at fault.

use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::tools::error::Refusal;
use serde::Serialize;

use crate::json::BodyError;
use crate::worker::Failure;

/// Maximum characters of a client's text that an error message repeats.
const MAX_REPEATED: usize = 100;

/// A refused or failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The status of the response.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// The message, one sentence.
    pub message: String,
    /// The field of the request at fault.
    pub param: Option<String>,
    /// OpenAI's `code`.
    pub code: Option<&'static str>,
}

/// The reason of a refusal, as an extension of the response.
#[derive(Clone, Debug)]
pub struct Reason(pub String);

/// The body of every error, also within a stream: `{"error": {..}}`.
#[derive(Debug, Serialize)]
pub struct ErrorBody {
    error: ErrorFields,
}

#[derive(Debug, Serialize)]
struct ErrorFields {
    message: String,
    r#type: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, kind, message: message.into(), param: None, code: None }
    }

    /// 400 about the request as a whole.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 about one field.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError { param: Some(param.into()), ..Self::invalid(message) }
    }

    /// 400: the request needs more tokens than fit.
    pub fn context_length(param: &str, message: String) -> Self {
        ApiError { code: Some("context_length_exceeded"), ..Self::field(param, message) }
    }

    /// 400: the prompt and its output do not fit. `most` is the limit in words ("512 tokens"), `prompt` the prompt's
    /// length, and `asked` the requested output tokens. If `asked` is `None`, the prompt leaves no space for a single
    /// token.
    pub fn no_room(param: &str, prompt: usize, asked: Option<usize>, most: &str) -> Self {
        Self::context_length(param, no_room(prompt, asked, most))
    }

    /// 401.
    pub fn unauthorized() -> Self {
        let message = "the API key is missing or wrong: send it as `Authorization: Bearer <key>` or `x-api-key: <key>`";
        ApiError {
            code: Some("invalid_api_key"),
            ..Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message)
        }
    }

    /// 404: the request names a model that is not served.
    pub fn model_not_found(model: &str, served: &str) -> Self {
        ApiError {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..Self::not_found(format!("the model {:?} does not exist: this server has {served:?}", cut(model)))
        }
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// Any other 4xx error about the form of the request.
    pub fn malformed(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// 429: more requests are in progress than the server allows.
    pub fn too_many_requests() -> Self {
        ApiError {
            code: Some("rate_limit_exceeded"),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "requests",
                "the server has reached its limit of requests in progress",
            )
        }
    }

    /// 503.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", message)
    }

    /// 504: the request took longer than the server allows.
    pub fn timeout() -> Self {
        let message = "the request took longer than the server allows";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message)
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Returns the JSON body.
    pub fn body(self) -> ErrorBody {
        let ApiError { kind, message, param, code, .. } = self;
        ErrorBody { error: ErrorFields { message, r#type: kind, param, code } }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status;
        let (reason, error) = (Reason(self.message.clone()), self.clone());
        let mut response = (status, Json(self.body())).into_response();
        response.extensions_mut().insert(reason);
        response.extensions_mut().insert(error);
        let headers = response.headers_mut();
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // The rest of the body is not read, so the connection cannot be reused.
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// Converts the engine's refusal of a request. Fields keep their names, except that `beam_width` is `best_of` in the
/// API.
impl From<Refusal> for ApiError {
    fn from(Refusal { field, why }: Refusal) -> Self {
        let known = |name: &str| name.replace("beam_width", "best_of");
        ApiError { param: field.map(known), ..Self::invalid(known(&why)) }
    }
}

impl From<BodyError> for ApiError {
    fn from(problem: BodyError) -> Self {
        match problem.field() {
            Some(field) => Self::field(field, problem.to_string()),
            None => Self::invalid(problem.to_string()),
        }
    }
}

impl From<engine::Error> for ApiError {
    fn from(error: engine::Error) -> Self {
        match error {
            engine::Error::Request(refusal) => refusal.into(),
            other => Self::invalid(other.to_string()),
        }
    }
}

/// Writes a sentence for the client.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(refusal) => refusal.fmt(f),
            Failure::NoRoom { prompt, asked, most, .. } => {
                f.write_str(&no_room(*prompt, *asked, &format!("{most} tokens with a KV cache of this size")))
            }
            Failure::QueueFull => f.write_str("too many requests are waiting; try again later"),
            Failure::Engine => f.write_str("the engine failed while it computed this request"),
            Failure::Stopped => f.write_str("the server is stopping"),
            Failure::Dropped => f.write_str("the request was cancelled because its answer was not read in time"),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let sentence = failure.to_string();
        match failure {
            Failure::Refused(refusal) => refusal.into(),
            Failure::NoRoom { param, .. } => Self::context_length(param, sentence),
            Failure::Engine => Self::internal(sentence),
            Failure::QueueFull | Failure::Stopped | Failure::Dropped => Self::unavailable(sentence),
        }
    }
}

/// Returns the message that a prompt of `prompt` tokens and `asked` more exceed the limit `most`, given in words.
fn no_room(prompt: usize, asked: Option<usize>, most: &str) -> String {
    let has = match asked {
        None => format!("the prompt alone has {prompt}"),
        Some(asked) => format!("the prompt has {prompt} and {asked} more were asked for"),
    };
    format!("this model's maximum context length is {most}, but {has}")
}

/// Returns the beginning of a client's text, short enough to be repeated in an error message.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_REPEATED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns a 400 error about `field` unless `ok`.
pub fn check(ok: bool, field: &str, why: impl FnOnce() -> String) -> Result<(), ApiError> {
    if ok { Ok(()) } else { Err(ApiError::field(field, why())) }
}

/// Returns a 400 error unless `ok`: `field` is not supported, and may only be `what` or null.
pub fn only(ok: bool, field: &str, what: &str) -> Result<(), ApiError> {
    check(ok, field, || format!("{field} is not supported; it may only be {what} or null"))
}

/// Returns a 400 error about a place in the request.
pub fn refused<T>(place: &str, why: &str) -> Result<T, ApiError> {
    Err(ApiError::field(place, format!("{place} {why}")))
}
