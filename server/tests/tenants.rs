//! Requests of different tenants: their priorities.

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
        SchedulerOptions { policy: SchedulingPolicy::Priority, max_priority: Some(-1), ..SchedulerOptions::default() };
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
