//! The `/debug` endpoints for operators, and the effect of cancelling requests.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::path::Path;

use common::client::Response;
use common::{PROMPT, TestServer, alone, error_of};
use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Options, SchedulerOptions};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use server::{RequestLimits, ServeOptions};

const COMPLETIONS: &str = "/v1/completions";

/// Starts a server that runs at most `max_num_seqs` sequences at a time. One request may use all of them.
async fn narrow(max_num_seqs: usize) -> TestServer {
    let engine = Options {
        scheduler: SchedulerOptions { max_num_seqs, max_request_share: 1.0, ..SchedulerOptions::default() },
        ..Options::default()
    };
    TestServer::with(&ModelFiles::bundled(), &engine, ServeOptions::default()).await
}

async fn state(server: &TestServer) -> Value {
    server.get_json("/debug/state").await
}

/// Waits until `queue` has `count` requests and returns their ids.
async fn ids(server: &TestServer, queue: &str, count: usize) -> Vec<u64> {
    loop {
        let state = state(server).await;
        let requests = state[queue].as_array().unwrap();
        if requests.len() == count {
            return requests.iter().map(|r| r["id"].as_u64().unwrap()).collect();
        }
        tokio::task::yield_now().await;
    }
}

async fn cancel(server: &TestServer, id: &str) -> Response {
    let url = server.url(&format!("/debug/requests/{id}"));
    server.client.request(Method::DELETE, url).send().await.unwrap()
}

