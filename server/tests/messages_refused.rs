//! What Anthropic's messages accept and refuse: fields, headers, keys, and the form of errors.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::time::Duration;

use common::client::Response;
use common::{TestServer, poisoned};
use engine::{ModelFiles, Options};
use serde_json::{Value, json};
use server::{RequestLimits, ServeOptions};

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn ask(fields: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 5, "temperature": 0});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Returns the type and the message of an error, which must have Anthropic's form.
async fn error_of(response: Response, status: u16) -> (String, String) {
    assert_eq!(response.headers()["request-id"], response.headers()["x-request-id"]);
    let id = response.headers()["request-id"].to_str().unwrap().to_owned();
    let (got, text) = (response.status(), response.text().await.unwrap());
    assert_eq!(got, status, "{text}");
    let body: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&body["type"], body["request_id"].as_str()), (&json!("error"), Some(id.as_str())), "{body}");
    let field = |name: &str| body["error"][name].as_str().unwrap().to_owned();
    (field("type"), field("message"))
}

async fn refused(server: &TestServer, body: &Value) -> String {
    let (kind, message) = error_of(server.send(PATH, body).await, 400).await;
    assert_eq!(kind, "invalid_request_error");
    message
}

#[tokio::test]
async fn fields_without_effect_are_accepted() {
    let server = TestServer::start().await;
    let plain = server.post(PATH, &ask(json!({}))).await["content"].clone();
    for fields in [
        json!({"metadata": {"user_id": "me"}, "service_tier": "standard_only", "inference_geo": "eu", "speed": "fast"}),
        json!({"cache_control": {"type": "ephemeral", "ttl": "1h"}, "diagnostics": {"previous_message_id": null}}),
        json!({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}),
        json!({"mcp_servers": [], "container": null, "tools": [], "system": null, "thinking": {"type": "disabled"}}),
        json!({"output_config": {"effort": "max"}, "stop_sequences": [], "top_k": 0, "top_p": 1.0, "stream": false}),
        json!({"output_config": {}, "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}}),
        json!({"stop_sequences": [], "stop": ["zzz"], "parallel_tool_calls": false, "include_reasoning": true}),
        json!({"stop_sequences": ["zzz"], "stop": [], "reasoning_effort": "low", "verbosity": "high"}),
    ] {
        assert_eq!(server.post(PATH, &ask(fields.clone())).await["content"], plain, "{fields}");
    }
    // Betas may add fields that the server does not know, but not change what it refuses.
    let beta = |fields: Value| {
        let request = server.client.post(server.url(PATH)).header("anthropic-beta", "one-2027-01-01,two-2027-01-01");
        request.header("anthropic-version", "2023-06-01").json(&ask(fields)).send()
    };
    let fields = json!({"fallbacks": ["other"], "thinking": {"type": "disabled", "more": 1}});
    assert!(refused(&server, &ask(fields.clone())).await.contains("fallbacks"));
    assert_eq!(beta(fields).await.unwrap().json::<Value>().await.unwrap()["content"], plain);
    let (_, message) = error_of(beta(json!({"mcp_servers": [{"url": "x"}]})).await.unwrap(), 400).await;
    assert!(message.contains("mcp_servers"), "{message}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn refusals_name_the_field() {
    let server = TestServer::start().await;
    let said = |content: Value| json!([{"role": "user", "content": content}]);
    let assistant =
        |content: Value| json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]);
    let image = json!([{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "base64", "data": ""}}]);
    let result = json!([{"type": "tool_result", "tool_use_id": "t", "content": image}]);
    let no_input = json!([{"type": "tool_use", "id": "t", "name": "n"}]);
    let input = |input: Value| json!([{"type": "tool_use", "id": "t", "name": "n", "input": input}]);
    let format = json!({"type": "json_schema", "schema": {"type": "object"}});
    for (place, fields) in [
        ("messages must have at least one", json!({"messages": []})),
        ("messages", json!({"messages": {}})),
        ("messages[0].content", json!({"messages": [{"role": "user"}]})),
        ("messages[0].role", json!({"messages": [{"role": "tool", "content": "a"}]})),
        ("messages[0].content must be a string", json!({"messages": said(json!(7))})),
        ("messages[0].content must be a string", json!({"messages": said(Value::Null)})),
        ("messages[0].content must not be empty", json!({"messages": said(json!(""))})),
        ("messages[0].content must not be empty", json!({"messages": said(json!([]))})),
        ("messages[0].content[0].type is missing", json!({"messages": said(json!([{}]))})),
        ("messages[0].content[0].text is missing", json!({"messages": said(json!([{"type": "text"}]))})),
        ("messages[0].content[0].text must be", json!({"messages": said(json!([{"type": "text", "text": 7}]))})),
        ("messages[0].content[1].type \"image\"", json!({"messages": said(image)})),
        ("messages[0].content[0].content[1].type \"image\"", json!({"messages": said(result)})),
        ("messages[0].content[0].type \"document\"", json!({"messages": said(json!([{"type": "document"}]))})),
        ("messages[0].content[0].type \"tool_use\"", json!({"messages": said(input(json!({})))})),
        ("messages[0].content[0].tool_use_id", json!({"messages": said(json!([{"type": "tool_result"}]))})),
        ("messages[1].content[0].input is missing", json!({"messages": assistant(no_input)})),
        ("messages[1].content[0].input must be an object", json!({"messages": assistant(input(json!([1])))})),
        ("a tool_result must follow", json!({"messages": assistant(input(json!({})))})),
        ("system[0].type \"image\"", json!({"system": [{"type": "image"}]})),
        ("system must be a string", json!({"system": 7})),
        ("max_tokens is missing", json!({"max_tokens": null})),
        ("max_tokens must be at least 1", json!({"max_tokens": 0})),
        ("max_tokens must be", json!({"max_tokens": -1})),
        ("max_tokens", json!({"max_tokens": 1e300})),
        ("tools[0].type \"bash_20250124\"", json!({"tools": [{"type": "bash_20250124", "name": "bash"}]})),
        ("tools[0].input_schema", json!({"tools": [{"name": "bash"}]})),
        ("tools[0].name", json!({"tools": [{"name": "a b", "input_schema": {}}]})),
        ("tools", json!({"tools": [{"name": "a", "input_schema": {}}]})),
        ("tool_choice", json!({"tool_choice": {"type": "any"}})),
        ("tool_choice.name", json!({"tool_choice": {"type": "tool"}})),
        ("tool_choice.type", json!({"tool_choice": {"type": "some"}})),
        ("tool_choice", json!({"tool_choice": "auto"})),
        ("thinking.type", json!({"thinking": {"type": "on"}})),
        ("output_config.format.schema", json!({"output_config": {"format": {"type": "json_schema"}}})),
        ("output_config.format.type", json!({"output_config": {"format": {"type": "text"}}})),
        ("stop_sequences", json!({"stop_sequences": [""]})),
        ("stop_sequences", json!({"stop_sequences": vec!["x"; 10_000]})),
        ("temperature", json!({"temperature": -1})),
        ("container", json!({"container": "c"})),
        ("context_management.edits[0]", json!({"context_management": {"edits": [{"type": "compact_20260112"}]}})),
        ("n is not supported", json!({"n": 2})),
        ("stop_sequences and stop exclude", json!({"stop_sequences": ["a"], "stop": "b"})),
        ("include_reasoning", json!({"include_reasoning": false})),
        ("parallel_tool_calls", json!({"tools": [{"name": "a", "input_schema": {}}], "parallel_tool_calls": false})),
        ("reasoning_effort", json!({"output_config": {"effort": "low"}, "reasoning_effort": "high"})),
        ("output_format", json!({"output_config": {"format": format}, "output_format": format})),
        ("guided_json", json!({"output_config": {"format": format}, "guided_json": {}})),
        ("guided_regex", json!({"output_config": {"format": format}, "guided_regex": "a"})),
        ("guided_choice", json!({"output_format": format, "guided_choice": ["a"]})),
        ("guided_grammar", json!({"output_config": {"format": format}, "guided_grammar": "start: \"a\""})),
        ("structured_outputs.regex", json!({"output_format": format, "structured_outputs": {"regex": "a"}})),
        ("response_format", json!({"response_format": {"type": "text"}})),
        ("colour", json!({"colour": "red"})),
    ] {
        let message = refused(&server, &ask(fields.clone())).await;
        assert!(message.contains(place), "{fields}: {message}");
    }
    let long = ask(json!({"messages": said(json!("day ".repeat(2000)))}));
    assert!(refused(&server, &long).await.contains("context length"));
    // Counting needs no limit, and counts more than fits.
    let mut counted = long.clone();
    counted.as_object_mut().unwrap().remove("max_tokens");
    assert!(server.post(COUNT, &counted).await["input_tokens"].as_u64().unwrap() > 1000);
    let (_, message) = error_of(server.send(COUNT, &json!({"messages": []})).await, 400).await;
    assert!(message.contains("at least one"), "{message}");
    server.assert_unharmed().await;
}

