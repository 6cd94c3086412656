//! The page at `/`: the KV memory, the requests and the rates as they are, and a box to try a prompt.
//!
//! Its files are in `cli/serve/page`, and in the binary. It asks for nothing that is not served here, and may not: its
//! content security policy forbids it. What it shows comes from `GET /debug/state` and `GET /metrics`.

use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

const INDEX: &str = include_str!("../page/index.html");
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
/// What is served under `/page/`: name, content type, text.
const FILES: [(&str, &str, &str); 9] = [
    ("style.css", "text/css; charset=utf-8", include_str!("../page/style.css")),
    ("api.js", JAVASCRIPT, include_str!("../page/api.js")),
    ("drawing.js", JAVASCRIPT, include_str!("../page/drawing.js")),
    ("main.js", JAVASCRIPT, include_str!("../page/main.js")),
    ("memory.js", JAVASCRIPT, include_str!("../page/memory.js")),
    ("plots.js", JAVASCRIPT, include_str!("../page/plots.js")),
    ("prompt.js", JAVASCRIPT, include_str!("../page/prompt.js")),
    ("requests.js", JAVASCRIPT, include_str!("../page/requests.js")),
    ("state.js", JAVASCRIPT, include_str!("../page/state.js")),
];
/// The page may run and show what this server has, and nothing else; nobody may show the page inside another.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /`.
pub async fn index() -> Response {
    answer("text/html; charset=utf-8", INDEX)
}

/// `GET /page/{file}`.
///
/// # Errors
/// 404 if the page has no such file.
pub async fn file(Path(name): Path<String>) -> Result<Response, ApiError> {
    let file = FILES.iter().find(|file| file.0 == name);
    let (_, kind, text) = file.ok_or_else(|| ApiError::not_found("the page has no such file"))?;
    Ok(answer(kind, text))
}

fn answer(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // Another version of the server has another page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
