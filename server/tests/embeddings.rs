//! Embeddings over HTTP: the forms of input and answers, concurrency with generating requests, and refusals.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use common::{MODEL, PROMPT, TestServer};
use engine::ModelFiles;
use engine::Pooling;
use engine::{Options, SchedulerOptions};
use serde_json::{Value, json};
use server::ServeOptions;

const PATH: &str = "/v1/embeddings";

/// Returns the embeddings of an answer. They must be in order and have length 1.
fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!(MODEL)));
    let data = answer["data"].as_array().unwrap();
    let vector = |(index, item): (usize, &Value)| {
        assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(index)));
        let vector: Vec<f32> = serde_json::from_value(item["embedding"].clone()).unwrap();
        assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
        vector
    };
    data.iter().enumerate().map(vector).collect()
}

async fn embed(server: &TestServer, input: Value) -> Vec<Vec<f32>> {
    vectors(&server.post(PATH, &json!({"input": input})).await)
}

#[tokio::test]
async fn an_input_has_the_same_embedding_in_every_form() {
    let server = TestServer::start().await;
    let other = "One day, a fox";
    let ids = async |text: &str| server.post("/tokenize", &json!({"prompt": text})).await["tokens"].clone();
    let (ids, other_ids) = (ids(PROMPT).await, ids(other).await);
    let want = [embed(&server, json!(PROMPT)).await, embed(&server, json!(other)).await].concat();
    assert_ne!(want[0], want[1]);
    assert_eq!(embed(&server, json!([PROMPT, other])).await, want);
    assert_eq!(embed(&server, ids.clone()).await, want[..1]);
    assert_eq!(embed(&server, json!([ids, other_ids])).await, want);

    let body = json!({"input": [PROMPT, other], "model": MODEL, "encoding_format": "base64", "user": "me",
                      "dimensions": want[0].len()});
    let answer = server.post(PATH, &body).await;
    for (item, want) in answer["data"].as_array().unwrap().iter().zip(&want) {
        let bytes = BASE64_STANDARD.decode(item["embedding"].as_str().unwrap()).unwrap();
        let floats: Vec<f32> = bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(&floats, want);
    }
    let tokens = ids.as_array().unwrap().len() + other_ids.as_array().unwrap().len();
    assert_eq!(answer["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn other_requests_and_cached_blocks_do_not_change_embeddings() {
    let scheduler =
        SchedulerOptions { prefix_caching: true, max_batch_tokens: 16, max_num_seqs: 8, ..SchedulerOptions::default() };
    for pooling in [Pooling::Last, Pooling::Mean] {
        let texts: Vec<String> = (0..12).map(|i| format!("{} {i}", "A cat sat on a mat. ".repeat(5 + i))).collect();
        let plain = ServeOptions { pooling, ..ServeOptions::default() };
        let alone = TestServer::with_options(plain.clone()).await;
        let mut want = Vec::new();
        for text in &texts {
            want.extend(embed(&alone, json!(text)).await);
        }
        alone.stop().await.unwrap();
        let options = Options { scheduler, ..Options::default() };
        let server = TestServer::with(&ModelFiles::bundled(), &options, plain).await;
        let generate = json!({"prompt": [PROMPT, texts[3]], "max_tokens": 40, "temperature": 0, "ignore_eos": true});
        let (story, got, again) = tokio::join!(
            server.post("/v1/completions", &generate),
            embed(&server, json!(texts)),
            embed(&server, json!(texts)),
        );
        assert_eq!(story["choices"].as_array().unwrap().len(), 2);
        assert!(got == want && again == want, "{pooling:?}");
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn the_last_token_and_the_mean_are_the_same_for_one_token_alone() {
    let with = async |pooling| TestServer::with_options(ServeOptions { pooling, ..ServeOptions::default() }).await;
    let (last, mean) = (with(Pooling::Last).await, with(Pooling::Mean).await);
    assert_eq!(embed(&last, json!([7])).await, embed(&mean, json!([7])).await);
    assert_ne!(embed(&last, json!([7, 8])).await, embed(&mean, json!([7, 8])).await);
    last.stop().await.unwrap();
    mean.stop().await.unwrap();
}

#[tokio::test]
async fn invalid_inputs_are_refused() {
    let server = TestServer::start().await;
    let refused = [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [[]]}), "input"),
        (json!({"input": {"text": "a"}}), "input"),
        (json!({"input": [1_000_000]}), "input"),
        (json!({"input": "a", "dimensions": 3}), "dimensions"),
        (json!({"input": "a", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "a", "model": "another"}), "model"),
        (json!({"input": "a", "temperature": 1}), "temperature"),
    ];
    for (body, param) in refused {
        let status = if param == "model" { 404 } else { 400 };
        let error = server.refused(PATH, &body, status).await;
        assert_eq!(error["param"], param, "{body}: {error}");
    }
    let long = server.refused(PATH, &json!({"input": ["a", "day ".repeat(2000)]}), 400).await;
    assert_eq!((&long["code"], &long["param"]), (&json!("context_length_exceeded"), &json!("input")));
    assert_eq!(embed(&server, json!(vec![7; 512])).await.len(), 1, "all positions can be used");
    server.stop().await.unwrap();
}
