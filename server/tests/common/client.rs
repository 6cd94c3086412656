//! An HTTP client that sends any head and body, and reads answers as they arrive.

use std::error::Error;
use std::fmt::Display;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, HeaderMap, HeaderValue};
use hyper::http::{self, request};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A result whose error is a broken connection.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A client that keeps one connection.
#[derive(Clone)]
pub struct Client(legacy::Client<HttpConnector, Full<Bytes>>);

impl Client {
    /// Creates a client without a connection.
    pub fn new() -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        Client(legacy::Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(tcp))
    }

    pub fn get(&self, url: impl AsRef<str>) -> Asked {
        self.request(Method::GET, url)
    }

    pub fn post(&self, url: impl AsRef<str>) -> Asked {
        self.request(Method::POST, url)
    }

    pub fn request(&self, method: Method, url: impl AsRef<str>) -> Asked {
        let request = Request::builder().method(method).uri(url.as_ref());
        Asked { client: self.clone(), request, body: Bytes::new() }
    }
}

/// A request to be sent.
pub struct Asked {
    client: Client,
    request: request::Builder,
    body: Bytes,
}

impl Asked {
    pub fn header<V>(self, name: &str, value: V) -> Self
    where
        HeaderValue: TryFrom<V>,
        <HeaderValue as TryFrom<V>>::Error: Into<http::Error>,
    {
        Asked { request: self.request.header(name, value), ..self }
    }

    pub fn bearer_auth(self, key: impl Display) -> Self {
        self.header("authorization", format!("Bearer {key}"))
    }

    pub fn body(self, body: impl Into<Bytes>) -> Self {
        Asked { body: body.into(), ..self }
    }

    pub fn json(self, body: &impl Serialize) -> Self {
        self.header("content-type", "application/json").body(serde_json::to_vec(body).unwrap())
    }

    /// Waits for the head of the answer.
    pub async fn send(self) -> Result<Response> {
        let mut request = self.request.body(Full::new(self.body))?;
        request.headers_mut().entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        Ok(Response(self.client.0.request(request).await?))
    }
}

/// An answer of which only the head has arrived.
#[derive(Debug)]
pub struct Response(hyper::Response<Incoming>);

impl Response {
    pub fn status(&self) -> StatusCode {
        self.0.status()
    }

    pub fn headers(&self) -> &HeaderMap {
        self.0.headers()
    }

    /// Returns the next bytes of the body, or `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.0.frame().await {
            if let Ok(bytes) = frame?.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Returns the rest of the body.
    pub async fn text(self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.0.collect().await?.to_bytes()).into_owned())
    }

    pub async fn json<T: DeserializeOwned>(self) -> Result<T> {
        Ok(serde_json::from_slice(&self.0.collect().await?.to_bytes())?)
    }
}
