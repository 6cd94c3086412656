//! `quire plan`.

use std::fs;

use serde_json::Value;

use crate::support::{refused, stdout};

#[test]
fn a_plan_shows_the_memory_and_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let plan = ["plan", "opt-13b", "--gpu", "a100-40gb", "--workload", "code", "--json", file.to_str().unwrap()];
    let text = stdout(&plan);
    assert!(text.contains("800 KiB per token") && text.contains("simulated"), "{text}");
    assert!(text.trim_end().ends_with("quire serve opt-13b"), "{text}");
    let plan: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert!(plan["simulated_rate_where_latency_turns_up"].as_f64().unwrap() > 0.0);

    refused(&["plan", "opt-175b", "--gpu", "l4"], "does not fit");
    refused(&["plan", "opt-13b", "--workload", "no-such-file"], "long-document");
}

#[test]
fn a_plan_shows_each_group_of_layers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let text = stdout(&["plan", "gemma-3-27b", "--gpu", "h200", "--json", file.to_str().unwrap()]);
    for line in [
        "52 layers, 16 heads of 128, the last 1024 tokens: 416 KiB per token, at most 422 MiB per sequence",
        "10 layers, 16 heads of 128, all tokens: 80 KiB per token",
        "a sequence of 131072 tokens takes 10.4 GiB, and would take 62.0 GiB if windows gave no blocks back",
    ] {
        assert!(text.lines().any(|shown| shown.trim() == line), "{text}");
    }
    let plan: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(
        (plan["kv_groups"][0]["window"].as_u64(), plan["kv_groups"][1]["layers"].as_u64()),
        (Some(1024), Some(10))
    );
}
