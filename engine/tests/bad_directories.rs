//! Model directories with missing or contradictory files.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;

use common::model;
use engine::tools::load::{ModelFiles, Weights};
use engine::tools::tokenizer::Tokenizer;

fn message<T>(result: engine::Result<T>) -> String {
    let message = result.err().unwrap().to_string();
    assert!(!message.contains('\n') && message.len() < 400, "{message}");
    message
}

/// A copy of a reference model's files.
fn copy(name: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(model(name)).unwrap() {
        let entry = entry.unwrap();
        fs::write(directory.path().join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
    }
    directory
}

fn weights(path: &Path) -> engine::Result<Weights> {
    ModelFiles::directory(path).unwrap().weights(None)
}

#[test]
fn invalid_model_directories_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = directory.path().join("nowhere");
    assert!(message(ModelFiles::directory(&nowhere)).contains("nowhere"));
    assert!(message(ModelFiles::resolve(nowhere.to_str(), false)).contains("nowhere"));
    assert!(message(ModelFiles::resolve(Some("no such model"), false)).contains("opt-125m"));
    assert!(message(ModelFiles::resolve(Some(""), false)).contains("empty"));
    let file = directory.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(message(ModelFiles::directory(&file)).contains("file"));
    let empty = ModelFiles::directory(directory.path()).unwrap();
    assert!(message(empty.config()).contains("has no config.json"));
    assert!(message(empty.weights(None)).contains("model.safetensors"));
    assert_eq!(empty.generation_config().unwrap(), Default::default());
}

#[test]
fn missing_or_unsupported_tokenizers_are_refused() {
    let directory = copy("llama2");
    let files = ModelFiles::directory(directory.path()).unwrap();
    let config = files.config().unwrap();
    fs::remove_file(directory.path().join("tokenizer.json")).unwrap();
    assert!(message(Tokenizer::of_model(&files, &config)).contains("has no tokenizer.json"));
    fs::write(directory.path().join("tokenizer.model"), "sentencepiece").unwrap();
    assert!(message(Tokenizer::of_model(&files, &config)).contains("sentencepiece"));
    fs::write(directory.path().join("tokenizer.json"), "{\"version\": \"1.0\"").unwrap();
    assert!(message(Tokenizer::of_model(&files, &config)).contains("tokenizer.json"));
}

#[test]
fn bos_is_added_once_whichever_file_asks_for_it() {
    let directory = copy("opt-pre");
    let path = directory.path().join("tokenizer.json");
    let files = ModelFiles::directory(directory.path()).unwrap();
    let config = files.config().unwrap();
    let expected = Tokenizer::of_model(&files, &config).unwrap().encode("Hello").unwrap();
    // A conversion may leave only `tokenizer_config.json` with `add_bos_token`.
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json["post_processor"] = serde_json::json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false});
    fs::write(&path, json.to_string()).unwrap();
    assert_eq!(Tokenizer::of_model(&files, &config).unwrap().encode("Hello").unwrap(), expected);
    // Then load it from the slow tokenizer's files.
    fs::remove_file(&path).unwrap();
    assert_eq!(Tokenizer::of_model(&files, &config).unwrap().encode("Hello").unwrap(), expected);
    for file in ["tokenizer_config.json", "special_tokens_map.json"] {
        fs::remove_file(directory.path().join(file)).unwrap();
    }
    assert_eq!(Tokenizer::of_model(&files, &config).unwrap().encode("Hello").unwrap(), expected);
    // A tokenizer with more tokens than the model has embedding rows.
    let small = ModelFiles::directory(model("opt-pre")).unwrap();
    let config = engine::tools::config::ModelConfig { vocab_size: 50, ..config };
    assert!(message(Tokenizer::of_model(&small, &config).unwrap().encode("Hello")).contains("vocabulary"));
}

