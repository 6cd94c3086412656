//! Generated text.

use crate::support::{fed, fixture, json, misused, quire, stdout};

#[test]
fn the_demo_tells_a_story() {
    let story = stdout(&["--prompt", "Once upon a time"]);
    assert!(story.starts_with("Once upon a time, there lived a young boy named Theo in a small village"), "{story}");
    assert!(story.ends_with("helping hand.\n"), "{story}");
}

#[test]
fn beams_come_best_first_with_their_scores() {
    let lines =
        json(&["--prompt", "Once upon a time", "--beam-width", "4", "--n", "3", "--max-tokens", "10", "--json"]);
    let scores: Vec<f64> =
        lines[0]["outputs"].as_array().unwrap().iter().map(|o| o["score"].as_f64().unwrap()).collect();
    assert_eq!(scores.len(), 3);
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
}

#[test]
fn beams_keep_to_a_grammar() {
    let lines = json(&["--prompt", "Tom is", "--beam-width", "4", "--n", "3", "--regex", " [0-9]{2} years", "--json"]);
    let texts = lines[0]["outputs"].as_array().unwrap().iter().map(|output| output["text"].as_str().unwrap());
    let texts: Vec<&str> = texts.collect();
    let is_one = |text: &&str| text[1..3].parse::<u32>().is_ok() && text[3..] == *" years";
    assert!(texts.len() == 3 && texts.iter().all(is_one), "{texts:?}");
}

#[test]
fn incomplete_outputs_under_a_grammar_cause_a_warning() {
    let warnings = |args: &[&str]| {
        let output = quire(&[&["-p", "Tom is", "--temperature", "0"], args].concat());
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let cut = warnings(&["--regex", " [a-z ]{40}\\.", "-n", "3"]);
    assert!(cut.contains("warning: an output was cut and is incomplete under --regex (--max-tokens is 3)"), "{cut}");
    let two = warnings(&["--regex", " [a-z ]{40}\\.", "-n", "3", "--n", "2"]);
    assert!(two.contains("2 outputs were cut"), "{two}");
    let whole = warnings(&["--regex", " [0-9]{2} years", "-n", "30"]);
    // At the token limit, but complete.
    let ended = warnings(&["--regex", " [a-z ]+", "-n", "3"]);
    assert!(!whole.contains("warning") && !ended.contains("warning"), "{whole}{ended}");
}

#[test]
fn a_schema_and_a_grammar_are_read_from_standard_input() {
    let schema = br#"{"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": false}"#;
    let output = fed(schema, &["-p", "JSON:", "--json-schema", "-", "--json"]);
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = line["outputs"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(text).unwrap(), serde_json::json!({"a": "x"}));
    // More digits than a double has.
    let output = fed(br#"{"const": 12345678901234567890123}"#, &["-p", "JSON:", "--json-schema", "-"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "JSON:12345678901234567890123");
    let output = fed(b"start: \" yes\"", &["-p", "Is it?", "--grammar", "-"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Is it? yes\n");
    misused(&["--prompts", "-", "--json-schema", "-"], "standard input can be read once");
    // Standard input is the schema, so there is no prompt.
    misused(&["--json-schema", "-"], "nothing to continue");
}

#[test]
fn early_stopping_without_a_value_is_true() {
    let dir = fixture("opt-pre");
    let base = [
        "--model",
        dir.to_str().unwrap(),
        "--prompt-ids",
        "2,37",
        "--beam-width",
        "4",
        "--n",
        "4",
        "--max-tokens",
        "20",
        "--json",
    ];
    let with = |more: &[&'static str]| json(&[&base[..], more].concat())[0]["outputs"].clone();
    assert_eq!(with(&["--early-stopping"]), with(&["--early-stopping", "true"]));
    let first = ["--early-stopping", "--model", dir.to_str().unwrap()];
    assert_eq!(json(&[&first[..], &base[2..]].concat())[0]["outputs"], with(&["--early-stopping", "true"]));
    assert_eq!(with(&[]), with(&["--early-stopping", "false"]));
    misused(&["--prompt", "a", "--beam-width", "2", "--early-stopping", "soon"], "soon");
}

#[test]
fn a_seed_makes_sampling_reproducible_in_any_batch() {
    let base = ["--temperature", "0.9", "--seed", "11", "--max-tokens", "30", "--json", "--prompt", "Once upon a time"];
    let alone = json(&base);
    let batched = json(&[&base[..], &["--prompt", "One day", "--prompt", "The fox", "--n", "4"]].concat());
    assert_eq!(alone[0]["outputs"][0], batched[0]["outputs"][0]);
    let other =
        json(&["--temperature", "0.9", "--seed", "12", "--max-tokens", "30", "--json", "--prompt", "Once upon a time"]);
    assert_ne!(alone[0]["outputs"][0]["token_ids"], other[0]["outputs"][0]["token_ids"]);
    let texts: std::collections::HashSet<String> =
        batched[0]["outputs"].as_array().unwrap().iter().map(|o| o["text"].to_string()).collect();
    assert_eq!(texts.len(), 4, "outputs of one prompt differ");
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let lines = json(&["--prompt", "Once upon a time", "--stop", "young boy", "--stop", "nowhere", "--json"]);
    assert_eq!(lines[0]["outputs"][0]["text"], ", there lived a ");
    assert_eq!(lines[0]["outputs"][0]["finish_reason"], "stop");
    assert_eq!(stdout(&["--prompt", "Once upon a time", "--stop", "young boy"]), "Once upon a time, there lived a \n");
}