/// Returns the index, finish reason and text of each choice.
fn choices(answer: &Value) -> Vec<(u64, &str, &str)> {
    let all = answer["choices"].as_array().unwrap().iter();
    all.map(|c| (c["index"].as_u64().unwrap(), c["finish_reason"].as_str().unwrap(), c["text"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn a_prompt_that_waits_is_cancelled_and_the_others_are_answered() {
    let server = narrow(3).await;
    let body = json!({"prompt": [PROMPT, "One day", PROMPT], "n": 3, "temperature": 0, "max_tokens": 200,
                      "ignore_eos": true});
    let (answer, ()) = tokio::join!(server.post(COMPLETIONS, &body), async {
        let waiting = ids(&server, "waiting", 2).await;
        let now = state(&server).await;
        let begun = |queue: &str| now[queue].as_array().unwrap().iter().all(|r| r["begun"] == true);
        assert!(begun("running") && !begun("waiting") && now["swap_used"] == 0, "{now}");
        let id = waiting[0].to_string();
        assert_eq!(cancel(&server, &id).await.status(), StatusCode::NO_CONTENT);
        // The request is gone at once and cannot be cancelled twice.
        let error = error_of(cancel(&server, &id).await, 404).await;
        assert!(error["message"].as_str().unwrap().contains(&id), "{error}");
    });
    let params = SamplingParams { max_tokens: 200, ignore_eos: true, ..SamplingParams::default() };
    let whole = &alone(&ModelFiles::bundled(), PROMPT, &params).outputs[0].text;
    let want: Vec<(u64, &str, &str)> =
        (0..9).map(|i| if (3..6).contains(&i) { (i, "abort", "") } else { (i, "length", whole.as_str()) }).collect();
    assert_eq!(choices(&answer), want);
    assert_eq!(answer["usage"]["completion_tokens"], 6 * 200);
    server.wait_for_metric("quire:requests_aborted_total", 1.0).await;
    server.assert_unharmed().await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_stream_that_is_cancelled_ends_with_the_reason() {
    let server = TestServer::start().await;
    let mut body = json!({"prompt": [PROMPT, "One day"], "n": 2, "seed": 1, "max_tokens": 480, "ignore_eos": true});
    let alone = server.post(COMPLETIONS, &body).await;
    body["stream"] = true.into();
    let (events, ()) = tokio::join!(server.stream(COMPLETIONS, &body), async {
        let running = ids(&server, "running", 2).await;
        assert_eq!(cancel(&server, &running[0].to_string()).await.status(), StatusCode::NO_CONTENT);
    });
    let mut texts = [const { String::new() }; 4];
    let mut reasons = [const { Vec::new() }; 4];
    for choice in events.iter().flat_map(|e| e["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index].push_str(choice["text"].as_str().unwrap());
        reasons[index].extend(choice["finish_reason"].as_str());
    }
    assert_eq!(reasons, [["abort"], ["abort"], ["length"], ["length"]]);
    for (i, (_, _, whole)) in choices(&alone).into_iter().enumerate() {
        assert!(whole.starts_with(&texts[i]), "{:?} is no beginning of {whole:?}", texts[i]);
        assert_eq!(whole == texts[i], i >= 2, "choice {i}");
    }
    server.assert_unharmed().await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn cancelled_requests_have_all_their_choices() {
    let server = narrow(4).await;
    let long = json!({"prompt": PROMPT, "n": 4, "max_tokens": 480, "ignore_eos": true});
    let beams = json!({"prompt": PROMPT, "use_beam_search": true, "best_of": 4, "n": 3, "max_tokens": 400,
                       "ignore_eos": true});
    let best = json!({"prompt": PROMPT, "best_of": 4, "n": 2, "max_tokens": 400, "ignore_eos": true});
    let chat = json!({"messages": [{"role": "user", "content": PROMPT}], "n": 2, "max_tokens": 400,
                      "ignore_eos": true});
    let answers = tokio::join!(
        server.post(COMPLETIONS, &long),
        server.post(COMPLETIONS, &beams),
        server.post(COMPLETIONS, &best),
        server.post("/v1/chat/completions", &chat),
        async {
            for id in [ids(&server, "waiting", 3).await, ids(&server, "running", 1).await].concat() {
                assert_eq!(cancel(&server, &id.to_string()).await.status(), StatusCode::NO_CONTENT);
            }
        }
    );
    for (answer, count) in [(answers.0, 4), (answers.1, 3), (answers.2, 2), (answers.3, 2)] {
        let choices = answer["choices"].as_array().unwrap();
        let reasons: Vec<&str> = choices.iter().map(|c| c["finish_reason"].as_str().unwrap()).collect();
        assert_eq!(reasons, vec!["abort"; count], "{answer}");
    }
    server.assert_unharmed().await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn only_requests_in_progress_are_cancelled_and_only_with_the_key() {
    let server = TestServer::start().await;
    for id in ["0", "18446744073709551615", "18446744073709551616", "-1", "x", "%20"] {
        error_of(cancel(&server, id).await, 404).await;
    }
    error_of(server.get("/debug/requests/0").await, 405).await;
    server.assert_unharmed().await;
    server.stop().await.unwrap();

    let server = TestServer::with_options(ServeOptions { api_key: Some("key".into()), ..Default::default() }).await;
    error_of(cancel(&server, "0").await, 401).await;
    error_of(server.get("/debug/history").await, 401).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn the_state_shows_the_engine_and_the_counts() {
    let limits = RequestLimits { max_queue: 77, ..RequestLimits::default() };
    let server = TestServer::with_options(ServeOptions { limits, ..ServeOptions::default() }).await;
    let before = state(&server).await;
    assert_eq!(before["server"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&before["server"]["limits"]["max_queue"], &before["server"]["chat"]), (&json!(77), &json!(true)));
    assert!(before["server"]["uptime"].as_f64().unwrap() > 0.0);
    let engine = &before["engine"];
    assert_eq!((&engine["device"], &engine["kv_dtype"]), (&json!("CPU"), &json!("f32")));
    assert_eq!((&engine["max_len"], &engine["max_num_seqs"]), (&json!(512), &json!(256)));
    assert_eq!(before["counts"], json!({"finished": 0, "failed": 0, "refused": 0, "invalid": 0, "aborted": 0}));
    assert_eq!(before["latency"]["first_token_p95"], Value::Null);

    server.post(COMPLETIONS, &json!({"prompt": PROMPT, "n": 2, "max_tokens": 5, "ignore_eos": true})).await;
    server.refused(COMPLETIONS, &json!({"prompt": PROMPT, "unheard_of": 1}), 400).await;
    // The shown state may be up to 50 ms old.
    let after = loop {
        let state = state(&server).await;
        if state["counts"]["invalid"] == 1 {
            break state;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(after["counts"], json!({"finished": 1, "failed": 0, "refused": 0, "invalid": 1, "aborted": 0}));
    let finished = &after["finished"][0];
    assert_eq!((&finished["output_tokens"], &finished["ended"]), (&json!(10), &json!({"length": 2})));
    let prompt = server.post("/tokenize", &json!({"prompt": PROMPT})).await["count"].clone();
    assert_eq!(finished["prompt_tokens"], prompt);
    let latency = &after["latency"];
    assert_eq!((&latency["requests"], &latency["first_token_p95"]), (&json!(1), &finished["first_token"]));
    assert_eq!((&latency["per_token_p95"], &latency["whole_p95"]), (&finished["per_token"], &finished["time"]));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn refused_requests_are_listed_with_their_reasons_and_without_their_texts() {
    let server = TestServer::start().await;
    let secret = "a prompt that is nobody's business";
    let unknown = json!({"prompt": secret, "unheard_of": secret});
    let why = server.refused(COMPLETIONS, &unknown, 400).await["message"].clone();
    server.refused(COMPLETIONS, &json!({"prompt": secret, "n": secret}), 400).await;
    server.refused(COMPLETIONS, &unknown, 400).await;
    let picture = json!({"type": "image_url", "image_url": {"url": secret}});
    let chat = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": secret}, picture]}]});
    server.refused("/v1/chat/completions", &chat, 400).await;
    server.refused(COMPLETIONS, &json!({"prompt": secret.repeat(200)}), 400).await;
    error_of(server.get("/v1/models/none").await, 404).await;

    let state = state(&server).await;
    let refused = state["refused"].as_array().unwrap();
    let found: Vec<_> = refused.iter().map(|r| (r["endpoint"].as_str().unwrap(), &r["status"], &r["times"])).collect();
    let (one, two) = (&json!(1), &json!(2));
    let (bad, missing) = (&json!(400), &json!(404));
    let wanted = [
        ("/v1/models/{*model}", missing, one),
        (COMPLETIONS, bad, one),
        ("/v1/chat/completions", bad, one),
        (COMPLETIONS, bad, two),
        (COMPLETIONS, bad, one),
    ];
    assert_eq!(found, wanted, "{state}");
    assert_eq!(refused[3]["reason"], why);
    assert!(refused[3]["at"].as_f64().unwrap() > 1e9);
    assert!(!state.to_string().contains("nobody"), "{state}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn history_is_recorded_without_a_viewer() {
    let server = TestServer::start().await;
    server.post(COMPLETIONS, &json!({"prompt": PROMPT, "max_tokens": 20, "ignore_eos": true})).await;
    let history = loop {
        let history = server.get_json("/debug/history").await;
        if history["samples"].as_array().unwrap().len() > 1 {
            break history;
        }
        tokio::task::yield_now().await;
    };
    let fields: Vec<&str> = history["fields"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    let field = |name: &str| fields.iter().position(|f| *f == name).unwrap();
    let samples = history["samples"].as_array().unwrap();
    let sum = |name: &str| samples.iter().map(|s| s[field(name)].as_f64().unwrap()).sum::<f64>();
    assert!(sum("generated_tokens") > 0.0 && sum("requests") > 0.0, "{history}");
    assert!(samples[1][field("first_token_p95")].as_f64().unwrap() > 0.0);
    let time = |i: usize| samples[i][0].as_f64().unwrap();
    assert!(time(0) < time(1));
    let rest = server.get_json(&format!("/debug/history?after={}", time(0))).await;
    assert_eq!(rest["samples"][0], samples[1], "only later samples");
    let error = error_of(server.get("/debug/history?after=noon").await, 400).await;
    assert_eq!(error["param"], "after");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn the_state_counts_pages_if_there_are_several_groups_of_layers() {
    let gemma = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/families/gemma3");
    let memory = 300_000;
    let options = Options { kv_memory: Some(memory), ..Options::default() };
    let server = TestServer::with(&ModelFiles::directory(gemma).unwrap(), &options, ServeOptions::default()).await;
    let state = state(&server).await;
    let facts = &state["engine"];
    let group = |layers, window, blocks| json!({"layers": layers, "heads": 2, "head_dim": 32, "window": window, "blocks_per_page": blocks});
    assert_eq!(facts["groups"], json!([group(3, Some(20), 1), group(1, None, 3)]));
    let (pages, bytes) = (state["num_blocks"].as_u64().unwrap(), facts["block_bytes"].as_u64().unwrap());
    assert_eq!((pages, bytes), (12, 24 << 10), "as many pages as fit {memory} bytes");
    assert_eq!((facts["swap_blocks"].as_u64(), state["refs"].clone()), (Some(pages), json!([[0, pages]])));
    server.stop().await.unwrap();
}
