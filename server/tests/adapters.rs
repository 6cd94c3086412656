//! Adapters: requests name them as their model, and clients load and unload them.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::TestServer;
use engine::{ModelFiles, Options};
use serde_json::{Value, json};
use server::{AdapterOptions, ServeOptions};

/// Writes a PEFT directory with an adapter of rank 1 for one projection of the bundled model. Its elements grow with
/// `size`.
fn write_adapter(directory: &Path, size: f32) {
    const MODULE: &str = "model.decoder.layers.0.fc2";
    let weights = ModelFiles::bundled().weights(None).unwrap();

    let shape = weights.shape(&format!("{MODULE}.weight")).unwrap();
    let (a, b) = (4 * shape[1], 4 * shape[0]);
    let name = |half: &str| format!("base_model.model.{MODULE}.lora_{half}.weight");
    let header = json!({
        name("A"): {"dtype": "F32", "shape": [1, shape[1]], "data_offsets": [0, a]},
        name("B"): {"dtype": "F32", "shape": [shape[0], 1], "data_offsets": [a, a + b]},
    })
    .to_string();
    // The same number in all columns of B would be taken away by the next norm.
    let numbers = std::iter::repeat_n(1f32, shape[1]).chain((0..shape[0]).map(|i| size * (i % 3) as f32));
    let elements: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    fs::create_dir_all(directory).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &elements].concat();
    fs::write(directory.join("adapter_model.safetensors"), file).unwrap();
    let config = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "bias": "none", "target_modules": ["fc2"]});
    fs::write(directory.join("adapter_config.json"), config.to_string()).unwrap();
}

/// A server with the adapter `tales` in `folder/tales`.
async fn start(folder: &Path, adapters: AdapterOptions) -> TestServer {
    write_adapter(&folder.join("tales"), 0.3);
    let engine = Options { lora_modules: vec![("tales".into(), folder.join("tales"))], ..Options::default() };
    TestServer::with(&ModelFiles::bundled(), &engine, ServeOptions { adapters, ..ServeOptions::default() }).await
}

fn runtime(dir: Option<PathBuf>) -> AdapterOptions {
    AdapterOptions { runtime: true, dir }
}

fn ask(model: &str) -> Value {
    json!({"model": model, "prompt": common::PROMPT.repeat(20), "max_tokens": 12, "temperature": 0, "ignore_eos": true})
}

/// The text of an answer, and the number of its cached tokens.
async fn answer(server: &TestServer, model: &str) -> (String, u64) {
    let answer = server.post("/v1/completions", &ask(model)).await;
    assert_eq!(answer["model"], model);
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    (answer["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
}

async fn names(server: &TestServer) -> Vec<String> {
    let models = server.get_json("/v1/models").await;
    models["data"].as_array().unwrap().iter().map(|card| card["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn requests_name_adapters_in_every_api() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), AdapterOptions::default()).await;
    let base = names(&server).await[0].clone();
    assert_eq!(names(&server).await, [base.clone(), "tales".into()]);
    let card = server.get_json("/v1/models/tales").await;
    assert_eq!((&card["id"], &card["parent"]), (&json!("tales"), &json!(base)));
    let (plain, tales) = (answer(&server, &base).await.0, answer(&server, "tales").await.0);
    assert_ne!(plain, tales, "the adapter changes the answer");
    assert_eq!([answer(&server, &base).await.0, answer(&server, "tales").await.0], [plain, tales]);
    let messages = json!([{"role": "user", "content": common::PROMPT}]);
    for (path, mut body) in [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2})),
        ("/v1/responses", json!({"input": common::PROMPT, "max_output_tokens": 2})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 2})),
        ("/v1/embeddings", json!({"input": common::PROMPT})),
    ] {
        body["model"] = "tales".into();
        assert_eq!(server.post(path, &body).await["model"], "tales", "{path}");
        body["model"] = "law".into();
        assert_eq!(server.send(path, &body).await.status(), 404, "{path}");
    }
}

