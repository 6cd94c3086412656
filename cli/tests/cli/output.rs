//! Printed output.

use crate::support::{fixture, json, quire, stdout};

#[test]
fn json_has_the_documented_form() {
    let lines = json(&[
        "--prompt",
        "Once upon a time",
        "--prompt-ids",
        "2,598,661",
        "--max-tokens",
        "4",
        "--logprobs",
        "2",
        "--json",
    ]);
    assert_eq!(lines.len(), 2);
    let (first, output) = (&lines[0], &lines[0]["outputs"][0]);
    assert_eq!(first["prompt"], "Once upon a time");
    assert_eq!(first["prompt_token_ids"], serde_json::json!([2, 598, 661, 262, 412]));
    assert_eq!(output["index"], 0);
    assert_eq!(output["text"], ", there lived a");
    assert_eq!(output["token_ids"], serde_json::json!([15, 383, 432, 262]));
    assert_eq!(output["finish_reason"], "length");
    let logprobs = output["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 4);
    assert_eq!(logprobs[0]["top"].as_array().unwrap().len(), 2);
    assert_eq!(logprobs[0]["top"][0], serde_json::json!([15, logprobs[0]["logprob"]]));
    let sum: f64 = logprobs.iter().map(|l| l["logprob"].as_f64().unwrap()).sum();
    assert!((sum - output["cumulative_logprob"].as_f64().unwrap()).abs() < 1e-6);
    assert_eq!(first["usage"], serde_json::json!({"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}));
    assert_eq!(lines[1]["prompt"], "Once upon");
    assert!(output.get("score").is_none());
}

#[test]
fn the_space_that_sentencepiece_drops_is_printed() {
    let dir = fixture("llama2");
    let args = ["--model", dir.to_str().unwrap(), "--temperature", "0", "--prompt", "and gent", "--max-tokens", "12"];
    let printed = stdout(&args);
    let lines = json(&[&args[..], &["--json"]].concat());
    let ids: Vec<String> = ["prompt_token_ids", "x"]
        .iter()
        .filter_map(|k| lines[0][k].as_array())
        .flatten()
        .chain(lines[0]["outputs"][0]["token_ids"].as_array().unwrap())
        .map(|id| id.to_string())
        .collect();
    let whole = json(&[
        "--model",
        dir.to_str().unwrap(),
        "--temperature",
        "0",
        "--prompt-ids",
        &ids.join(","),
        "--max-tokens",
        "1",
        "--json",
    ]);
    assert_eq!(printed.trim_end_matches('\n'), whole[0]["prompt"].as_str().unwrap().trim_end_matches('\n'));
}

#[test]
fn stats_are_printed() {
    let output = quire(&["--prompt", "Once upon a time", "--max-tokens", "20", "--stats", "--verbose"]);
    let report = String::from_utf8(output.stderr).unwrap();
    for line in ["time to first token", "tokens/s", "KV blocks", "KV utilisation", "preemptions", "opt-story-3m"] {
        assert!(report.contains(line), "{report}");
    }
}

#[test]
fn json_objects_name_their_prompt_and_model() {
    let lines = json(&["-p", "One day", "-p", "The fox", "-n2", "--json", "--model", "opt-story-3m"]);
    assert_eq!(lines.iter().map(|line| line["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
    let dir = fixture("opt-pre");
    let other = json(&["--model", dir.to_str().unwrap(), "--prompt-ids", "2,37", "-n2", "--json"]);
    assert_eq!(
        [&lines[0]["model"], &lines[1]["model"], &other[0]["model"]],
        ["opt-story-3m", "opt-story-3m", "opt-pre"]
    );
}

#[test]
fn reaching_the_context_length_is_noted() {
    let notes = |args: &[&str]| {
        let output = quire(&[&["-p", "Once upon a time", "--ignore-eos"][..], args].concat());
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let note = "note: 1 request ended before 5000 tokens (--max-tokens), at the model's context length of 512";
    assert!(notes(&["--max-tokens", "5000"]).contains(note));
    let ids = vec!["5"; 400].join(",");
    let output = quire(&["--prompt-ids", &ids, "--ignore-eos", "--stats"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("note: 1 request ended before 256 tokens"), "{message}");
    assert_eq!(notes(&["--max-tokens", "6"]), "");
}
