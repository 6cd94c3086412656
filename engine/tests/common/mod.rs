//! The reference models.

#![allow(dead_code)] // not every test uses all of it

use std::path::{Path, PathBuf};

use engine::tools::tokenizer::Tokenizer;
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

/// Checks a tokenizer against the results of Hugging Face's tokenizer, and against the prompts.
pub fn assert_tokenizer(name: &str, tokenizer: &Tokenizer, golden: &Value) {
    assert_eq!(tokenizer.vocab_size() as u64, golden["tokenizer_size"].as_u64().unwrap(), "{name}");
    let cases = golden["tokenizer_cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), ids(&case["ids"]), "{name}: {text:?}");
        let plain = ids(&case["ids_no_special"]);
        assert_eq!(tokenizer.encode_plain(text).unwrap(), plain, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&plain, false).unwrap(), case["decoded"].as_str().unwrap(), "{name}");
        let skipped = tokenizer.decode(&ids(&case["ids"]), true).unwrap();
        assert_eq!(skipped, case["decoded_skip_special"].as_str().unwrap(), "{name}");
    }
    for prompt in golden["prompts"].as_array().unwrap() {
        assert_eq!(tokenizer.encode(prompt["text"].as_str().unwrap()).unwrap(), ids(&prompt["ids"]), "{name}");
    }
}

/// A JSON list of token ids.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}
