//! Sources of prompts.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::{fed, fixture, json, misused, quire, refused};

#[test]
fn prompts_are_read_from_files_and_standard_input() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "Once upon a time\n\nOne day\r\n").unwrap();
    let lines = json(&["--prompts", file.path().to_str().unwrap(), "--max-tokens", "3", "--json"]);
    assert_eq!(
        lines.iter().map(|l| l["prompt"].as_str().unwrap()).collect::<Vec<_>>(),
        ["Once upon a time", "One day"]
    );

    let mut child = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(["--prompts", "-", "--max-tokens", "3"])
        .stdin(fs::File::open(file.path()).unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(
        text.lines().filter(|l| l.starts_with("[1] Once upon a time") || l.starts_with("[2] One day")).count(),
        2
    );
}

#[test]
fn bad_prompts_are_refused_in_one_sentence() {
    refused(&["--prompt-ids", "5,9999"], "9999 is outside the vocabulary");
    misused(&["--prompt-ids", "5,x"], "not a token id");
    refused(&["--prompt", "a", "--prompt-ids", "9999"], "prompt 2: invalid request: prompt id 9999");
    let long = vec!["5"; 512].join(",");
    refused(&["--prompt-ids", &long], "512 positions");
    refused(&["--prompt-ids", &long[..399], "--kv-memory", "300KB"], "KV cache holds 32");
    let gpt2 = fixture("gpt2");
    refused(&["--model", gpt2.to_str().unwrap(), "--prompt", ""], "no tokens");
}

#[test]
fn piped_text_is_the_prompt() {
    let prompt = |text: &[u8], args: &[&str]| {
        let output = fed(text, &[args, &["-n", "3", "--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.map(|line| line["prompt"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(prompt(b"Once upon a time\n", &[]), ["Once upon a time"]);
    assert_eq!(prompt(b"Once upon\na time", &[]), ["Once upon\na time"]);
    assert_eq!(prompt(b"One day\r\n", &["--prompt", "-"]), ["One day"]);
    assert_eq!(prompt(b"One day", &["-p", "A", "-p", "-", "--prompt-ids", "2,598,661"]), ["A", "One day", "Once upon"]);
    // Standard input is not read if an option gives a prompt.
    assert_eq!(prompt(b"One day", &["-p", "A"]), ["A"]);
    assert_eq!(prompt(b"One day", &["--prompt-ids", "2,598,661"]), ["Once upon"]);
    assert_eq!(prompt(b"One day\nThe fox\n", &["--prompts", "-"]), ["One day", "The fox"]);
}

#[test]
fn empty_standard_input_is_refused() {
    let ends = |output: std::process::Output, code, naming: &str| {
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(message.contains(naming) && message.trim_end().lines().count() == 1, "{message}");
    };
    ends(fed(b"", &[]), 2, "nothing to continue: give --prompt (-p)");
    ends(fed(b"\n", &[]), 2, "nothing to continue");
    ends(fed(b"", &["--json"]), 2, "nothing to continue");
    ends(quire(&["--prompt", "-"]), 2, "standard input is empty");
    ends(fed(b"a", &["--prompt", "-", "--prompts", "-"]), 2, "can be read once");
    ends(fed(b"a", &["--prompt", "-", "--prompt", "-"]), 2, "can be read once");
    ends(fed(b"\n\n", &["--prompts", "-"]), 1, "no line with a prompt");
    ends(fed(b"a\xff", &[]), 1, "standard input");
}

/// A shell can close standard input or open a directory as standard input.
#[cfg(unix)]
#[test]
fn unreadable_standard_input_is_refused() {
    for (redirection, code, naming) in [("<&-", 2, "nothing to continue"), ("</", 1, "standard input")] {
        let call = format!("exec \"$0\" {redirection}");
        let output = Command::new("sh").args(["-c", &call, env!("CARGO_BIN_EXE_quire")]).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{redirection}: {message}");
        assert!(message.contains(naming) && message.trim_end().lines().count() == 1, "{redirection}: {message}");
    }
}
