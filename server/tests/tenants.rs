//! Requests of different tenants: their priorities, and salts that keep them from sharing cached prompts.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::TestServer;
use engine::tools::scheduler::SchedulingPolicy;
use engine::{ModelFiles, Options, SchedulerOptions};
use serde_json::{Value, json};
use server::ServeOptions;

/// A request to each API that takes a prompt.
fn requests(prompt: &str) -> [(&'static str, Value); 5] {
    let messages = json!([{"role": "user", "content": prompt}]);
    [
        ("/v1/completions", json!({"prompt": prompt, "max_tokens": 2})),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2})),
        ("/v1/responses", json!({"input": prompt, "max_output_tokens": 2})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 2})),
        ("/v1/embeddings", json!({"input": prompt})),
    ]
}

/// Returns the message of a refusal, in either form.
async fn refused(server: &TestServer, path: &str, body: &Value) -> String {
    let response = server.send(path, body).await;
    assert_eq!(response.status(), 400, "{path} {body}");
    response.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn priorities_are_bounded_in_every_api() {
    let scheduler =
        SchedulerOptions { policy: SchedulingPolicy::Priority, min_priority: Some(-1), ..SchedulerOptions::default() };
    let engine = Options { scheduler, ..Options::default() };
    let server = TestServer::with(&ModelFiles::bundled(), &engine, ServeOptions::default()).await;
    let plain = TestServer::start().await;
    for (path, body) in requests(common::PROMPT) {
        let with = |priority: Value| {
            let mut body = body.clone();
            body["priority"] = priority;
            body
        };
        for priority in [json!(-1), json!(0), json!(5.0), json!(i64::MAX), Value::Null] {
            server.post(path, &with(priority)).await;
        }
        assert!(refused(&server, path, &with(json!(-2))).await.contains("at least -1"));
        for priority in [json!(1.5), json!("1"), json!(1e30), json!(u64::MAX), json!([0])] {
            assert!(refused(&server, path, &with(priority)).await.contains("priority"));
        }
        plain.post(path, &with(json!(0))).await;
        assert!(refused(&plain, path, &with(json!(1))).await.contains("--scheduling-policy"));
    }
    server.assert_unharmed().await;
}

/// Returns the number of cached tokens in an answer's usage.
fn cached(path: &str, answer: &Value) -> u64 {
    let usage = &answer["usage"];
    let field = match path {
        "/v1/responses" => &usage["input_tokens_details"]["cached_tokens"],
        "/v1/messages" => &usage["cache_read_input_tokens"],
        _ => &usage["prompt_tokens_details"]["cached_tokens"],
    };
    field.as_u64().unwrap()
}

#[tokio::test]
async fn prompts_are_shared_only_within_a_salt() {
    for at in 0..4 {
        let server = TestServer::start().await;
        let (path, body) = requests(&"One day a fox met a bear in the dark wood. ".repeat(6))[at].clone();
        let with = |salt: Value| {
            let mut body = body.clone();
            body["cache_salt"] = salt;
            body
        };
        for salt in [json!("one"), json!("other"), Value::Null] {
            assert_eq!(cached(path, &server.post(path, &with(salt.clone())).await), 0, "{path} {salt}");
        }
        let answers = [json!("one"), json!("other"), Value::Null].map(with);
        for body in answers {
            assert!(cached(path, &server.post(path, &body).await) >= 32, "{path} {body}");
        }
        for salt in [json!(""), json!(7), json!("x".repeat(2000))] {
            assert!(refused(&server, path, &with(salt)).await.contains("cache_salt"));
        }
        server.stop().await.unwrap();
    }
    let server = TestServer::start().await;
    let (path, mut body) = requests(common::PROMPT)[4].clone();
    body["cache_salt"] = json!("one");
    server.post(path, &body).await;
    server.stop().await.unwrap();
}
