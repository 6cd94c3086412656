//! A failing engine step, caused by a model with a token that it cannot compute.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::fs;

use common::poisoned::{POISON, poisoned};
use common::{TestServer, error_of};
use engine::ModelFiles;
use engine::{Options, SchedulerOptions};
use serde_json::{Value, json};
use server::ServeOptions;

const COMPLETIONS: &str = "/v1/completions";

/// Waits until a request with a prompt of this length is in the queue.
async fn wait_until_queued(server: &TestServer, prompt_tokens: usize) {
    let queued =
        |state: &Value| state["waiting"].as_array().unwrap().iter().any(|r| r["prompt_tokens"] == prompt_tokens);
    while !queued(&server.get_json("/debug/state").await) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_failing_step_fails_only_its_own_requests() {
    let model = poisoned();
    let files = ModelFiles::directory(model.path()).unwrap();
    // One request runs at a time, so that another waits.
    let engine = Options {
        scheduler: SchedulerOptions { max_num_seqs: 1, ..SchedulerOptions::default() },
        ..Options::default()
    };
    let server = TestServer::with(&files, &engine, ServeOptions::default()).await;
    let good = json!({"prompt": [5, 6, 7], "max_tokens": 5, "temperature": 0, "ignore_eos": true});
    let bad = json!({"prompt": [5, POISON], "max_tokens": 5, "temperature": 0});
    let long = json!({"prompt": vec![[5]; 100], "max_tokens": 1000, "temperature": 0, "ignore_eos": true,
        "stream": true});
    let want = server.post(COMPLETIONS, &good).await["choices"].clone();

    for _ in 0..3 {
        // The first request runs its prompts one by one until its client disconnects. The others wait in this order.
        let mut running = server.send(COMPLETIONS, &long).await;
        running.chunk().await.unwrap();
        let send = |body: &Value| tokio::spawn(server.client.post(server.url(COMPLETIONS)).json(body).send());
        let failing = send(&bad);
        wait_until_queued(&server, 2).await;
        let surviving = send(&good);
        wait_until_queued(&server, 3).await;
        drop(running);

        let error = error_of(failing.await.unwrap().unwrap(), 500).await;
        assert_eq!(error["type"], "server_error");
        let answer: Value = surviving.await.unwrap().unwrap().json().await.unwrap();
        assert_eq!(answer["choices"], want, "the next engine answers the waiting requests");
    }
    assert_eq!(server.metric("quire:engine_failures_total").await, 3.0);
    server.wait_for_metric("quire:kv_blocks_used", 0.0).await;
    assert_eq!(server.get("/health").await.status(), 200);
    // The state shows the lost requests. A cached state from before the last answer may still show requests in
    // progress.
    let state = loop {
        let state = server.get_json("/debug/state").await;
        if state["running"] == json!([]) && state["waiting"] == json!([]) {
            break state;
        }
    };
    let lost = state["finished"].as_array().unwrap().iter().filter(|r| r["ended"] == json!({"error": 1})).count();
    assert_eq!((lost, &state["counts"]["failed"]), (3, &json!(3)));
    server.stop().await.unwrap();
}

/// If the model cannot be reloaded, the server keeps running and reports that.
#[tokio::test]
async fn a_server_without_a_model_to_reload_reports_it() {
    let model = poisoned();
    let files = ModelFiles::directory(model.path()).unwrap();
    let server = TestServer::with(&files, &Options::default(), ServeOptions::default()).await;
    fs::remove_file(model.path().join("config.json")).unwrap();
    server.refused(COMPLETIONS, &json!({"prompt": [5, POISON], "max_tokens": 5}), 500).await;
    while server.get("/health").await.status() == 200 {
        tokio::task::yield_now().await;
    }
    error_of(server.get("/health").await, 503).await;
    error_of(server.get("/ready").await, 503).await;
    server.refused(COMPLETIONS, &json!({"prompt": [5]}), 503).await;
    server.stop().await.unwrap();
}
