//! How many tokens of prompts were prefix hits, as clients are told.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::{PROMPT, TestServer};
use engine::llm::{Options, SchedulerOptions};
use engine::load::ModelFiles;
use serde_json::{Value, json};
use server::ServeOptions;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Tokens of the prompts, and those of them that were prefix hits.
fn prompt_tokens(usage: &Value) -> (u64, u64) {
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (usage["prompt_tokens"].as_u64().unwrap(), cached)
}

/// The usage at the end of a stream.
fn last_usage(events: &[Value]) -> Value {
    let (last, others) = events.split_last().unwrap();
    assert!(others.iter().all(|event| event["usage"].is_null()));
    last["usage"].clone()
}

/// What a prompt of so many tokens shares with an equal one before it: whole blocks, and at least one token is computed.
fn shared(tokens: u64) -> u64 {
    (tokens - 1) / 16 * 16
}

#[tokio::test]
async fn usage_counts_the_prefix_hits_of_prompts() {
    let server = TestServer::start().await;
    let prompt = [PROMPT; 12].join(" and ");
    let mut body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0});
    let (tokens, cached) = prompt_tokens(&server.post(COMPLETIONS, &body).await["usage"]);
    assert!(tokens > 40 && cached == 0, "{tokens} tokens, {cached} cached");
    assert_eq!(prompt_tokens(&server.post(COMPLETIONS, &body).await["usage"]), (tokens, shared(tokens)));
    // The outputs of a prompt count it once, and prompts are added up.
    body["n"] = 3.into();
    body["temperature"] = 1.into();
    body["prompt"] = json!([prompt, prompt, "A fox"]);
    let (all, cached) = prompt_tokens(&server.post(COMPLETIONS, &body).await["usage"]);
    assert!(all > 2 * tokens && cached == 2 * shared(tokens), "{all} tokens, {cached} cached");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn streams_end_with_the_prefix_hits() {
    let server = TestServer::start().await;
    let content = [PROMPT; 12].join(" and ");
    let options = json!({"include_usage": true});
    let completion = json!({"prompt": content, "max_tokens": 3, "stream": true, "stream_options": options});
    let messages = json!([{"role": "user", "content": format!("One day, {content}")}]);
    let chat = json!({"messages": messages, "max_tokens": 3, "stream": true, "stream_options": options});
    for (path, body) in [(COMPLETIONS, completion), (CHAT, chat)] {
        let (tokens, cached) = prompt_tokens(&last_usage(&server.stream(path, &body).await));
        assert_eq!(cached, 0, "{path}");
        assert_eq!(prompt_tokens(&last_usage(&server.stream(path, &body).await)), (tokens, shared(tokens)), "{path}");
        let mut whole = body.clone();
        whole["stream"] = false.into();
        whole.as_object_mut().unwrap().remove("stream_options");
        assert_eq!(prompt_tokens(&server.post(path, &whole).await["usage"]), (tokens, shared(tokens)), "{path}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn without_prefix_caching_nothing_is_a_hit() {
    let engine = Options {
        scheduler: SchedulerOptions { prefix_caching: false, ..SchedulerOptions::default() },
        ..Options::default()
    };
    let server = TestServer::with(&ModelFiles::bundled(), &engine, ServeOptions::default()).await;
    let prompt = [PROMPT; 12].join(" and ");
    let body = json!({"prompt": prompt, "max_tokens": 3});
    for _ in 0..2 {
        assert_eq!(prompt_tokens(&server.post(COMPLETIONS, &body).await["usage"]).1, 0);
    }
    server.stop().await.unwrap();
}
