//! The shutdown of a server.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::time::Duration;

use common::{PROMPT, TestServer, error_of};
use serde_json::json;
use server::{RequestLimits, ServeOptions};

const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn running_requests_finish_and_new_ones_are_refused() {
    let server = TestServer::start().await;
    let body = json!({"prompt": PROMPT, "max_tokens": 450, "ignore_eos": true, "stream": true});
    let mut running = server.send(COMPLETIONS, &body).await;
    running.chunk().await.unwrap();
    let (client, url, ready) = (server.client.clone(), server.url(COMPLETIONS), server.url("/ready"));
    let stopping = tokio::spawn(server.stop());
    // The stream continues after the server has begun to refuse requests.
    let mut refused = client.get(&ready).send().await.unwrap();
    while refused.status() == 200 {
        refused = client.get(&ready).send().await.unwrap();
    }
    error_of(refused, 503).await;
    error_of(client.post(&url).json(&json!({"prompt": PROMPT})).send().await.unwrap(), 503).await;
    let mut text = String::new();
    while let Some(chunk) = running.chunk().await.unwrap() {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    stopping.await.unwrap().unwrap();
    assert!(client.get(&ready).send().await.is_err(), "the server no longer listens");
}

#[tokio::test]
async fn requests_that_outlast_the_stop_timeout_are_ended() {
    let limits = RequestLimits { stop_timeout: Duration::ZERO, ..RequestLimits::default() };
    let server = TestServer::with_options(ServeOptions { limits, ..ServeOptions::default() }).await;
    let body = json!({"prompt": PROMPT, "max_tokens": 500, "ignore_eos": true, "stream": true, "n": 8});
    let mut running = server.send(COMPLETIONS, &body).await;
    running.chunk().await.unwrap();
    server.stop().await.unwrap();
    let rest = running.text().await.unwrap();
    assert!(rest.contains("the server is stopping") && !rest.contains("[DONE]"), "{rest}");
}