#[tokio::test]
async fn an_adapter_is_replaced_and_unloaded() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), runtime(None)).await;
    let (path, first) = (folder.path().join("tales"), answer(&server, "tales").await.0);
    assert!(answer(&server, "tales").await.1 > 0, "its prompt is cached");
    write_adapter(&path, -0.3);
    assert_eq!(answer(&server, "tales").await.0, first, "the files are read only once");
    let load = json!({"lora_name": "tales", "lora_path": path});
    assert_eq!(server.send("/v1/load_lora_adapter", &load).await.status(), 200);
    let (second, cached) = answer(&server, "tales").await;
    assert_ne!(second, first);
    assert_eq!(cached, 0, "the blocks of another adapter of this name are not found");
    let unload = json!({"lora_name": "tales"});
    assert_eq!(server.send("/v1/unload_lora_adapter", &unload).await.status(), 200);
    server.refused("/v1/completions", &ask("tales"), 404).await;
    server.refused("/v1/unload_lora_adapter", &unload, 404).await;
    assert_eq!(names(&server).await.len(), 1);
    server.assert_unharmed().await;
}

#[tokio::test]
async fn clients_load_only_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, outside) = (folder.path().join("all/law"), folder.path().join("secret"));
    write_adapter(&inside, 0.2);
    write_adapter(&outside, 0.2);
    fs::create_dir(folder.path().join("all/broken")).unwrap();
    let load = |name: &str, path: &Path| json!({"lora_name": name, "lora_path": path});
    let closed = start(folder.path(), AdapterOptions::default()).await;
    closed.refused("/v1/load_lora_adapter", &load("law", &inside), 404).await;
    closed.refused("/v1/unload_lora_adapter", &json!({"lora_name": "tales"}), 404).await;
    let server = start(folder.path(), runtime(Some(folder.path().join("all")))).await;
    assert_eq!(server.send("/v1/load_lora_adapter", &load("law", &inside)).await.status(), 200);
    let base = names(&server).await[0].clone();
    let mut refusals = Vec::new();
    for path in [outside, folder.path().join("all/../secret"), folder.path().join("none"), "/etc/passwd".into()] {
        refusals.push(server.refused("/v1/load_lora_adapter", &load("x", &path), 400).await);
    }
    assert!(
        refusals.iter().all(|refusal| *refusal == refusals[0]),
        "they tell nothing about other files: {refusals:?}"
    );
    for (name, path) in [("", &inside), (&*base, &inside), ("x", &folder.path().join("all/broken"))] {
        server.refused("/v1/load_lora_adapter", &load(name, path), 400).await;
    }
    assert_eq!(names(&server).await, [base, "law".into(), "tales".into()]);
}

#[tokio::test]
async fn an_adapter_cannot_have_the_models_name() {
    let (files, path) = (ModelFiles::bundled(), "nowhere".into());
    let engine = Options { lora_modules: vec![(files.name().to_owned(), path)], ..Options::default() };
    let error = server::Server::bind(&files, &engine, &ServeOptions { port: 0, ..ServeOptions::default() }).await;
    assert!(error.unwrap_err().to_string().contains("model's name"));
}

/// Without `--lora-dir`, clients may load from the folders of the adapters that are named at the start.
#[tokio::test]
async fn the_key_is_needed_to_load_adapters() {
    let folder = tempfile::tempdir().unwrap();
    write_adapter(&folder.path().join("tales"), 0.3);
    let engine = Options { lora_modules: vec![("tales".into(), folder.path().join("tales"))], ..Options::default() };
    let options = ServeOptions { adapters: runtime(None), api_key: Some("key".into()), ..ServeOptions::default() };
    let server = TestServer::with(&ModelFiles::bundled(), &engine, options).await;
    let load = json!({"lora_name": "x", "lora_path": folder.path().join("tales")});
    let post = |key: &'static str| {
        common::client::Client::new().post(server.url("/v1/load_lora_adapter")).bearer_auth(key).json(&load).send()
    };
    assert_eq!(post("other").await.unwrap().status(), 401);
    assert_eq!(post("key").await.unwrap().status(), 200);
}
