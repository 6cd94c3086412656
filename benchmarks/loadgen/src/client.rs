//! An HTTP client that reuses its connections. All requests of a load share one client.

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, Uri};
#[cfg(feature = "tls")]
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;

/// A server's response: a status, and a body that is read as it arrives.
pub(crate) type Answered = Response<Incoming>;

#[cfg(feature = "tls")]
type Connector = HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

/// Accepted URL schemes.
#[cfg(feature = "tls")]
const SCHEMES: [&str; 2] = ["http", "https"];
#[cfg(not(feature = "tls"))]
const SCHEMES: [&str; 1] = ["http"];

/// An HTTP client that reuses its connections. It ignores proxies, whose time would be measured too.
pub(crate) struct Client {
    client: legacy::Client<Connector, Full<Bytes>>,
    /// The authorization header of every request, if there is a key.
    authorization: Option<HeaderValue>,
}

impl Client {
    /// Creates a client that sends this key, if there is one.
    ///
    /// # Errors
    /// If the key has characters that a header cannot have.
    pub(crate) fn new(api_key: Option<&str>) -> Result<Self> {
        let authorization = match api_key {
            Some(key) => {
                let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                    .context("the API key has characters that HTTP cannot carry")?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(cfg!(not(feature = "tls")));
        // Send every request at once, however small.
        tcp.set_nodelay(true);
        #[cfg(feature = "tls")]
        let tcp = HttpsConnectorBuilder::new().with_webpki_roots().https_or_http().enable_http1().wrap_connector(tcp);
        let client = legacy::Client::builder(TokioExecutor::new()).build(tcp);
        Ok(Client { client, authorization })
    }

    /// Sends a GET request to `url`.
    ///
    /// # Errors
    /// If the address is invalid, or the server cannot be reached.
    pub(crate) async fn get(&self, url: &str) -> Result<Answered> {
        self.send(Method::GET, url, Bytes::new()).await
    }

    /// Sends a POST request with `body` as JSON to `url`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub(crate) async fn post(&self, url: &str, body: &impl Serialize) -> Result<Answered> {
        self.send(Method::POST, url, serde_json::to_vec(body)?.into()).await
    }

    async fn send(&self, method: Method, url: &str, body: Bytes) -> Result<Answered> {
        let uri: Uri = url.parse().context("it is not a valid address")?;
        let is_supported = uri.scheme_str().is_some_and(|scheme| SCHEMES.contains(&scheme));
        ensure!(is_supported, "it does not begin with {}://", SCHEMES.join(":// or "));
        let mut request = Request::builder().method(method).uri(uri).header(ACCEPT, "*/*");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        Ok(self.client.request(request.body(Full::new(body))?).await?)
    }
}

/// Returns the next bytes of a body, or `None` at its end.
///
/// # Errors
/// If the connection breaks.
pub(crate) async fn chunk(answer: &mut Answered) -> Result<Option<Bytes>> {
    while let Some(frame) = answer.frame().await {
        if let Ok(bytes) = frame?.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}
