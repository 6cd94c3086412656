//! HTTP itself: bodies, paths and connections.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::io::{Read, Write};
use std::time::Duration;

use common::client::Response;
use common::{MODEL, PROMPT, TestServer, error_of, read_all, write_all};
use engine::ModelFiles;
use engine::Options;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use server::{RequestLimits, ServeOptions, Server};
use tokio::net::TcpStream;

const COMPLETIONS: &str = "/v1/completions";
const HOUR: Duration = Duration::from_secs(3600);

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn send_encoded(server: &TestServer, encoding: &str, body: Vec<u8>) -> Response {
    let request = server.client.post(server.url(COMPLETIONS)).header("content-type", "application/json");
    request.header("content-encoding", encoding).body(body).send().await.unwrap()
}

fn limits(limits: RequestLimits) -> ServeOptions {
    ServeOptions { limits, ..ServeOptions::default() }
}

/// Returns a short completion as raw HTTP.
fn request() -> String {
    let body = json!({"prompt": PROMPT, "max_tokens": 1}).to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len())
}

/// Reads a response with a `Content-Length` and leaves the connection open.
async fn read_response(stream: &TcpStream) -> String {
    let mut all = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&all);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_ascii_lowercase();
            let length = length.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if body.len() == length.parse::<usize>().unwrap() {
                return text.into_owned();
            }
        }
        stream.readable().await.unwrap();
        let mut part = [0; 4096];
        match stream.try_read(&mut part) {
            Ok(0) => panic!("the connection ended after {text:?}"),
            Ok(n) => all.extend_from_slice(&part[..n]),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
}

#[tokio::test]
async fn bodies_may_be_compressed() {
    let server =
        TestServer::with_options(limits(RequestLimits { max_body_bytes: 100_000, ..RequestLimits::default() })).await;
    let body = json!({"prompt": PROMPT, "max_tokens": 5, "temperature": 0}).to_string();
    // Several gzip members form one text, as RFC 1952 specifies.
    let (begin, end) = body.as_bytes().split_at(10);
    for (encoding, bytes) in [
        ("gzip", gzip(body.as_bytes())),
        ("GZip", gzip(body.as_bytes())),
        ("x-gzip", [gzip(begin), gzip(end)].concat()),
        ("identity", body.clone().into_bytes()),
    ] {
        let response = send_encoded(&server, encoding, bytes).await;
        let (status, text) = (response.status(), response.text().await.unwrap());
        assert!(status == 200 && text.contains(", there lived a young"), "{encoding}: {text}");
    }
    let good = gzip(body.as_bytes());
    let mut wrong_sum = good.clone();
    let sum = wrong_sum.len() - 8;
    wrong_sum[sum] ^= 1;
    for bad in [Vec::new(), b"not gzip".to_vec(), body.clone().into_bytes(), good[..good.len() - 9].to_vec(), wrong_sum]
    {
        let error = error_of(send_encoded(&server, "gzip", bad).await, 400).await;
        assert!(error["message"].as_str().unwrap().contains("gzip"), "{error}");
    }
    for encoding in ["br", "deflate", "gzip, gzip", "zstd"] {
        let error = error_of(send_encoded(&server, encoding, good.clone()).await, 415).await;
        assert!(error["message"].as_str().unwrap().contains(encoding), "{error}");
    }
    server.assert_unharmed().await;
}

/// Limits apply to the decompressed body, here 2 kB that become 2 MB. They also apply to an endless compressed body
/// that decompresses to nothing.
#[tokio::test]
async fn limits_apply_to_decompressed_bodies() {
    let server =
        TestServer::with_options(limits(RequestLimits { max_body_bytes: 100_000, ..RequestLimits::default() })).await;
    let bomb = gzip(&[b' '; 2_000_000]);
    assert!(bomb.len() < 10_000);
    error_of(send_encoded(&server, "gzip", bomb).await, 413).await;
    let fits = gzip(format!("{}{}", json!({"prompt": PROMPT, "max_tokens": 1}), " ".repeat(99_000)).as_bytes());
    assert_eq!(send_encoded(&server, "gzip", fits).await.status(), 200);
    let nothing = gzip(b"");
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk =
        [format!("{:x}\r\n", 1000 * nothing.len()).into_bytes(), nothing.repeat(1000), b"\r\n".to_vec()].concat();
    let answer = server.raw(&[head.as_bytes(), &chunk.repeat(6)].concat()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    server.assert_unharmed().await;
}

/// Python's `http.client` and others send the whole body before they read the answer. If the server closed the
/// connection meanwhile, they would only report a broken pipe.
#[tokio::test]
async fn a_body_that_is_too_large_can_be_sent_to_its_end() {
    let server =
        TestServer::with_options(limits(RequestLimits { max_body_bytes: 10_000, ..RequestLimits::default() })).await;
    let address = server.address;
    const MIB: usize = 1 << 20;
    let chunks = format!("{MIB:x}\r\n{}\r\n", " ".repeat(MIB)).repeat(16);
    for (framing, body) in [
        (format!("content-length: {}", 16 * MIB), " ".repeat(16 * MIB)),
        ("transfer-encoding: chunked".into(), format!("{chunks}0\r\n\r\n")),
    ] {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"
        );
        let client = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            let (begin, rest) = body.as_bytes().split_at(100_000);
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(begin).unwrap();
            // The server has answered, but the client continues to send.
            stream.peek(&mut [0]).unwrap();
            stream.write_all(rest).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let answer = client.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\"error\""), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
    server.assert_unharmed().await;
}

