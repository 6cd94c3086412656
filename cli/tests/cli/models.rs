//! Choice of the model.

use std::fs;
use std::process::Command;

use crate::support::{copy_of, edit, model, refused};

#[test]
fn the_model_is_found_from_any_directory() {
    let elsewhere = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    let output =
        command.args(["--prompt", "Once", "--max-tokens", "2"]).current_dir(elsewhere.path()).output().unwrap();
    assert!(output.status.success());
}

#[test]
fn bad_models_are_refused_in_one_sentence() {
    let with = |dir: &str, naming: &str| refused(&["--model", dir, "--prompt", "a", "--temperature", "0"], naming);
    with("./no/such/directory", "no/such/directory");
    let empty = tempfile::tempdir().unwrap();
    with(model(&empty), "config.json");

    let truncated = copy_of("opt-pre");
    let weights = truncated.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    with(model(&truncated), "model.safetensors");
    let mut flipped = bytes.clone();
    flipped[20] ^= 0x80;
    fs::write(&weights, &flipped).unwrap();
    with(model(&truncated), "model.safetensors");
    let mut claims = bytes.clone();
    claims[..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    fs::write(&weights, &claims).unwrap();
    with(model(&truncated), "model.safetensors");
    fs::remove_file(&weights).unwrap();
    with(model(&truncated), "weights");

    let pickle = copy_of("opt-bin");
    let shard = pickle.path().join("pytorch_model-00002-of-00003.bin");
    let mut bytes = fs::read(&shard).unwrap();
    let at = bytes.windows(24).position(|w| w == b"torch._utils\n_rebuild_te").unwrap();
    bytes[at..at + 12].copy_from_slice(b"posix\nsystem");
    fs::write(&shard, bytes).unwrap();
    with(model(&pickle), "pytorch_model-00002-of-00003.bin");

    for (from, to, naming) in [
        ("\"hidden_size\": 128", "\"hidden_size\": 64", "shape"),
        ("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", "layers.3."),
        ("OPTForCausalLM", "MambaForCausalLM", "MambaForCausalLM"),
        ("\"num_attention_heads\": 4", "\"num_attention_heads\": 0", "heads"),
        ("\"vocab_size\": 512", "\"vocab_size\": \"many\"", "vocab_size"),
    ] {
        let dir = copy_of("opt-pre");
        edit(&dir, "config.json", from, to);
        with(model(&dir), naming);
    }

    let speechless = copy_of("opt-pre");
    for file in ["tokenizer.json", "vocab.json", "merges.txt"] {
        fs::remove_file(speechless.path().join(file)).unwrap();
    }
    with(model(&speechless), "tokenizer");
}

#[test]
fn an_uncached_hub_model_without_network_is_refused_in_one_sentence() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    let output = command
        .args(["--model", "facebook/opt-125m", "--prompt", "a"])
        .env("HF_HOME", home.path())
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.starts_with("error: ") && message.contains("facebook/opt-125m"), "{message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
}
