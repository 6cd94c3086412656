//! The page at `/`. It shows the server's activity, its KV memory and its requests, and has a form to try a prompt or a
//! chat.
//!
//! Its files are in `server/page` and are compiled into the binary. The page loads everything from this server, and its
//! content security policy forbids any other source. Its data comes from `GET /debug/state` and `GET /debug/history`.

use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

const INDEX: &str = include_str!("../page/index.html");
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
/// The files served under `/page/`: name, content type, text.
const FILES: [(&str, &str, &str); 29] = [
    ("favicon.svg", "image/svg+xml", include_str!("../page/favicon.svg")),
    ("parts.css", CSS, include_str!("../page/parts.css")),
    ("style.css", CSS, include_str!("../page/style.css")),
    ("api.js", JAVASCRIPT, include_str!("../page/api.js")),
    ("asking.js", JAVASCRIPT, include_str!("../page/asking.js")),
    ("cells.js", JAVASCRIPT, include_str!("../page/cells.js")),
    ("chat.js", JAVASCRIPT, include_str!("../page/chat.js")),
    ("colours.js", JAVASCRIPT, include_str!("../page/colours.js")),
    ("drawing.js", JAVASCRIPT, include_str!("../page/drawing.js")),
    ("element.js", JAVASCRIPT, include_str!("../page/element.js")),
    ("events.js", JAVASCRIPT, include_str!("../page/events.js")),
    ("figures.js", JAVASCRIPT, include_str!("../page/figures.js")),
    ("finished.js", JAVASCRIPT, include_str!("../page/finished.js")),
    ("format.js", JAVASCRIPT, include_str!("../page/format.js")),
    ("history.js", JAVASCRIPT, include_str!("../page/history.js")),
    ("legend.js", JAVASCRIPT, include_str!("../page/legend.js")),
    ("main.js", JAVASCRIPT, include_str!("../page/main.js")),
    ("memory.js", JAVASCRIPT, include_str!("../page/memory.js")),
    ("overview.js", JAVASCRIPT, include_str!("../page/overview.js")),
    ("plot.js", JAVASCRIPT, include_str!("../page/plot.js")),
    ("plots.js", JAVASCRIPT, include_str!("../page/plots.js")),
    ("pointing.js", JAVASCRIPT, include_str!("../page/pointing.js")),
    ("prompt.js", JAVASCRIPT, include_str!("../page/prompt.js")),
    ("refused.js", JAVASCRIPT, include_str!("../page/refused.js")),
    ("requests.js", JAVASCRIPT, include_str!("../page/requests.js")),
    ("row.js", JAVASCRIPT, include_str!("../page/row.js")),
    ("server.js", JAVASCRIPT, include_str!("../page/server.js")),
    ("state.js", JAVASCRIPT, include_str!("../page/state.js")),
    ("tabs.js", JAVASCRIPT, include_str!("../page/tabs.js")),
];
/// The content security policy. The page may load and run only this server's files, and other pages may not embed it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /`.
pub async fn index() -> Response {
    answer("text/html; charset=utf-8", INDEX)
}

/// `GET /page/{file}`.
///
/// # Errors
/// 404 if the page does not have this file.
pub async fn file(Path(name): Path<String>) -> Result<Response, ApiError> {
    let file = FILES.iter().find(|file| file.0 == name);
    let (_, kind, text) = file.ok_or_else(|| ApiError::not_found("the page does not have this file"))?;
    Ok(answer(kind, text))
}

fn answer(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // Browsers must revalidate each time, because another version of the server has another page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
