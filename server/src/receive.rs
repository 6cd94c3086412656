//! Receives a request's body within limits on size and time, and decompresses it.

use std::io::{self, ErrorKind, Write};

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use flate2::write::MultiGzDecoder;
use futures_util::StreamExt;

use crate::app::App;
use crate::error::ApiError;

/// Reads the whole body, which must be JSON.
///
/// # Errors
/// 413, 415 or 408 if the body is too large, not JSON or too slow. 400 if it breaks off or does not match its headers.
pub async fn receive(request: Request, app: &App) -> Result<Bytes, ApiError> {
    if !is_json(request.headers()) {
        let why = "the body must be JSON: send `Content-Type: application/json`";
        return Err(ApiError::malformed(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    let most = app.options.limits.max_body_bytes;
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(too_large(most));
    }
    let bytes = Bounded { bytes: Vec::with_capacity(length.unwrap_or(0)), most };
    let mut body = Body::new(request.headers(), bytes)?;
    let mut stream = request.into_body().into_data_stream();
    let read = async {
        let mut received = 0;
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|e| ApiError::invalid(format!("the body could not be read: {e}")))?;
            received += chunk.len();
            // The compressed size is bounded too, since a body may decompress to nothing and never end.
            if received > most {
                return Err(too_large(most));
            }
            body.push(&chunk).map_err(|error| refusal(&error, most))?;
        }
        body.finish().map(Bytes::from).map_err(|error| refusal(&error, most))
    };
    let late = || ApiError::malformed(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive");
    tokio::time::timeout(app.options.limits.read_timeout, read).await.map_err(|_| late())?
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

fn too_large(most: usize) -> ApiError {
    ApiError::malformed(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {most} bytes"))
}

fn refusal(error: &io::Error, most: usize) -> ApiError {
    match error.kind() {
        ErrorKind::FileTooLarge => too_large(most),
        _ => ApiError::invalid("the body is not gzip, as its `Content-Encoding` says it is"),
    }
}

/// The part of a body received so far.
enum Body {
    Plain(Bounded),
    Gzip(Box<MultiGzDecoder<Bounded>>),
}

impl Body {
    /// Creates an empty body that stores its contents in `bytes`. `headers` name its encoding.
    fn new(headers: &HeaderMap, bytes: Bounded) -> Result<Self, ApiError> {
        let named: Vec<_> =
            headers.get_all(header::CONTENT_ENCODING).iter().map(|v| v.to_str().unwrap_or("?")).collect();
        match named.join(",").trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Body::Plain(bytes)),
            "gzip" | "x-gzip" => Ok(Body::Gzip(Box::new(MultiGzDecoder::new(bytes)))),
            other => {
                let why = format!("the body's encoding {other:?} is not supported: send it as it is, or as gzip");
                Err(ApiError::malformed(StatusCode::UNSUPPORTED_MEDIA_TYPE, why))
            }
        }
    }

    fn push(&mut self, chunk: &[u8]) -> io::Result<()> {
        match self {
            Body::Plain(bytes) => bytes.write_all(chunk),
            Body::Gzip(decoder) => decoder.write_all(chunk),
        }
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Body::Plain(bytes) => Ok(bytes.bytes),
            Body::Gzip(decoder) => Ok(decoder.finish()?.bytes),
        }
    }
}

/// A buffer that never exceeds `most` bytes.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for Bounded {
    fn write(&mut self, new: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + new.len() > self.most {
            return Err(ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(new);
        Ok(new.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
