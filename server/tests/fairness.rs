//! Fairness between requests, and requests that do not fit at once.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::collections::BTreeMap;

use common::{MODEL, PROMPT, TestServer};
use engine::ModelFiles;
use engine::{Llm, Options, SchedulerOptions};
use serde_json::{Value, json};
use server::{RequestLimits, ServeOptions};

const COMPLETIONS: &str = "/v1/completions";

/// Starts a server whose KV cache has `num_blocks` blocks.
async fn with_blocks(num_blocks: usize, options: ServeOptions) -> TestServer {
    let files = ModelFiles::bundled();
    let block = Llm::load(&files, &Options::default()).unwrap().kv_layout().block_bytes();
    let engine = Options { kv_memory: Some(num_blocks * block), ..Options::default() };
    TestServer::with(&files, &engine, options).await
}

#[tokio::test]
async fn a_small_request_is_answered_while_giants_are_in_progress() {
    let engine = Options {
        scheduler: SchedulerOptions { max_num_seqs: 16, ..SchedulerOptions::default() },
        ..Options::default()
    };
    let server = TestServer::with(&ModelFiles::bundled(), &engine, ServeOptions::default()).await;
    let giant = |n: usize| json!({"prompt": vec![PROMPT; 200], "n": n, "max_tokens": 400, "ignore_eos": true});
    let giants = [2, 5].map(|n| {
        let request = server.client.post(server.url(COMPLETIONS)).json(&giant(n)).send();
        tokio::spawn(request)
    });
    // All sequences that do not run are waiting.
    while server.metric("vllm:num_requests_waiting").await < 380.0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        let small = server.post(COMPLETIONS, &json!({"prompt": PROMPT, "max_tokens": 3, "temperature": 0})).await;
        assert_eq!(small["choices"][0]["text"], ", there lived");
        assert!(giants.iter().all(|giant| !giant.is_finished()));
    }
    // The small requests finished before the giants made much progress.
    assert!(server.metric("vllm:num_requests_waiting").await > 300.0);
    giants.iter().for_each(tokio::task::JoinHandle::abort);
    server.assert_unharmed().await;
}

#[tokio::test]
async fn choices_that_do_not_fit_at_once_are_all_complete() {
    let body = |stream: bool| json!({"prompt": PROMPT, "n": 40, "max_tokens": 60, "seed": 5, "ignore_eos": true, "stream": stream});
    let roomy = TestServer::start().await;
    let want = roomy.post(COMPLETIONS, &body(false)).await;
    let server = with_blocks(30, ServeOptions::default()).await;
    let answer = server.post(COMPLETIONS, &body(false)).await;
    assert_eq!(answer["choices"], want["choices"]);
    assert_eq!(answer["usage"]["completion_tokens"], 40 * 60);
    assert!(answer["choices"].as_array().unwrap().iter().all(|choice| choice["finish_reason"] == "length"));
    assert!(server.metric("vllm:num_preemptions_total").await > 0.0);

    let mut streamed: BTreeMap<u64, String> = BTreeMap::new();
    for event in server.stream(COMPLETIONS, &body(true)).await {
        let choice = &event["choices"][0];
        *streamed.entry(choice["index"].as_u64().unwrap()).or_default() += choice["text"].as_str().unwrap();
    }
    for (index, text) in streamed {
        assert_eq!(want["choices"][index as usize]["text"], text);
    }
    let stopped = json!({"prompt": PROMPT, "n": 40, "max_tokens": 60, "seed": 5, "stop": ["day", "."]});
    let want = roomy.post(COMPLETIONS, &stopped).await;
    assert_eq!(server.post(COMPLETIONS, &stopped).await["choices"], want["choices"]);
    server.assert_unharmed().await;
}