/// The server eventually disconnects a client that never stops sending.
#[tokio::test]
async fn a_client_that_never_stops_sending_is_disconnected() {
    let read_timeout = Duration::from_millis(200);
    let server = TestServer::with_options(limits(RequestLimits {
        max_body_bytes: 1000,
        read_timeout,
        ..RequestLimits::default()
    }))
    .await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        content-length: 1000000000000\r\n\r\n";
    write_all(&stream, head.as_bytes()).await;
    // The loop ends when the server stops reading.
    loop {
        stream.writable().await.unwrap();
        match stream.try_write(&[b' '; 4096]) {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => break,
            _ => tokio::task::yield_now().await,
        }
    }
    server.assert_unharmed().await;
    server.wait_for_metric("quire:connections", 1.0).await;
}

#[tokio::test]
async fn the_bearer_scheme_is_case_insensitive() {
    let options = ServeOptions { api_key: Some("a secret".into()), ..ServeOptions::default() };
    let server = TestServer::with_options(options).await;
    for (value, status) in [
        ("Bearer a secret", 200),
        ("bearer a secret", 200),
        ("BEARER a secret", 200),
        ("bearer A SECRET", 401),
        ("bearera secret", 401),
        ("bearer", 401),
    ] {
        let request = server.client.get(server.url("/v1/models")).header("authorization", value);
        assert_eq!(request.send().await.unwrap().status(), status, "{value}");
    }
}

#[tokio::test]
async fn redundant_slashes_in_a_path_are_ignored() {
    let server = TestServer::start().await;
    let models = server.get_json("/v1/models").await;
    for path in ["/v1/models/", "//v1/models", "/v1//models", "//v1///models//", "/v1/models/?x=//"] {
        assert_eq!(server.get_json(path).await, models, "{path}");
    }
    assert_eq!(server.get_json(&format!("/v1//models/{MODEL}/")).await["id"], MODEL);
    let body = json!({"prompt": PROMPT, "max_tokens": 1});
    assert_eq!(server.send("/v1//completions/", &body).await.status(), 200);
    assert!(server.get("//").await.text().await.unwrap().contains("<html"));
    for path in ["/v1/mod/els", "/v1/models/x/", "//nowhere"] {
        error_of(server.get(path).await, 404).await;
    }
}

#[tokio::test]
async fn an_idle_connection_has_its_own_time_limit() {
    let keep_alive = Duration::from_millis(100);
    let server =
        TestServer::with_options(limits(RequestLimits { keep_alive, read_timeout: HOUR, ..RequestLimits::default() }))
            .await;
    let kept = TcpStream::connect(server.address).await.unwrap();
    // The keep-alive time does not limit how long a head takes.
    let slow = TcpStream::connect(server.address).await.unwrap();
    write_all(&kept, request().as_bytes()).await;
    assert!(read_response(&kept).await.starts_with("HTTP/1.1 200 "));
    let request = request();
    let (begin, end) = request.split_at(20);
    write_all(&slow, begin.as_bytes()).await;
    assert_eq!(read_all(&kept).await, "");
    write_all(&slow, end.as_bytes()).await;
    assert!(read_response(&slow).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_connection_stays_open_longer_than_a_head_may_take() {
    let read_timeout = Duration::from_millis(100);
    let server =
        TestServer::with_options(limits(RequestLimits { keep_alive: HOUR, read_timeout, ..RequestLimits::default() }))
            .await;
    let kept = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..2 {
        write_all(&kept, request().as_bytes()).await;
        assert!(read_response(&kept).await.starts_with("HTTP/1.1 200 "));
        // A new connection that sends nothing is closed after the time for a head. The kept connection is not.
        let silent = TcpStream::connect(server.address).await.unwrap();
        assert_eq!(read_all(&silent).await, "");
    }
    // Only a part of the next request's head arrives.
    write_all(&kept, b"GET /health HTTP/1.1\r\nhost:").await;
    assert_eq!(read_all(&kept).await, "");
    server.assert_unharmed().await;
}

#[tokio::test]
async fn localhost_is_all_of_this_machines_addresses() {
    let server = TestServer::with_options(ServeOptions { host: "localhost".into(), ..ServeOptions::default() }).await;
    let six = std::net::TcpListener::bind("[::1]:0").is_ok();
    let port = server.address.port();
    for (address, there) in [(format!("127.0.0.1:{port}"), true), (format!("[::1]:{port}"), six)] {
        let answer = server.client.get(format!("http://{address}/ready")).send().await;
        assert_eq!(answer.is_ok_and(|answer| answer.status() == 200), there, "{address}");
    }
}

#[tokio::test]
async fn addresses_may_be_in_brackets() {
    // If the machine has no IPv6, binding fails with an error that says so.
    let options = |host: &str| ServeOptions { host: host.into(), ..ServeOptions::default() };
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        let (files, engine) = (ModelFiles::bundled(), Options::default());
        let bound = Server::bind(&files, &engine, &ServeOptions { port: 0, ..options("[::1]") }).await;
        assert!(bound.unwrap_err().to_string().contains("cannot listen at [::1]:0"));
        return;
    }
    for host in ["::1", "[::1]"] {
        let server = TestServer::with_options(options(host)).await;
        assert!(server.address.is_ipv6());
        assert_eq!(server.get("/ready").await.status(), 200, "{host}");
    }
}
