//! Endpoints for operators: health, models, metrics, state and the API description.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use common::{MODEL, PROMPT, TestServer, error_of};
use engine::ModelFiles;
use engine::Options;
use serde_json::{Value, json};
use server::ServeOptions;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A test that holds this lock keeps the model from being loaded.
static LOADING: Mutex<()> = Mutex::new(());

#[tokio::test]
#[allow(clippy::await_holding_lock)] // the thread that waits for it is not one of the runtime's
async fn a_server_that_loads_and_warms_up_is_not_ready() {
    let wait = || -> server::Progress { Box::new(|_, _| drop(LOADING.lock().unwrap_or_else(PoisonError::into_inner))) };
    let options = ServeOptions { progress: wait, ..ServeOptions::default() };
    let engine = Options { warmup: true, ..Options::default() };
    let held = LOADING.lock().unwrap();
    let server = TestServer::loading(&ModelFiles::bundled(), &engine, options).await;
    error_of(server.get("/ready").await, 503).await;
    drop(held);
    while server.get("/ready").await.status() != 200 {
        tokio::task::yield_now().await;
    }
    let body = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 5});
    assert_eq!(server.post(COMPLETIONS, &body).await["usage"]["completion_tokens"], 5);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn operators_see_models_and_metrics() {
    let server = TestServer::start().await;
    for path in ["/health", "/ready"] {
        assert_eq!(server.get(path).await.status(), 200, "{path}");
    }
    assert_eq!(server.get_json("/version").await, json!({"version": env!("CARGO_PKG_VERSION")}));
    let models = server.get_json("/v1/models").await;
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!(MODEL)));
    assert_eq!(server.get_json(&format!("/v1/models/{MODEL}")).await, models["data"][0]);
    let missing = error_of(server.get("/v1/models/facebook/opt-13b").await, 404).await;
    assert_eq!(missing["code"], "model_not_found");
    error_of(server.get("/v2").await, 404).await;
    error_of(server.get(COMPLETIONS).await, 405).await;

    let body = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 10, "stream": true});
    server.stream(COMPLETIONS, &body).await;
    server.wait_for_metric("vllm:num_requests_running", 0.0).await;
    for (name, value) in [
        ("vllm:prompt_tokens_total", 5.0),
        ("vllm:generation_tokens_total", 10.0),
        ("vllm:time_to_first_token_seconds_count", 1.0),
        ("vllm:time_per_output_token_seconds_count", 9.0),
        ("vllm:e2e_request_latency_seconds_count", 1.0),
        ("vllm:request_queue_time_seconds_count", 1.0),
        ("vllm:request_prefill_time_seconds_count", 1.0),
        ("vllm:request_decode_time_seconds_count", 1.0),
        ("vllm:request_inference_time_seconds_count", 1.0),
        ("vllm:num_preemptions_total", 0.0),
        ("vllm:kv_cache_usage_perc", 0.0),
        ("quire:engine_steps_total", 10.0),
    ] {
        assert_eq!(server.metric(name).await, value, "{name}");
    }
    let text = server.get("/metrics").await.text().await.unwrap();
    let done = r#"vllm:request_success_total{model_name="opt-story-3m",engine="0",finished_reason="length"} 1"#;
    assert!(text.contains(done), "{text}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn request_ids_come_back() {
    let server = TestServer::start().await;
    let request = server.client.get(server.url("/health")).header("x-request-id", "mine-7");
    assert_eq!(request.send().await.unwrap().headers()["x-request-id"], "mine-7");
    let request = server.client.get(server.url("/health")).header("x-request-id", "long".repeat(100));
    let own = request.send().await.unwrap().headers()["x-request-id"].clone();
    assert_eq!(own.len(), 36, "{own:?} is not an id of the server's");
    server.stop().await.unwrap();
}

/// Expands the run-length encoded reference counts in a state.
fn reference_counts(state: &Value) -> Vec<u64> {
    let runs = state["refs"].as_array().unwrap().iter();
    let run = |run: &Value| vec![run[0].as_u64().unwrap(); run[1].as_u64().unwrap() as usize];
    runs.flat_map(run).collect()
}

/// While a request with two outputs runs, the state shows its blocks with their owners.
#[tokio::test]
async fn the_state_shows_shared_blocks() {
    let server = TestServer::start().await;
    let body = json!({"prompt": "Once upon a time, in a small village, there lived a young girl who had a red kite",
        "n": 2, "seed": 1, "max_tokens": 450, "ignore_eos": true, "stream": true});
    let mut response = server.send(COMPLETIONS, &body).await;
    response.chunk().await.unwrap();
    let state = server.get_json("/debug/state").await;
    let running = &state["running"][0];
    assert_eq!(running["sequences"].as_array().unwrap().len(), 2);
    let tables = [0, 1].map(|i| running["sequences"][i]["table"].as_array().unwrap().clone());
    assert_eq!(tables[0][0], tables[1][0], "the prompt's first block is shared");
    let refs = reference_counts(&state);
    assert_eq!(refs[tables[0][0].as_u64().unwrap() as usize], 2);
    assert_eq!(refs.len() as u64, state["num_blocks"].as_u64().unwrap());
    let held: BTreeSet<u64> = tables.iter().flatten().map(|id| id.as_u64().unwrap()).collect();
    let used = (0..refs.len() as u64).filter(|&id| refs[id as usize] > 0);
    assert!(used.eq(held), "the blocks in use are those in the tables: {state}");
    drop(response);
    server.assert_unharmed().await;
    // A state is cached for a short time.
    while server.get_json("/debug/state").await["refs"].as_array().unwrap().len() > 1 {
        tokio::task::yield_now().await;
    }
    server.stop().await.unwrap();
}

/// Checks that every field in the description is accepted, and no other.
#[tokio::test]
async fn the_description_names_exactly_the_supported_fields() {
    let server = TestServer::start().await;
    let description = server.get_json("/openapi.json").await;
    let schemas = &description["components"]["schemas"];
    let message = json!([{"role": "user", "content": PROMPT}]);
    for (path, schema, mut body) in [
        (COMPLETIONS, "CompletionRequest", json!({"prompt": PROMPT})),
        (CHAT, "ChatRequest", json!({"messages": message})),
    ] {
        body["max_tokens"] = 1.into();
        for field in schemas[schema]["properties"].as_object().unwrap().keys() {
            let mut body = body.clone();
            body.as_object_mut().unwrap().entry(field).or_insert(Value::Null);
            server.post(path, &body).await;
        }
        for field in ["suffix", "tools", "response_format", "guided_json"] {
            let mut body = body.clone();
            body[field] = json!("x");
            assert_eq!(server.refused(path, &body, 400).await["param"], field);
        }
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_everything": false});
        assert_eq!(server.refused(path, &body, 400).await["param"], "stream_options.include_everything");
    }
    server.stop().await.unwrap();
}