#[tokio::test]
async fn requests_that_cannot_fit_are_refused_with_numbers() {
    // The cache has 64 slots, and the last token needs none.
    let server = with_blocks(4, ServeOptions::default()).await;
    let prompt: Vec<u32> = (5..55).collect();
    let ask = |fields: Value| {
        let mut body = json!({"prompt": prompt.clone(), "ignore_eos": true, "temperature": 0});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let error = server.refused(COMPLETIONS, &ask(json!({"max_tokens": 16})), 400).await;
    assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("max_tokens")));
    let message = error["message"].as_str().unwrap();
    assert!(["65", "50", "16"].iter().all(|number| message.contains(number)), "{message}");
    let longest = server.post(COMPLETIONS, &ask(json!({"max_tokens": 15, "n": 3, "temperature": 1}))).await;
    assert_eq!(longest["usage"]["completion_tokens"], 45, "one after the other");
    // The default is 16 tokens if they fit.
    assert_eq!(server.post(COMPLETIONS, &ask(json!({}))).await["usage"]["completion_tokens"], 15);
    let error = server.refused(COMPLETIONS, &json!({"prompt": vec![5; 70], "max_tokens": 1}), 400).await;
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("65") && message.contains("70"), "{message}");

    let beams = ask(json!({"max_tokens": 15, "use_beam_search": true, "best_of": 3, "n": 1}));
    let mut beams = beams;
    beams.as_object_mut().unwrap().remove("temperature");
    let error = server.refused(COMPLETIONS, &beams, 400).await;
    assert_eq!(error["param"], "best_of");
    let message = error["message"].as_str().unwrap();
    let wide = ask(json!({"max_tokens": 15, "use_beam_search": true, "n": 3}));
    assert_eq!(server.refused(COMPLETIONS, &wide, 400).await["param"], "n");
    let model = &server.get_json("/v1/models").await["data"][0];
    assert_eq!(model["max_model_len"], 65, "as much as one sequence can have");
    assert!(["3 beams", "15 tokens", "50", "6 KV blocks", "4,"].iter().all(|n| message.contains(n)), "{message}");
    server.assert_unharmed().await;
}

#[tokio::test]
async fn sequences_are_bounded_by_request_and_in_the_queue() {
    let server = TestServer::start().await;
    let list = |prompts: usize, n: usize| json!({"prompt": vec![[5]; prompts], "n": n, "max_tokens": 1});
    let error = server.refused(COMPLETIONS, &list(1024, 256), 400).await;
    assert_eq!(error["param"], "n");
    let message = error["message"].as_str().unwrap();
    assert!(["1024", "256", "262144"].iter().all(|number| message.contains(number)), "{message}");
    let best = json!({"prompt": vec![[5]; 600], "n": 1, "best_of": 2, "max_tokens": 1});
    assert_eq!(server.refused(COMPLETIONS, &best, 400).await["param"], "best_of");
    let answer = server.post(COMPLETIONS, &list(1024, 1)).await;
    assert_eq!(answer["choices"].as_array().unwrap().len(), 1024);
    server.assert_unharmed().await;

    let limits = RequestLimits { max_queue_seqs: 20, max_request_seqs: 16, ..RequestLimits::default() };
    let engine = Options {
        scheduler: SchedulerOptions { max_num_seqs: 4, ..SchedulerOptions::default() },
        ..Options::default()
    };
    let options = ServeOptions { limits, ..ServeOptions::default() };
    let server = TestServer::with(&ModelFiles::bundled(), &engine, options).await;
    assert_eq!(server.refused(COMPLETIONS, &list(17, 1), 400).await["param"], "prompt");
    let long = json!({"prompt": vec![PROMPT; 4], "n": 4, "max_tokens": 400, "ignore_eos": true, "stream": true});
    let mut running = server.send(COMPLETIONS, &long).await;
    running.chunk().await.unwrap();
    // Of sixteen sequences, four run and twelve wait.
    let refused = server.send(COMPLETIONS, &list(3, 3)).await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    let taken = server.post(COMPLETIONS, &list(4, 2)).await;
    assert_eq!((taken["choices"].as_array().unwrap().len(), &taken["model"]), (8, &json!(MODEL)));
    drop(running);
    server.assert_unharmed().await;
    assert_eq!(server.metric("quire:requests_refused_total").await, 1.0);
}
