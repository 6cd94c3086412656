//! Adapters of the command line.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::support::{fixture, misused, refused, stdout};

/// Writes an adapter of rank 4 for the golden model llama2.
fn write_adapter(directory: &Path) {
    let module = "base_model.model.model.layers.0.mlp.down_proj";
    let (a, b) = ([4, 256], [96, 4]);
    let bytes = |[rows, cols]: [usize; 2]| rows * cols * 4;
    let header = json!({
        format!("{module}.lora_A.weight"): {"dtype": "F32", "shape": a, "data_offsets": [0, bytes(a)]},
        format!("{module}.lora_B.weight"): {"dtype": "F32", "shape": b, "data_offsets": [bytes(a), bytes(a) + bytes(b)]},
    })
    .to_string();
    let elements = (0..a[0] * a[1] + b[0] * b[1]).map(|i| (i % 7) as f32 - 3.0);
    let data: Vec<u8> = elements.flat_map(f32::to_le_bytes).collect();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(directory.join("adapter_model.safetensors"), file).unwrap();
    let config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["down_proj"]});
    fs::write(directory.join("adapter_config.json"), config.to_string()).unwrap();
}

#[test]
fn prompts_use_the_only_adapter() {
    let (model, directory) = (fixture("llama2"), tempfile::tempdir().unwrap());
    write_adapter(directory.path());
    let (model, path) = (model.to_str().unwrap(), directory.path().to_str().unwrap());
    let run = |more: &[&str]| {
        stdout(&[&["--model", model, "--device", "cpu", "-p", "A fox", "--ignore-eos", "-n", "12"], more].concat())
    };
    let module = |name: &str| format!("{name}={path}");
    assert_ne!(run(&["--lora-modules", &module("a")]), run(&[]));
    refused(
        &[
            "--model",
            model,
            "--device",
            "cpu",
            "-p",
            "x",
            "--lora-modules",
            &module("a"),
            "--lora-modules",
            &module("b"),
        ],
        "2 adapters are given with --lora-modules",
    );
    let own = module("a");
    let base = ["--model", model, "--device", "cpu", "-p", "x", "--lora-modules", &own];
    let with = |more: &[&'static str]| [&base[..], more].concat();
    misused(&[&base[..], &["--lora-modules", &own]].concat(), "lora-modules has two adapters with the name a");
    misused(&with(&["--max-loras", "0"]), "max-loras must be at least 1");
    refused(&with(&["--max-lora-rank", "3"]), "its rank is 4, but at most 3 is allowed");
    let missing = Path::new(path).join("none");
    let missing = format!("a={}", missing.display());
    refused(&["--model", model, "--device", "cpu", "-p", "x", "--lora-modules", &missing], "cannot read");
    misused(&["-p", "x", "--lora-modules", path], "is not a name and a path");
}
