//! Token counts that clients see: the number of tokens, the prefix hits of prompts, and token ids.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use common::{PROMPT, TestServer};
use engine::ModelFiles;
use engine::{Options, SchedulerOptions};
use serde_json::{Value, json};
use server::ServeOptions;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Returns the number of prompt tokens and how many of them were prefix hits.
fn prompt_tokens(usage: &Value) -> (u64, u64) {
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (usage["prompt_tokens"].as_u64().unwrap(), cached)
}

/// Returns the usage at the end of a stream.
fn last_usage(events: &[Value]) -> Value {
    let (last, others) = events.split_last().unwrap();
    assert!(others.iter().all(|event| event["usage"].is_null()));
    last["usage"].clone()
}

/// Returns how many tokens a prompt of this length shares with an equal earlier prompt. Only whole blocks are shared,
/// and at least one token is computed.
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
async fn without_prefix_caching_there_are_no_hits() {
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

/// Returns a streamed request for each of the two endpoints.
fn streamed(fields: &Value) -> [(&'static str, Value); 2] {
    let messages = json!([{"role": "user", "content": PROMPT}]);
    [(COMPLETIONS, json!({"prompt": PROMPT})), (CHAT, json!({"messages": messages}))].map(|(path, mut body)| {
        let own = body.as_object_mut().unwrap();
        own.extend(
            json!({"max_tokens": 9, "seed": 5, "n": 2, "temperature": 1, "stream": true}).as_object().unwrap().clone(),
        );
        own.extend(fields.as_object().unwrap().clone());
        (path, body)
    })
}

fn whole(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = false.into();
    body.as_object_mut().unwrap().remove("stream_options");
    body
}

#[tokio::test]
async fn every_chunk_counts_the_tokens_of_its_choice() {
    let server = TestServer::start().await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    for (path, body) in streamed(&json!({"stream_options": options, "ignore_eos": true})) {
        let events = server.stream(path, &body).await;
        let (last, chunks) = events.split_last().unwrap();
        assert!(last["choices"].as_array().unwrap().is_empty() && last["usage"]["completion_tokens"] == 18, "{last}");
        let mut counts = [0; 2];
        for chunk in chunks {
            let (choice, usage) = (&chunk["choices"][0], &chunk["usage"]);
            let count = &mut counts[choice["index"].as_u64().unwrap() as usize];
            let now = usage["completion_tokens"].as_u64().unwrap();
            assert!(now >= *count && usage["prompt_tokens"] == last["usage"]["prompt_tokens"], "{path} {chunk}");
            assert_eq!(usage["total_tokens"], usage["prompt_tokens"].as_u64().unwrap() + now);
            *count = now;
        }
        assert_eq!(counts, [9, 9], "{path}");
    }
    // Without a count at the end, chunks have no counts either.
    for (path, body) in streamed(&json!({"stream_options": {"continuous_usage_stats": true}})) {
        assert!(server.stream(path, &body).await.iter().all(|event| event["usage"].is_null()), "{path}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn the_ids_of_tokens_are_reported() {
    let server = TestServer::start().await;
    for fields in [json!({"return_token_ids": true}), json!({"return_token_ids": true, "echo": true})] {
        for (path, body) in streamed(&fields) {
            if path == CHAT && fields.get("echo").is_some() {
                continue;
            }
            let answer = server.post(path, &whole(&body)).await;
            let choices = answer["choices"].as_array().unwrap();
            let prompt = |of: &Value| {
                if path == CHAT { answer["prompt_token_ids"].clone() } else { of["prompt_token_ids"].clone() }
            };
            let count = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
            let (mut ids, mut prompts) = (vec![Vec::new(); 2], Vec::new());
            for event in server.stream(path, &body).await {
                let choice = &event["choices"][0];
                let of = &mut ids[choice["index"].as_u64().unwrap() as usize];
                of.extend(choice["token_ids"].as_array().cloned().unwrap_or_default());
                prompts.extend(
                    [&event["prompt_token_ids"], &choice["prompt_token_ids"]]
                        .into_iter()
                        .find(|v| v.is_array())
                        .cloned(),
                );
            }
            for (choice, ids) in choices.iter().zip(ids) {
                assert_eq!(choice["token_ids"], json!(ids), "{path}");
                assert_eq!(prompt(choice).as_array().unwrap().len(), count, "{path}");
                let text = server.post("/detokenize", &json!({"tokens": ids})).await["prompt"].clone();
                let said = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
                assert!(said.ends_with(text.as_str().unwrap().trim_end_matches("</s>")), "{said} {text}");
            }
            assert_eq!(prompts, vec![prompt(&choices[0]); if path == CHAT { 1 } else { 2 }], "{path}");
        }
    }
    for (path, body) in streamed(&json!({})) {
        let answer = server.post(path, &whole(&body)).await.to_string();
        assert!(!answer.contains("token_ids"), "{answer}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn logprobs_name_tokens_by_their_ids_if_asked() {
    let server = TestServer::start().await;
    let fields = json!({"return_token_ids": true, "return_tokens_as_token_ids": true, "n": 1});
    for (path, mut body) in streamed(&fields) {
        let logprobs = if path == CHAT { json!({"logprobs": true, "top_logprobs": 2}) } else { json!({"logprobs": 2}) };
        body.as_object_mut().unwrap().extend(logprobs.as_object().unwrap().clone());
        let names = |choice: &Value| -> Vec<Value> {
            let list = &choice["logprobs"]["content"];
            let chat = list.as_array().map(|all| all.iter().map(|token| token["token"].clone()).collect());
            chat.unwrap_or_else(|| choice["logprobs"]["tokens"].as_array().cloned().unwrap_or_default())
        };
        let answer = server.post(path, &whole(&body)).await;
        let choice = &answer["choices"][0];
        let ids = choice["token_ids"].as_array().unwrap().iter();
        let want: Vec<Value> = ids.map(|id| json!(format!("token_id:{id}"))).collect();
        assert_eq!(names(choice), want, "{path}");
        let top = &choice["logprobs"]["top_logprobs"][0];
        assert!(path == CHAT || top.as_object().unwrap().keys().all(|key| key.starts_with("token_id:")), "{top}");
        let streamed: Vec<Value> =
            server.stream(path, &body).await.iter().flat_map(|event| names(&event["choices"][0])).collect();
        assert_eq!(streamed, want, "{path}");
        if path == CHAT {
            let token = &choice["logprobs"]["content"][0];
            let plain = server
                .post(
                    path,
                    &whole(&{
                        let mut b = body.clone();
                        b["return_tokens_as_token_ids"] = false.into();
                        b
                    }),
                )
                .await;
            assert_eq!(token["bytes"], plain["choices"][0]["logprobs"]["content"][0]["bytes"], "bytes are the text's");
        }
    }
    server.stop().await.unwrap();
}
