//! Hostile requests: each gets the right status and OpenAI's error body, and the server keeps serving other clients.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::time::Duration;

use common::client::Response;
use common::{PROMPT, TestServer, error_of, read_all, write_all};
use engine::ModelFiles;
use engine::{Options, SchedulerOptions};
use hyper::body::Bytes;
use serde_json::{Value, json};
use server::{RequestLimits, ServeOptions};
use tokio::net::TcpStream;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Sends a body with the content type of JSON, whether or not it is JSON.
async fn send_bytes(server: &TestServer, body: impl Into<Bytes>) -> Response {
    let request = server.client.post(server.url(COMPLETIONS)).header("content-type", "application/json");
    request.body(body).send().await.unwrap()
}

fn limits(limits: RequestLimits) -> ServeOptions {
    ServeOptions { limits, ..ServeOptions::default() }
}

/// A completion that takes long.
fn long(stream: bool) -> Value {
    json!({"prompt": PROMPT, "max_tokens": 500, "ignore_eos": true, "n": 8, "stream": stream})
}

#[tokio::test]
async fn not_json() {
    let server = TestServer::start().await;
    for body in ["", "{", "[1, 2]", "null", "{\"prompt\": \"a\"} trailing", "prompt=a", "{\"prompt\": NaN}"] {
        let error = error_of(send_bytes(&server, body).await, 400).await;
        assert_eq!(error["type"], "invalid_request_error", "{body}");
    }
    let nested = format!("{{\"prompt\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let error = error_of(send_bytes(&server, nested).await, 400).await;
    let what = "the body is nested more than 256 levels deep, from line 1, column 267 on";
    assert_eq!(error["message"], what);
    // Levels up to the limit are parsed, whatever they contain.
    let nested = format!(
        "{{\"prompt\": \"a\", \"max_tokens\": 1, \"metadata\": {{\"a\": {}1{}}}}}",
        "[".repeat(254),
        "]".repeat(254)
    );
    assert_eq!(send_bytes(&server, nested).await.status(), 200);
    let schema =
        |levels: usize| (0..levels).fold(json!({"type": "null"}), |inner, _| json!({"type": "array", "items": inner}));
    let deep = format!("{{\"prompt\": \"a\", \"max_tokens\": 1, \"guided_json\": {}}}", schema(200));
    assert_eq!(send_bytes(&server, deep).await.status(), 200);
    let form = server.client.post(server.url(COMPLETIONS)).header("content-type", "text/plain").body("{}");
    error_of(form.send().await.unwrap(), 415).await;
    server.assert_unharmed().await;
}

#[tokio::test]
async fn wrong_types() {
    let server = TestServer::start().await;
    for (field, value) in [
        ("prompt", json!(7)),
        ("prompt", json!({"text": "a"})),
        ("prompt", json!(["a", 7])),
        ("prompt", json!([-1])),
        ("prompt", json!([])),
        ("prompt", json!([[]])),
        ("prompt", json!([1e10])),
        ("prompt", json!([5000])),
        ("max_tokens", json!("many")),
        ("max_tokens", json!(1.5)),
        ("temperature", json!("hot")),
        ("temperature", json!(1e300)),
        ("temperature", json!(-1)),
        ("top_p", json!(0)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!(3)),
        ("n", json!(true)),
        ("n", json!(0)),
        ("logprobs", json!(101)),
        ("logprobs", json!(true)),
        ("stream", json!("yes")),
        ("stop", json!(7)),
        ("stop", json!([""])),
        ("seed", json!(1e30)),
        ("logit_bias", json!({"cat": 1})),
        ("logit_bias", json!({"99999": 1})),
        ("logit_bias", json!({"7": 1000})),
        ("early_stopping", json!("sometimes")),
        ("stream_options", json!({"include_usage": true})),
    ] {
        let mut body = json!({"prompt": PROMPT});
        body[field] = value.clone();
        if field == "early_stopping" {
            body["use_beam_search"] = true.into();
        }
        assert_eq!(server.refused(COMPLETIONS, &body, 400).await["param"], field, "{field}: {value}");
    }
    assert_eq!(server.refused(COMPLETIONS, &json!({}), 400).await["type"], "invalid_request_error");
    for messages in [json!([]), json!("hi"), json!([{"role": "user"}]), json!([{"role": "user", "content": 7}])] {
        server.refused(CHAT, &json!({"messages": messages}), 400).await;
    }
    let numbered = json!([{"role": "user", "content": [{"type": 0, "text": "x"}]}]);
    server.refused(CHAT, &json!({"messages": numbered}), 400).await;
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    server.refused(CHAT, &json!({"messages": image}), 400).await;
    server.assert_unharmed().await;
}

#[tokio::test]
async fn unknown_model() {
    let server = TestServer::start().await;
    let error = server.refused(COMPLETIONS, &json!({"model": "gpt-4", "prompt": PROMPT}), 404).await;
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    server.assert_unharmed().await;
}

#[tokio::test]
async fn huge_body() {
    let server =
        TestServer::with_options(limits(RequestLimits { max_body_bytes: 100_000, ..RequestLimits::default() })).await;
    // The size is announced in a header here, and not announced in the chunked body below.
    let announced = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        content-length: 1000000000000\r\n\r\n";
    let answer = server.raw(announced.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\"error\""), "{answer}");
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        transfer-encoding: chunked\r\n\r\n";
    let chunk = format!("4e20\r\n{}\r\n", " ".repeat(20_000));
    let answer = server.raw(format!("{head}{}", chunk.repeat(6)).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\"error\""), "{answer}");
    server.assert_unharmed().await;
}

