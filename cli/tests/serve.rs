//! Runs `quire serve` as a process.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

fn quire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.arg("serve").args(args).stdin(Stdio::null()).env_remove("QUIRE_API_KEY");
    command
}

/// Starts a server on a free port. Returns it and its address.
fn start(args: &[&str]) -> (Child, String) {
    let mut child = quire(args).args(["--port", "0"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim_end().strip_prefix("listening on http://").unwrap().to_owned())
}

/// Repeats a request until the model is loaded, and returns the answer.
fn post(address: &str, body: &str) -> String {
    loop {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             authorization: Bearer key\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        if !answer.contains("the model is being loaded") {
            return answer;
        }
    }
}

#[test]
fn serves_until_it_is_told_to_stop() {
    let (mut child, address) =
        start(&["--api-key", "key", "--served-model-name", "tales", "--block-size", "8", "--log-json"]);
    let answer = post(&address, r#"{"model": "tales", "prompt": "Once upon a time", "temperature": 0}"#);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(", there lived a young boy named Theo"), "{answer}");
    let terminated = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(terminated.success());
    let mut logs = String::new();
    child.stderr.take().unwrap().read_to_string(&mut logs).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{logs}");
    let lines = logs.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let answered = lines.filter(|line| line["fields"]["message"] == "answered").collect::<Vec<_>>();
    assert_eq!(answered.len(), 1, "{logs}");
    assert_eq!(answered[0]["fields"]["completion_tokens"], 16);
}

#[test]
fn start_errors_name_their_cause() {
    for (code, args, naming) in [
        (2, &["--port", "seventy"][..], "--port"),
        (2, &["--prompt", "x"], "--prompt"),
        (1, &["--model", "/nowhere"], "/nowhere"),
        (1, &["--chat-template", "/nowhere"], "/nowhere"),
        (1, &["--host", "192.0.2.1"], "192.0.2.1"),
        (2, &["--block-size", "0", "--port", "0"], "block-size"),
        (1, &["--api-key", ""], "API key"),
    ] {
        let output = quire(args).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
        let last = message.lines().last().unwrap();
        assert!(last.starts_with("error: ") && last.contains(naming), "{args:?}: {message}");
    }
}

#[test]
fn the_help_page_has_the_engines_options_too() {
    let page = String::from_utf8(quire(&["--help"]).output().unwrap().stdout).unwrap();
    for option in ["--port <n>", "--max-queue <n>", "--model <model>", "--block-size <n>"] {
        assert!(page.contains(option), "{page}");
    }
}
