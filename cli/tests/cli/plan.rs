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