#[tokio::test]
async fn prompt_of_100_000_tokens() {
    let server = TestServer::start().await;
    let ids = server.refused(COMPLETIONS, &json!({"prompt": vec![300; 100_000]}), 400).await;
    assert_eq!((&ids["code"], &ids["param"]), (&json!("context_length_exceeded"), &json!("prompt")));
    let text = "once upon a time ".repeat(25_000);
    let error = server.refused(COMPLETIONS, &json!({"prompt": text}), 400).await;
    assert_eq!(error["code"], "context_length_exceeded");
    let error = server.refused(CHAT, &json!({"messages": [{"role": "user", "content": text}]}), 400).await;
    assert_eq!(error["code"], "context_length_exceeded");
    let error = server.refused(COMPLETIONS, &json!({"prompt": PROMPT, "max_tokens": 100_000}), 400).await;
    assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("max_tokens")));
    server.assert_unharmed().await;
}

#[tokio::test]
async fn negative_max_tokens() {
    let server = TestServer::start().await;
    for max_tokens in [json!(-1), json!(0), json!(-1_000_000_000_000_000_000i64)] {
        let error = server.refused(COMPLETIONS, &json!({"prompt": PROMPT, "max_tokens": max_tokens}), 400).await;
        assert_eq!(error["param"], "max_tokens");
    }
    server.assert_unharmed().await;
}

#[tokio::test]
async fn a_billion_outputs() {
    let server = TestServer::start().await;
    let billion = 1_000_000_000;
    assert_eq!(server.refused(COMPLETIONS, &json!({"prompt": PROMPT, "n": billion}), 400).await["param"], "n");
    let error = server.refused(COMPLETIONS, &json!({"prompt": PROMPT, "best_of": billion}), 400).await;
    assert_eq!(error["param"], "best_of");
    let beams = json!({"prompt": PROMPT, "best_of": billion, "use_beam_search": true});
    assert_eq!(server.refused(COMPLETIONS, &beams, 400).await["param"], "best_of");
    server.refused(COMPLETIONS, &json!({"prompt": vec!["a"; 100_000]}), 400).await;
    server.assert_unharmed().await;
}

