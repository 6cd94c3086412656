//! Protection of the server from web pages in a browser on this machine.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::client::Response;
use common::{PROMPT, TestServer, error_of};
use engine::ModelFiles;
use engine::Options;
use hyper::Method;
use serde_json::json;
use server::{ServeOptions, Server};

const COMPLETIONS: &str = "/v1/completions";

/// Requests `target` with these lines in the head.
async fn ask(server: &TestServer, target: &str, version: &str, head: &str) -> String {
    server.raw(format!("GET {target} {version}\r\n{head}connection: close\r\n\r\n").as_bytes()).await
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[tokio::test]
async fn a_local_server_checks_the_host() {
    let server = TestServer::start().await;
    let port = server.address.port();
    for (host, expected) in [
        ("localhost", "200"),
        ("LocalHost:1", "200"),
        (&format!("127.0.0.1:{port}"), "200"),
        ("127.7.7.7", "200"),
        ("[::1]:8000", "200"),
        ("[::ffff:127.0.0.1]", "200"),
        ("localhost.", "200"),
        ("[::1]evil.example", "421"),
        ("localhost:evil", "421"),
        ("evil.example", "421"),
        (&format!("evil.example:{port}"), "421"),
        ("localhost.evil.example", "421"),
        ("127.0.0.1.evil.example", "421"),
        ("192.0.2.1", "421"),
        ("[2001:db8::1]", "421"),
        ("", "421"),
        ("local host", "421"),
        ("evil.example@localhost:x", "421"),
    ] {
        for path in ["/v1/models", "/", "/debug/state", "/health"] {
            let answer = ask(&server, path, "HTTP/1.1", &format!("host: {host}\r\n")).await;
            assert_eq!(status(&answer), expected, "{host:?}: {answer}");
            assert!(expected == "200" || answer.contains("--allowed-host"), "{answer}");
        }
    }
    // Every host header must be allowed, and so must the host in the request line.
    let two = ask(&server, "/v1/models", "HTTP/1.1", "host: localhost\r\nhost: evil.example\r\n").await;
    assert_eq!(status(&two), "421");
    let absolute = ask(&server, "http://evil.example/v1/models", "HTTP/1.1", "host: localhost\r\n").await;
    assert_eq!(status(&absolute), "421");
    assert_eq!(status(&ask(&server, "/v1/models", "HTTP/1.0", "").await), "200");
    let body = json!({"prompt": PROMPT});
    let rebound = server.client.post(server.url(COMPLETIONS)).header("host", "evil.example").json(&body);
    assert_eq!(error_of(rebound.send().await.unwrap(), 421).await["type"], "invalid_request_error");
    server.assert_unharmed().await;
}

#[tokio::test]
async fn names_can_be_allowed() {
    let with = |hosts: &[&str], host: &str| {
        let allowed_hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        TestServer::with_options(ServeOptions { allowed_hosts, host: host.into(), ..ServeOptions::default() })
    };
    let get = async |server: &TestServer, host: &str| {
        status(&ask(server, "/health", "HTTP/1.1", &format!("host: {host}\r\n")).await).to_owned()
    };
    let server = with(&["llm.example", "other.example"], "127.0.0.1").await;
    for (host, expected) in
        [("LLM.example:80", "200"), ("other.example", "200"), ("localhost", "200"), ("evil.example", "421")]
    {
        assert_eq!(get(&server, host).await, expected, "{host}");
    }
    assert_eq!(get(&with(&["*"], "127.0.0.1").await, "evil.example").await, "200");
    // Clients of a public server may use names that the server does not know.
    assert_eq!(get(&with(&[], "0.0.0.0").await, "any.example").await, "200");
    assert_eq!(get(&with(&["llm.example"], "0.0.0.0").await, "any.example").await, "421");
}

async fn send(server: &TestServer, method: Method, origin: &str) -> Response {
    let request = server.client.request(method, server.url(COMPLETIONS)).header("origin", origin);
    request.json(&json!({"prompt": PROMPT, "max_tokens": 1})).send().await.unwrap()
}

#[tokio::test]
async fn pages_of_other_origins_cannot_change_state() {
    let server = TestServer::start().await;
    let own = format!("http://{}", server.address);
    assert_eq!(send(&server, Method::POST, &own).await.status(), 200);
    for origin in ["http://evil.example", "null", "http://127.0.0.1", &format!("{own}.evil.example"), "file://"] {
        let error = error_of(send(&server, Method::POST, origin).await, 403).await;
        assert!(error["message"].as_str().unwrap().contains("--cors"), "{error}");
        // On any path, whether or not it supports the method.
        for path in ["/tokenize", "/nowhere", "/metrics"] {
            for method in [Method::POST, Method::DELETE, Method::PUT, Method::PATCH] {
                let request = server.client.request(method, server.url(path)).header("origin", origin);
                error_of(request.send().await.unwrap(), 403).await;
            }
        }
        // Requests that only read are answered, but the page cannot read the answer.
        let looked = server.client.get(server.url("/v1/models")).header("origin", origin).send().await.unwrap();
        assert_eq!(looked.status(), 200);
        assert!(!looked.headers().contains_key("access-control-allow-origin"));
    }
    // A port that the scheme implies may be omitted.
    for (origin, host) in [("http://localhost", "localhost:80"), ("https://localhost:443", "localhost")] {
        let head = format!(
            "POST /tokenize HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\ncontent-type: application/json\r\n\
             content-length: 15\r\nconnection: close\r\n\r\n{{\"prompt\": \"a\"}}"
        );
        assert_eq!(status(&server.raw(head.as_bytes()).await), "200", "{origin}");
    }
    server.assert_unharmed().await;
}

#[tokio::test]
async fn origins_can_be_allowed() {
    let with = |origins: &[&str]| {
        let cors = origins.iter().map(|&origin| origin.to_owned()).collect();
        TestServer::with_options(ServeOptions { cors, api_key: Some("key".into()), ..ServeOptions::default() })
    };
    let preflight = async |server: &TestServer, origin: &str| {
        let request = server.client.request(Method::OPTIONS, server.url(COMPLETIONS)).header("origin", origin);
        let request = request.header("access-control-request-method", "POST");
        let response = request.header("access-control-request-headers", "authorization,x-mine").send().await.unwrap();
        assert_eq!(response.status(), 200);
        let value = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        assert!(value("access-control-allow-methods").unwrap().contains("POST"));
        assert_eq!(value("access-control-allow-headers").unwrap(), "authorization,x-mine");
        value("access-control-allow-origin")
    };
    let post = async |server: &TestServer, origin: &str| {
        let request = server.client.post(server.url(COMPLETIONS)).header("origin", origin).bearer_auth("key");
        request.json(&json!({"prompt": PROMPT, "max_tokens": 1})).send().await.unwrap()
    };
    let app = "https://app.example";
    let server = with(&[app, "http://localhost:3000"]).await;
    for origin in [app, "http://localhost:3000"] {
        assert_eq!(preflight(&server, origin).await.as_deref(), Some(origin));
        let answer = post(&server, origin).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["access-control-allow-origin"]),
            (200, &origin.parse().unwrap())
        );
        let exposed = answer.headers()["access-control-expose-headers"].to_str().unwrap();
        assert!(exposed.contains("x-request-id") && exposed.contains("retry-after"), "{exposed}");
        // The page may also read errors.
        let request = server.client.post(server.url(COMPLETIONS)).header("origin", origin).send().await.unwrap();
        assert_eq!(&request.headers()["access-control-allow-origin"], origin);
        error_of(request, 401).await;
    }
    assert_eq!(preflight(&server, "https://evil.example").await, None);
    error_of(post(&server, "https://evil.example").await, 403).await;
    let any = with(&["*"]).await;
    assert_eq!(preflight(&any, app).await.as_deref(), Some("*"));
    assert_eq!(post(&any, "null").await.status(), 200);
}

#[tokio::test]
async fn malformed_names_and_origins_are_refused_at_the_start() {
    let refusal = async |hosts: &str, cors: &str| {
        let list = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let options = ServeOptions { port: 0, allowed_hosts: list(hosts), cors: list(cors), ..ServeOptions::default() };
        let bound = Server::bind(&ModelFiles::bundled(), &Options::default(), &options).await;
        bound.err().map(|error| error.to_string()).unwrap_or_default()
    };
    for origin in ["app.example", "https://app.example/", "https://app.example/page", "https://", "/", "null"] {
        assert!(refusal("", origin).await.contains(origin), "{origin}");
    }
    for host in ["http://llm.example", "llm.example:80", "llm/example"] {
        assert!(refusal(host, "").await.contains(host), "{host}");
    }
    assert_eq!(refusal("llm.example 192.0.2.1 *", "https://app.example * http://[::1]:3000").await, "");
}
