//! Errors as OpenAI's clients expect them: a status, and a body that says what, of which kind and where.

use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::error::Refusal;
use serde::Serialize;

use crate::worker::Failure;

/// Characters of what a client sent that an answer repeats.
const MAX_REPEATED: usize = 100;

/// A request that gets no answer but a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The status of the response.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// One sentence.
    pub message: String,
    /// The field of the request that is at fault.
    pub param: Option<String>,
    /// OpenAI's `code`.
    pub code: Option<&'static str>,
}

/// Why a request was refused, as an extension of the response, for those who look at answers on their way out.
#[derive(Clone, Debug)]
pub struct Reason(pub String);

/// `{"error": {..}}`, the body of every error, also within a stream.
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

    /// 400: more tokens than there is room for.
    pub fn context_length(param: &str, message: String) -> Self {
        ApiError { code: Some("context_length_exceeded"), ..Self::field(param, message) }
    }

    /// 400: there is room for `most`, tokens in words, which a prompt of so many does not leave for the tokens that
    /// were `asked` for, or not for a single one where the request does not say how many.
    pub fn no_room(param: &str, prompt: usize, asked: Option<usize>, most: &str) -> Self {
        Self::context_length(param, no_room(prompt, asked, most))
    }

    /// 401.
    pub fn unauthorized() -> Self {
        let message = "the API key is missing or wrong: send it as `Authorization: Bearer <key>`";
        ApiError {
            code: Some("invalid_api_key"),
            ..Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message)
        }
    }

    /// 404: a model that is not the one that is served.
    pub fn model_not_found(model: &str, served: &str) -> Self {
        ApiError {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..Self::not_found(format!("the model {:?} does not exist; this server has {served:?}", cut(model)))
        }
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// Any other 4xx about the form of the request.
    pub fn malformed(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// 429: more requests at a time than the server takes.
    pub fn too_many_requests() -> Self {
        ApiError {
            code: Some("rate_limit_exceeded"),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "requests", "the server has as many requests as it takes")
        }
    }

    /// 503.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", message)
    }

    /// 504: the request took longer than requests may.
    pub fn timeout() -> Self {
        let message = "the request took longer than the server allows";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message)
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The body.
    pub fn body(self) -> ErrorBody {
        let ApiError { kind, message, param, code, .. } = self;
        ErrorBody { error: ErrorFields { message, r#type: kind, param, code } }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status;
        let reason = Reason(self.message.clone());
        let mut response = (status, Json(self.body())).into_response();
        response.extensions_mut().insert(reason);
        let headers = response.headers_mut();
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // Of the body, the rest is not read.
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

/// The engine's refusal of a request. Its fields have the names that clients know, but for the number of beams.
impl From<Refusal> for ApiError {
    fn from(Refusal { field, why }: Refusal) -> Self {
        let known = |name: &str| name.replace("beam_width", "best_of");
        ApiError { param: field.map(known), ..Self::invalid(known(&why)) }
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

/// A sentence for the client.
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
            Failure::Dropped => f.write_str("the request was given up, since its answer was not read in time"),
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

/// There is room for `most`, tokens in words, but not for a prompt of so many and what was `asked` for after it.
fn no_room(prompt: usize, asked: Option<usize>, most: &str) -> String {
    let has = match asked {
        None => format!("the prompt alone has {prompt}"),
        Some(asked) => format!("the prompt has {prompt} and {asked} more were asked for"),
    };
    format!("this model's maximum context length is {most}, but {has}")
}

/// The beginning of a text that a client sent, as long as an answer may repeat it.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_REPEATED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// 400 about `field` unless `ok`.
pub fn check(ok: bool, field: &str, why: impl FnOnce() -> String) -> Result<(), ApiError> {
    if ok { Ok(()) } else { Err(ApiError::field(field, why())) }
}
