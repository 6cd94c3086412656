//! Protection against web pages that are open in a browser on this machine, because a page can make the browser send
//! requests.
//!
//! By DNS rebinding, a page can make its own domain resolve to this machine. The browser then treats the server as part
//! of the page's site, so the page can read and do everything. A server that listens only on loopback addresses
//! therefore checks the `Host` of requests.
//!
//! A page may also send requests to any server without being able to read the answers. Requests that change state are
//! therefore refused if they come from a page of another origin, unless the operator allows that origin.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::error::ApiError;
use crate::options::ServeOptions;

/// The header with a request's id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Matches every host name or every origin.
const ANY: &str = "*";
/// How long browsers may cache the CORS rules.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// The host names and origins that requests may have.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Allowed host names in addition to this machine's own. `None` allows every name.
    hosts: Option<Vec<String>>,
    /// Allowed origins in addition to the server's own. `None` allows every origin.
    origins: Option<Vec<HeaderValue>>,
}

impl Guard {
    /// Creates the guard of a server that listens at `addresses`.
    ///
    /// # Errors
    /// If an allowed host or origin in the options is malformed.
    pub fn new(options: &ServeOptions, addresses: &[SocketAddr]) -> Result<Self> {
        let ServeOptions { allowed_hosts: hosts, cors: origins, .. } = options;
        for host in hosts.iter().filter(|host| *host != ANY) {
            if host.is_empty() || self::host(host) != host || host.contains(['/', '@']) {
                bail!("{host:?} is not a host name without a port");
            }
        }
        let particular = !hosts.is_empty() || addresses.iter().all(|address| is_loopback(address.ip()));
        let any_host = !particular || hosts.iter().any(|host| host == ANY);
        let any_origin = origins.iter().any(|origin| origin == ANY);
        let origins = origins.iter().filter(|origin| *origin != ANY).map(|o| origin(o)).collect::<Result<_>>()?;
        Ok(Guard { hosts: (!any_host).then(|| hosts.clone()), origins: (!any_origin).then_some(origins) })
    }

    /// Returns the layer that tells browsers which pages may read answers and send requests that need a preflight.
    pub fn cors(&self) -> CorsLayer {
        let origins = match &self.origins {
            None => AllowOrigin::any(),
            Some(origins) => AllowOrigin::list(origins.iter().cloned()),
        };
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            // A `*` would not include `Authorization`.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([REQUEST_ID, HeaderName::from_static("request-id"), header::RETRY_AFTER])
            .max_age(MAX_AGE)
    }

    /// Whether `authority`, a `host[:port]`, names this server.
    fn allows_host(&self, authority: &str) -> bool {
        let Some(names) = &self.hosts else { return true };
        let host = host(authority);
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match address.parse::<IpAddr>() {
            Ok(address) if is_loopback(address) => true,
            _ => {
                host.eq_ignore_ascii_case("localhost")
                    || host.eq_ignore_ascii_case("localhost.")
                    || names.iter().any(|name| host.eq_ignore_ascii_case(name))
            }
        }
    }

    /// Whether a page of `origin` may change state on the server that it addresses as `host`.
    fn allows_origin(&self, origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
        let own = || {
            let (scheme, authority) = origin.to_str().ok()?.split_once("://")?;
            let host = host?.to_str().ok()?;
            // The default port of a scheme may be omitted on either side.
            let port = if scheme == "https" { ":443" } else { ":80" };
            let plain = |authority: &str| authority.strip_suffix(port).unwrap_or(authority).to_ascii_lowercase();
            Some(plain(authority) == plain(host))
        };
        self.origins.as_ref().is_none_or(|known| known.contains(origin)) || own() == Some(true)
    }
}

/// Whether an address is a loopback address, including IPv4 loopback addresses mapped into IPv6.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Returns the host of `host[:port]`, or the input unchanged if it does not parse.
fn host(authority: &str) -> &str {
    let (host, port) = match authority.find(']') {
        Some(end) => authority.split_at(end + 1),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    if port.is_empty() || port.strip_prefix(':').is_some_and(is_port) { host } else { authority }
}

/// Parses an origin as browsers write it: `scheme://host[:port]`.
fn origin(text: &str) -> Result<HeaderValue> {
    let uri = text.parse::<Uri>().ok();
    let written = uri.as_ref().and_then(|uri| Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?)));
    match written.map(|written| (written == text, HeaderValue::try_from(written))) {
        Some((true, Ok(origin))) => Ok(origin),
        _ => bail!("{text:?} is not an origin: write it like https://example.org or http://localhost:3000"),
    }
}

/// Refuses requests whose host is not this server's.
pub async fn check_host(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> std::result::Result<Response, ApiError> {
    // Browsers always send a host, so a request without one is safe.
    let headers = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let foreign = headers.chain(request.uri().authority().map(Authority::as_str)).find(|host| !guard.allows_host(host));
    if let Some(host) = foreign {
        let why = format!("this server is not {host:?}: allow other names with --allowed-host");
        return Err(ApiError::malformed(StatusCode::MISDIRECTED_REQUEST, why));
    }
    Ok(next.run(request).await)
}

/// Refuses requests that may change state and come from a page of another origin.
pub async fn check_origin(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> std::result::Result<Response, ApiError> {
    let (headers, method) = (request.headers(), request.method());
    let host = headers.get(header::HOST);
    let foreign = headers.get_all(header::ORIGIN).iter().find(|origin| !guard.allows_origin(origin, host));
    if let Some(origin) = foreign.filter(|_| !method.is_safe()) {
        let why = format!("pages of {origin:?} may not use this server: allow their origin with --cors");
        return Err(ApiError::malformed(StatusCode::FORBIDDEN, why));
    }
    Ok(next.run(request).await)
}