#[test]
fn false_safetensors_headers_are_refused() {
    let directory = copy("gpt2");
    let path = directory.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for bytes in [
        Vec::new(),
        whole[..7].to_vec(),
        whole[..8].to_vec(),
        whole[..whole.len() / 2].to_vec(),
        [&u64::MAX.to_le_bytes(), &whole[8..]].concat(),
        [&(whole.len() as u64).to_le_bytes(), &whole[8..]].concat(),
        [&2u64.to_le_bytes()[..], b"{}"].concat(),
        [&whole[..], b"more"].concat(),
    ] {
        fs::write(&path, &bytes).unwrap();
        assert!(message(weights(directory.path())).contains("model.safetensors"));
    }
    fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n").unwrap();
    assert!(message(weights(directory.path())).contains("git lfs pull"));
    let header = |json: &str, data: usize| {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        fs::write(&path, bytes).unwrap();
        weights(directory.path())
    };
    for json in [
        r#"{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [4294967296, 4294967296, 4], "data_offsets": [0, 8]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}"#,
        r#"{"a": {"dtype": "Q4", "shape": [2], "data_offsets": [0, 8]}}"#,
    ] {
        message(header(json, 8));
    }
    let mut odd = header(
        r#"{"a": {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}, "i": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}, "x": {"dtype": "F32", "shape": [], "data_offsets": [8, 12]}}"#,
        12,
    )
    .unwrap();
    assert_eq!(odd.take("a", &[0, 3]).unwrap().elements().to_f32(), [0.0; 0]);
    assert_eq!(odd.take("x", &[]).unwrap().elements().to_f32(), [0.0]);
    assert!(message(odd.take("i", &[1])).contains("I64"));
}

#[test]
fn indices_with_wrong_paths_are_refused() {
    let directory = copy("llama2");
    let index = directory.path().join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    for shard in ["../model-00001-of-00003.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "a\\\\b"] {
        fs::write(&index, text.replace("model-00001-of-00003.safetensors", shard)).unwrap();
        assert!(message(weights(directory.path())).contains("not a file of its directory"), "{shard}");
    }
    fs::write(&index, text.replace("model-00001-of-00003", "model-00009-of-00003")).unwrap();
    assert!(message(weights(directory.path())).contains("its shard model-00009-of-00003.safetensors is missing"));
    fs::write(&index, text.replace("model.norm.weight", "model.storm.weight")).unwrap();
    assert!(message(weights(directory.path())).contains("model.storm.weight"));
    for bad in ["", "[]", "{}", r#"{"weight_map": {}}"#, r#"{"weight_map": {"a": 1}}"#] {
        fs::write(&index, bad).unwrap();
        assert!(message(weights(directory.path())).contains("index"), "{bad}");
    }
}

#[test]
fn pickles_without_weights_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pytorch_model.bin");
    for bytes in [
        &b""[..],
        b"PK\x03\x04",
        b"\x80\x02}q\x00.",
        // A typical attack: a call of os.system with an argument.
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00echo\x85R.",
        b"\x80\x02X\xff\xff\xff\xff.",
        b"\x80\x05\x95\xff\xff\xff\xff\xff\xff\xff\xff.",
        b"not a pickle",
    ] {
        fs::write(&path, bytes).unwrap();
        assert!(message(weights(directory.path())).contains("pytorch_model.bin"));
    }
    // Nesting and doubling, which would exhaust the stack or the memory of a naive reader.
    let nested = [&b"\x80\x02)"[..], &[0x85; 1_000_000], b"."].concat();
    let doubled = [&b"\x80\x02]q\x00"[..], &b"h\x00h\x00\x86q\x00".repeat(60), b"."].concat();
    for bytes in [nested, doubled] {
        fs::write(&path, bytes).unwrap();
        message(weights(directory.path()));
    }
}

/// A named pipe would block for ever if it was opened.
#[cfg(unix)]
#[test]
fn pipes_and_directories_are_not_model_files() {
    let load = |path: &Path| -> engine::Result<()> {
        let files = ModelFiles::directory(path)?;
        Tokenizer::of_model(&files, &files.config()?)?;
        files.generation_config()?;
        engine::tools::chat::ChatTemplate::of_model(&files, None)?;
        files.weights(None).map(drop)
    };
    for file in
        ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"]
    {
        let directory = copy("llama2");
        load(directory.path()).unwrap();
        let path = directory.path().join(file);
        fs::remove_file(&path).unwrap_or_default();
        fs::create_dir(&path).unwrap();
        let why = reason(load(directory.path()));
        assert!(why.contains(file) && why.contains("directory"), "{why}");
        fs::remove_dir(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let why = reason(load(directory.path()));
        assert!(why.contains(file) && why.contains("not a regular file"), "{why}");
    }
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("model.gguf");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(reason(ModelFiles::resolve(pipe.to_str(), false)).contains("not a regular file"));
}

/// Returns the error's message with its cause.
#[cfg(unix)]
fn reason<T>(result: engine::Result<T>) -> String {
    let error = result.err().unwrap();
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    format!("{error}: {}", cause.unwrap_or_default())
}
