//! `quire plan`.

use std::fs;

use serde_json::Value;

use crate::support::{refused, stdout};

/// Runs `quire plan`. Returns its output and its report.
fn plan(arguments: &[&str]) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let text = stdout(&[&["plan"], arguments, &["--json", file.to_str().unwrap()]].concat());
    (text, serde_json::from_slice(&fs::read(file).unwrap()).unwrap())
}

/// Asserts that a plan has these lines.
fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|shown| shown.trim() == *line), "{text}");
    }
}

#[test]
fn a_plan_shows_the_memory_and_the_command() {
    let (text, plan) = plan(&["opt-13b", "--gpu", "a100-40gb", "--workload", "code"]);
    assert!(text.contains("800 KiB per token") && text.contains("simulated"), "{text}");
    assert!(text.trim_end().ends_with("quire serve opt-13b"), "{text}");
    assert!(plan["simulated_rate_where_latency_turns_up"].as_f64().unwrap() > 0.0);

    refused(&["plan", "opt-175b", "--gpu", "l4"], "does not fit");
    refused(&["plan", "opt-13b", "--workload", "no-such-file"], "long-document");
}

#[test]
fn a_plan_shows_each_group_of_layers() {
    let (text, plan) = plan(&["gemma-3-27b", "--gpu", "h200"]);
    let lines = [
        "52 layers, 16 heads of 128, the last 1024 tokens: 416 KiB per token, at most 422 MiB per sequence",
        "10 layers, 16 heads of 128, all tokens: 80 KiB per token",
        "a sequence of 131072 tokens takes 10.4 GiB, and would take 62.0 GiB if windows gave no blocks back",
    ];
    assert_lines(&text, &lines);
    assert_eq!(
        (plan["kv_groups"][0]["window"].as_u64(), plan["kv_groups"][1]["layers"].as_u64()),
        (Some(1024), Some(10))
    );
}

#[test]
fn a_plan_of_experts_counts_those_that_steps_use() {
    let (text, plan) = plan(&["gpt-oss-20b", "--gpu", "h100"]);
    let lines = [
        "experts              4 of 32 per token in 24 layers: 3.6 of 20.9 billion parameters",
        "12 layers, 8 heads of 64, the last 128 tokens: 24 KiB per token, at most 3 MiB per sequence",
    ];
    assert_lines(&text, &lines);
    assert!(text.starts_with("gpt-oss-20b in 16 bits, with experts in mxfp4, on 1 x h100"), "{text}");
    let steps = &plan["experts"]["steps"];
    assert_eq!((steps[0]["experts_per_layer"].as_f64(), steps[1]["tokens"].as_u64()), (Some(4.0), Some(8)));
    // Eight tokens use 21 of 32 experts, if routing is uniform.
    let eight = steps[1]["experts_per_layer"].as_f64().unwrap();
    assert!((eight - 32.0 * (1.0 - 0.875f64.powi(8))).abs() < 1e-9, "{eight}");
    let weights = plan["weight_bytes_per_gpu"].as_f64().unwrap() / f64::from(1 << 30);
    assert!((weights - 12.8).abs() < 0.1, "{weights}");
}

/// A latent vector has `kv_lora_rank` + `qk_rope_head_dim` = 576 elements of 2 bytes in each of 27 layers.
#[test]
fn a_plan_of_latents_counts_one_vector_per_token() {
    let (text, plan) = plan(&["deepseek-v2-lite", "--gpu", "h100"]);
    assert_lines(&text, &["experts              6 of 64 per token in 26 layers: 2.5 of 15.7 billion parameters"]);
    assert!(text.contains(" 30 KiB per token, "), "{text}");
    assert_eq!(plan["kv_bytes_per_token"].as_f64(), Some(f64::from(27 * 576 * 2)));
    assert_eq!((plan["kv_groups"][0]["heads"].as_u64(), plan["kv_groups"][1].as_object()), (Some(1), None));
}