#[tokio::test]
async fn invalid_utf8() {
    let server = TestServer::start().await;
    let mut body = b"{\"prompt\": \"caf".to_vec();
    body.extend([0xe9, b'"', b'}']);
    error_of(send_bytes(&server, body).await, 400).await;
    let error = error_of(send_bytes(&server, r#"{"prompt": "\ud800"}"#).await, 400).await;
    let what = "prompt has an escape (\\u) of a lone surrogate at line 1, column 19";
    assert_eq!((&error["param"], &error["message"]), (&json!("prompt"), &json!(what)));
    server.assert_unharmed().await;
}

#[tokio::test]
async fn ten_thousand_stop_strings() {
    let server = TestServer::start().await;
    let stops: Vec<String> = (0..10_000).map(|i| format!("stop {i}")).collect();
    for stop in [json!(stops), json!("x".repeat(100_000))] {
        assert_eq!(server.refused(COMPLETIONS, &json!({"prompt": PROMPT, "stop": stop}), 400).await["param"], "stop");
    }
    server.assert_unharmed().await;
}

#[tokio::test]
async fn floods_of_headers() {
    let server = TestServer::start().await;
    let many: String = (0..80).map(|i| format!("x-{i}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(20_000));
    for headers in [many, long] {
        let answer = server
            .raw(format!("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").as_bytes())
            .await;
        assert!(answer.starts_with("HTTP/1.1 431 ") && answer.contains("\"error\""), "{answer}");
    }
    // With more headers than this, the connection is closed before they are parsed.
    let flood: String = (0..100_000).map(|i| format!("x-{i}: y\r\n")).collect();
    let answer = server.raw(format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{flood}\r\n").as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    server.assert_unharmed().await;
}

/// Slow connections that send one byte now and then are closed in every phase.
#[tokio::test]
async fn slow_loris() {
    let read_timeout = Duration::from_millis(100);
    let server = TestServer::with_options(limits(RequestLimits { read_timeout, ..RequestLimits::default() })).await;
    let in_head = TcpStream::connect(server.address).await.unwrap();
    write_all(&in_head, b"POST /v1/completions HTTP/1.1\r\nx-slow").await;
    let in_body = TcpStream::connect(server.address).await.unwrap();
    let head =
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    write_all(&in_body, head).await;
    let idle = TcpStream::connect(server.address).await.unwrap();
    server.assert_unharmed().await;
    assert_eq!(read_all(&in_head).await, "");
    let answer = read_all(&in_body).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("\"error\""), "{answer}");
    assert_eq!(read_all(&idle).await, "");
    server.assert_unharmed().await;
}

/// Unread streams fill the system's buffers and then a bounded channel. Their requests are cancelled and their
/// connections closed, while other clients are served.
#[tokio::test]
async fn a_client_that_never_reads() {
    let write_timeout = Duration::from_millis(200);
    let server = TestServer::with_options(limits(RequestLimits { write_timeout, ..RequestLimits::default() })).await;
    let body = json!({"prompt": vec![PROMPT; 16], "max_tokens": 500, "ignore_eos": true, "n": 4, "stream": true, "logprobs": 20});
    let body = body.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let deaf = TcpStream::connect(server.address).await.unwrap();
    write_all(&deaf, format!("{head}{body}").as_bytes()).await;
    server.wait_for_metric("quire:http_requests", 1.0).await;
    server.post(COMPLETIONS, &json!({"prompt": PROMPT, "max_tokens": 5})).await;
    server.assert_unharmed().await;
    // Only this client's own connection is left. The unread stream ends unfinished.
    server.wait_for_metric("quire:connections", 1.0).await;
    let got = read_all(&deaf).await;
    assert!(got.starts_with("HTTP/1.1 200 ") && !got.contains("[DONE]"), "{} bytes", got.len());
}

#[tokio::test]
async fn templates_in_contents_are_text() {
    let server = TestServer::start().await;
    let tokens = async |body: Value| server.post("/tokenize", &body).await["tokens"].clone();
    for content in ["{{ 7 * 7 }}", "{% for x in range(999999999) %}x{% endfor %}", "{{ messages }}", "{#"] {
        let chat = tokens(json!({"messages": [{"role": "user", "content": content}]})).await;
        assert_eq!(chat, tokens(json!({"prompt": content})).await, "{content}");
        let role = json!({"messages": [{"role": content, "content": content}], "max_tokens": 2});
        server.post(CHAT, &role).await;
    }
    server.assert_unharmed().await;
}

#[tokio::test]
async fn wrong_api_key() {
    let options = ServeOptions { api_key: Some("a secret".into()), ..ServeOptions::default() };
    let server = TestServer::with_options(options).await;
    let body = json!({"prompt": PROMPT, "max_tokens": 1});
    let error = server.refused(COMPLETIONS, &body, 401).await;
    assert_eq!(error["code"], "invalid_api_key");
    let with = async |value: &str| {
        let request = server.client.post(server.url(COMPLETIONS)).header("authorization", value);
        request.json(&body).send().await.unwrap()
    };
    for wrong in ["Bearer a secre", "Bearer a secret ?", "Bearer b secret", "Basic a secret", "Bearer", "a secret"] {
        error_of(with(wrong).await, 401).await;
    }
    assert_eq!(with("Bearer a secret").await.status(), 200);
    for path in ["/v1/models", "/debug/state"] {
        error_of(server.get(path).await, 401).await;
    }
    for path in ["/health", "/ready", "/metrics", "/version"] {
        assert_eq!(server.get(path).await.status(), 200, "{path}");
    }
}

#[tokio::test]
async fn more_requests_than_the_queue_holds() {
    let engine = Options {
        scheduler: SchedulerOptions { max_num_seqs: 8, max_request_share: 1.0, ..SchedulerOptions::default() },
        ..Options::default()
    };
    let options = limits(RequestLimits { max_queue: 1, max_requests: 3, ..RequestLimits::default() });
    let server = TestServer::with(&ModelFiles::bundled(), &engine, options).await;
    let mut running = server.send(COMPLETIONS, &long(true)).await;
    running.chunk().await.unwrap();
    // The eight outputs fill the batch. A second request waits, and a third is refused.
    let (body, short) = (long(false), json!({"prompt": PROMPT, "max_tokens": 1}));
    let waiting = server.client.post(server.url(COMPLETIONS)).json(&body).send();
    let waiting = tokio::spawn(waiting);
    server.wait_for_metric("vllm:num_requests_waiting", 1.0).await;
    let refused = server.send(COMPLETIONS, &short).await;
    assert_eq!(refused.headers()["retry-after"], "1");
    error_of(refused, 503).await;
    let prompts = server.refused(COMPLETIONS, &json!({"prompt": ["a", "b"]}), 400).await;
    assert_eq!(prompts["param"], "prompt");
    waiting.abort();
    drop(running);
    server.assert_unharmed().await;
    assert_eq!(server.metric("quire:requests_refused_total").await, 1.0);
}

#[tokio::test]
async fn more_requests_than_may_be_in_progress() {
    let server = TestServer::with_options(limits(RequestLimits { max_requests: 1, ..RequestLimits::default() })).await;
    let mut running = server.send(COMPLETIONS, &long(true)).await;
    running.chunk().await.unwrap();
    let error = server.refused(COMPLETIONS, &json!({"prompt": PROMPT}), 429).await;
    assert_eq!(error["code"], "rate_limit_exceeded");
    drop(running);
    server.assert_unharmed().await;
}

#[tokio::test]
async fn requests_that_take_too_long() {
    let request_timeout = Duration::from_millis(700);
    let server = TestServer::with_options(limits(RequestLimits { request_timeout, ..RequestLimits::default() })).await;
    let endless = |stream| {
        let mut body = long(stream);
        body["prompt"] = vec![PROMPT; 64].into();
        body
    };
    server.refused(COMPLETIONS, &endless(false), 504).await;
    let mut asked = 1;
    let stream = loop {
        asked += 1;
        let stream = server.send(COMPLETIONS, &endless(true)).await;
        // On a busy machine even the first token may be late.
        if stream.status() == 200 {
            break stream;
        }
        error_of(stream, 504).await;
    };
    let text = stream.text().await.unwrap();
    assert!(text.contains(r#"data: {"error":{"message":"#) && !text.contains("[DONE]"), "{text}");
    server.wait_for_metric("quire:kv_blocks_used", 0.0).await;
    assert_eq!(server.metric("quire:requests_aborted_total").await, 64.0 * f64::from(asked));
}
