//! The `--device` option.

use crate::support::{fixture, quire, refused, stdout};

#[test]
fn the_emulator_tells_the_same_story_as_the_cpu() {
    let model = fixture("opt-bin");
    let args = ["--model", model.to_str().unwrap(), "--prompt", "Once", "--max-tokens", "6", "--device"];
    let told = |device| stdout(&[&args[..], &[device]].concat());
    assert_eq!(told("emulator"), told("cpu"));
    let output = quire(&[&args[..], &["emulator", "--cuda-graphs", "off", "--kv-memory", "1MB"]].concat());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("weights") && message.contains("KV cache 48 blocks of 16 tokens"), "{message}");
}

#[test]
fn a_missing_gpu_is_refused_in_one_sentence() {
    if launch::Driver::machine().is_ok() {
        return refused(&["--prompt", "a", "--device", "cuda:99"], "there is no device 99");
    }
    refused(&["--prompt", "a", "--device", "cuda"], "no GPU can be used: no NVIDIA driver");
    assert!(quire(&["--prompt", "a", "--max-tokens", "1", "--device", "auto"]).stderr.is_empty());
}
