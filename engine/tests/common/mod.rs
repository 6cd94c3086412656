//! The reference models.

#![allow(dead_code)] // not every test needs all of it

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Every reference model.
pub const MODELS: [&str; 10] =
    ["gpt2", "llama2", "llama3", "llama3-tied", "mistral", "opt-350m-like", "opt-bin", "opt-pre", "qwen2", "qwen3"];

/// The directory of a reference model.
pub fn model(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/golden")).join(name)
}

/// A JSON file of a reference model.
pub fn json(name: &str, file: &str) -> Value {
    let path = model(name).join(file);
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// A JSON list of token ids.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}
