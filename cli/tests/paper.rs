//! Runs `quire paper` and `quire plan` as a user does.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn quire(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quire")).args(args).output().unwrap()
}

fn said(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

/// Draws a figure from short traces. Returns the output.
fn draw(figure: &str, seed: &str, folder: &Path) -> String {
    let out = folder.to_str().unwrap();
    let run = quire(&["paper", "--figure", figure, "--seconds", "20", "--seed", seed, "--out", out]);
    assert!(run.status.success(), "{}", said(&run.stderr));
    said(&run.stdout)
}

#[test]
fn a_figure_has_a_table_an_image_numbers_and_a_page() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [once, again, other] = [(0, "7"), (1, "7"), (2, "8")].map(|(at, seed)| draw("2", seed, folders[at].path()));
    assert!(once.contains("Figure 2") && once.contains("simulated") && once.contains("| Orca (Max) |"), "{once}");
    let read = |at: usize, name: &str| fs::read_to_string(folders[at].path().join(name)).unwrap();
    for name in ["figure2.md", "figure2.json", "figure2.svg", "index.html"] {
        assert_eq!(read(0, name), read(1, name), "{name} is not the same for the same seed");
    }
    assert_eq!(once.lines().count(), again.lines().count());
    assert_ne!(read(0, "figure2.json"), read(2, "figure2.json"), "{other}");
    let numbers: Value = serde_json::from_str(&read(0, "figure2.json")).unwrap();
    assert_eq!((numbers["figure"].as_str(), numbers["origin"].as_str()), (Some("2"), Some("simulated")));
    let page = read(0, "index.html");
    assert!(page.contains("<svg") && page.contains("simulated") && page.contains("96.3"));
}

#[test]
fn an_unknown_figure_is_refused_with_the_known_ones() {
    let run = quire(&["paper", "--figure", "3"]);
    assert!(run.status.code() == Some(2) && said(&run.stderr).contains("1, 2, 11, 12"), "{}", said(&run.stderr));
}

#[test]
fn a_plan_shows_the_memory_and_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let run = quire(&["plan", "opt-13b", "--gpu", "a100-40gb", "--workload", "code", "--json", file.to_str().unwrap()]);
    let text = said(&run.stdout);
    assert!(run.status.success() && text.contains("800 KiB per token") && text.contains("simulated"), "{text}");
    assert!(text.trim_end().ends_with("quire serve opt-13b"), "{text}");
    let plan: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert!(plan["simulated_rate_where_latency_turns_up"].as_f64().unwrap() > 0.0);

    let none = quire(&["plan", "opt-175b", "--gpu", "l4"]);
    assert!(!none.status.success() && said(&none.stderr).contains("does not fit"), "{}", said(&none.stderr));
    let unknown = quire(&["plan", "opt-13b", "--workload", "no-such-file"]);
    assert!(!unknown.status.success() && said(&unknown.stderr).contains("long-document"), "{}", said(&unknown.stderr));
}