#[tokio::test]
async fn every_layers_errors_have_anthropics_form() {
    let limits = RequestLimits { max_body_bytes: 10_000, ..RequestLimits::default() };
    let server = TestServer::with_options(ServeOptions { limits, ..ServeOptions::default() }).await;
    let send = |kind: &str, body: &str| {
        server.client.post(server.url(PATH)).header("content-type", kind).body(body.as_bytes().to_vec()).send()
    };
    let model = server.send(PATH, &ask(json!({"model": "other"}))).await;
    let long = " ".repeat(20_000);
    let mut many = server.client.post(server.url(PATH));
    for i in 0..70 {
        many = many.header(&format!("x-{i}"), "x");
    }
    for (response, status, kind) in [
        (model, 404, "not_found_error"),
        (send("text/plain", "{}").await.unwrap(), 415, "invalid_request_error"),
        (send("application/json", "{").await.unwrap(), 400, "invalid_request_error"),
        (send("application/json", "[]").await.unwrap(), 400, "invalid_request_error"),
        (
            send("application/json", "{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}").await.unwrap(),
            400,
            "invalid_request_error",
        ),
        (send("application/json", &long).await.unwrap(), 413, "request_too_large"),
        (server.get(PATH).await, 405, "invalid_request_error"),
        (server.get("/v1/messages/batches").await, 404, "not_found_error"),
        (
            server
                .client
                .post(server.url(PATH))
                .header("origin", "http://evil.example")
                .json(&ask(json!({})))
                .send()
                .await
                .unwrap(),
            403,
            "permission_error",
        ),
    ] {
        assert_eq!(error_of(response, status).await.0, kind);
    }
    // This layer comes before the one that gives requests their ids.
    let response = many.json(&ask(json!({}))).send().await.unwrap();
    assert_eq!(response.status(), 431);
    assert_eq!(response.json::<Value>().await.unwrap()["error"]["type"], "invalid_request_error");
    // Other paths keep OpenAI's form.
    common::error_of(server.get("/v1/messagesandmore").await, 404).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn keys_come_in_either_header() {
    let server = TestServer::with_options(ServeOptions { api_key: Some("k".into()), ..ServeOptions::default() }).await;
    let send = |header: &str, value: &str| {
        server.client.post(server.url(PATH)).header(header, value).json(&ask(json!({}))).send()
    };
    for (header, value) in [("x-api-key", "k"), ("authorization", "Bearer k")] {
        assert_eq!(send(header, value).await.unwrap().status(), 200);
    }
    for (header, value) in [("x-api-key", "no"), ("x-api-key", ""), ("authorization", "k"), ("other", "k")] {
        assert_eq!(error_of(send(header, value).await.unwrap(), 401).await.0, "authentication_error");
    }
    let both = server.client.post(server.url(PATH)).header("x-api-key", "k").bearer_auth("none").json(&ask(json!({})));
    assert_eq!(both.send().await.unwrap().status(), 200);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_stream_may_end_with_an_error() {
    let limits = RequestLimits { request_timeout: Duration::from_millis(700), ..RequestLimits::default() };
    let server = TestServer::with_options(ServeOptions { limits, ..ServeOptions::default() }).await;
    // Repeats a short answer until one is too slow, which a busy machine may be at once.
    let body = ask(json!({"stream": true, "max_tokens": 400, "ignore_eos": true, "logit_bias": {}}));
    loop {
        let all: Vec<_> = (0..16).map(|_| server.send(PATH, &body)).collect();
        let mut ends = Vec::new();
        for response in futures_util::future::join_all(all).await {
            ends.push((response.status().as_u16(), response.text().await.unwrap()));
        }
        let broken = ends.iter().filter(|(status, text)| *status == 200 && !text.contains("message_stop"));
        let broken: Vec<_> = broken.collect();
        for (_, text) in &broken {
            let last = text.trim_end().rsplit("\n\n").next().unwrap();
            let data = last.strip_prefix("event: error\ndata: ").unwrap();
            let error: Value = serde_json::from_str(data).unwrap();
            assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("timeout_error")));
        }
        if !broken.is_empty() {
            break;
        }
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn failures_of_the_server_have_anthropics_types() {
    let model = poisoned::poisoned();
    let files = ModelFiles::directory(model.path()).unwrap();
    let template = Some("{% for m in messages %}{{ m.content }}{% endfor %}".to_owned());
    let options = ServeOptions { chat_template: template, ..ServeOptions::default() };
    let server = TestServer::with(&files, &Options::default(), options).await;
    let body =
        json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 400, "ignore_eos": true, "stream": true});
    let poison = json!({"prompt": [poisoned::POISON], "max_tokens": 5});
    loop {
        let mut response = server.send(PATH, &body).await;
        response.chunk().await.unwrap();
        server.refused("/v1/completions", &poison, 500).await;
        // A fast answer may have ended before the step that fails.
        if response.text().await.unwrap().contains("\"api_error\"") {
            break;
        }
        while server.get("/ready").await.status() != 200 {
            tokio::task::yield_now().await;
        }
    }
    while server.get("/ready").await.status() != 200 {
        tokio::task::yield_now().await;
    }
    std::fs::remove_file(model.path().join("config.json")).unwrap();
    server.refused("/v1/completions", &poison, 500).await;
    while server.get("/health").await.status() == 200 {
        tokio::task::yield_now().await;
    }
    let response = server.send(PATH, &body).await;
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(error_of(response, 529).await.0, "overloaded_error");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_cancels_it() {
    let server = TestServer::start().await;
    let mut response = server.send(PATH, &ask(json!({"stream": true, "max_tokens": 400, "ignore_eos": true}))).await;
    response.chunk().await.unwrap();
    drop(response);
    server.wait_for_metric("quire:requests_aborted_total", 1.0).await;
    server.assert_unharmed().await;
}
