//! Runs `quire bench serve`, `throughput` and `latency` as a user does.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::thread;

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quire")).arg("bench").args(args).env_remove("QUIRE_API_KEY").output().unwrap()
}

/// Returns the command's output, and the JSON that it writes.
fn figures(args: &[&str]) -> (String, Value) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = bench(&[args, &["--json", file.path().to_str().unwrap()]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap())
}

/// Starts a server that answers every `failing`th completion with an error, the others with two tokens. Returns its
/// address.
fn server(failing: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let mut completions = 0;
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut first, mut length) = (String::new(), 0);
            stream.read_line(&mut first).unwrap();
            for line in stream.by_ref().lines() {
                let line = line.unwrap().to_lowercase();
                if line.is_empty() {
                    break;
                }
                length = line.strip_prefix("content-length: ").map_or(length, |n| n.parse().unwrap());
            }
            stream.read_exact(&mut vec![0; length]).unwrap();
            let (mut status, mut body) = ("200 OK", r#"{"data":[{"id":"tales","max_model_len":100}]}"#.to_owned());
            if first.starts_with("POST /v1/completions ") {
                completions += 1;
                let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
                let text = r#"data: {"choices":[{"text":"a"}]}"#;
                body = format!("{text}\n\n{text}\n\n{usage}\n\ndata: [DONE]\n\n");
                if completions % failing == 0 {
                    (status, body) = ("503 Busy", r#"{"error":{"message":"come again"}}"#.into());
                }
            }
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    url
}

#[test]
fn a_sweep_of_rates_is_printed_saved_and_plotted() {
    let (url, svg) = (server(4), tempfile::NamedTempFile::new().unwrap());
    let plot = svg.path().to_str().unwrap();
    let args = ["serve", "--url", &url, "--rate", "500,1000", "--lengths", "alpaca", "--requests", "8", "--svg", plot];
    let (printed, json) = figures(&args);
    assert!(
        printed.starts_with("tales: Alpaca-like lengths, at most 100 tokens each, Poisson arrivals, seed 1\n"),
        "{printed}"
    );
    assert!(printed.contains("rate 500: 2 of 8 requests failed: status 503: come again\n"), "{printed}");
    assert_eq!((&json["bench"], &json["axis"]), (&"serve".into(), &"rate".into()));
    for (point, rate) in json["points"].as_array().unwrap().iter().zip([500.0, 1000.0]) {
        assert_eq!(point["at"], rate);
        assert_eq!((&point["requests"], &point["failed"]), (&8.into(), &2.into()));
        assert_eq!((&point["prompt_tokens"], &point["output_tokens"]), (&54.into(), &12.into()));
        for figure in ["time_to_first_token", "time_per_output_token", "latency", "normalized_latency"] {
            let of = &point[figure];
            let [p50, p90, p99] = ["p50", "p90", "p99"].map(|p| of[p].as_f64().unwrap());
            assert!(p50 <= p90 && p90 <= p99 && of["mean"].as_f64().unwrap() <= p99, "{figure}: {of}");
        }
    }
    let svg = fs::read_to_string(svg.path()).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("Normalized latency, s/token"), "{svg}");
}

#[test]
fn concurrent_clients_send_the_requests_of_a_trace() {
    let trace = tempfile::NamedTempFile::new().unwrap();
    fs::write(trace.path(), "{\"prompt_tokens\": 5, \"output_tokens\": 2}\n").unwrap();
    let (url, path) = (server(1000), trace.path().to_str().unwrap());
    let args = ["serve", "--url", &url, "--concurrency", "1,3", "--requests", "7", "--lengths", path, "--words"];
    let (printed, json) = figures(&args);
    assert!(printed.contains(&format!("1 requests of {path}, closed loop")), "{printed}");
    let answered = |point: &Value| (point["requests"].as_u64().unwrap(), point["failed"].as_u64().unwrap());
    assert!(json["points"].as_array().unwrap().iter().map(answered).eq([(7, 0), (7, 0)]), "{json}");
}

#[test]
fn the_engine_answers_all_requests() {
    let args = ["throughput", "--lengths", "20,5", "--requests", "6", "--max-num-seqs", "2", "--model"];
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/model");
    let (printed, json) = figures(&[&args[..], &[model]].concat());
    let point = &json["points"][0];
    assert_eq!(
        (&point["prompt_tokens"], &point["output_tokens"], &point["failed"]),
        (&120.into(), &30.into(), &0.into())
    );
    // Three pairs of requests. Each pair takes a prompt step and four more steps.
    assert!(printed.contains("\n15 steps, at most 2 sequences, 0 preemptions, KV utilisation "), "{printed}");

    let (printed, json) = figures(&["latency", "--batch", "1,3", "--lengths", "9,4", "--repeats", "2"]);
    assert!(printed.contains("prompts of 9 tokens, outputs of 4, 2 batches of each size"), "{printed}");
    let counts = |point: &Value| (point["at"].as_f64().unwrap(), point["output_tokens"].as_u64().unwrap());
    assert!(json["points"].as_array().unwrap().iter().map(counts).eq([(1.0, 8), (3.0, 24)]), "{json}");

    // More tokens than the bundled model has positions.
    let (printed, json) = figures(&["throughput", "--lengths", "400,400", "--requests", "1"]);
    assert!(printed.contains("prompts of 400 tokens, outputs of 112"), "{printed}");
    assert_eq!((&json["points"][0]["prompt_tokens"], &json["points"][0]["output_tokens"]), (&400.into(), &112.into()));
}

#[test]
fn requests_that_are_too_long_are_shortened_with_a_note_or_refused() {
    let message = |args: &[&str]| {
        let output = bench(args);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, note) = message(&["throughput", "--lengths", "400,400", "--requests", "1"]);
    assert_eq!(code, Some(0), "{note}");
    assert!(note.contains("note: requests of up to 800 tokens are shortened to 512"), "{note}");
    // A shortened output would report the latency of one token as the latency of 64.
    let (code, refusal) = message(&["latency", "--batch", "1", "--lengths", "512,64"]);
    assert_eq!(code, Some(2), "{refusal}");
    assert!(refusal.contains("asks for 576 tokens in a request") && refusal.contains("room for 512"), "{refusal}");
    let (code, silence) = message(&["latency", "--batch", "1", "--repeats", "1", "--lengths", "500,12"]);
    assert_eq!((code, silence.as_str()), (Some(0), ""));
    let (code, note) = message(&["serve", "--url", &server(9), "--concurrency=1", "--requests=1", "--lengths=90,90"]);
    assert_eq!(code, Some(0), "{note}");
    assert!(note.starts_with("note: requests of up to 180 tokens are shortened to 100"), "{note}");
}

#[test]
fn invalid_options_are_refused_in_one_sentence() {
    let trace = tempfile::NamedTempFile::new().unwrap();
    fs::write(trace.path(), "{}\n").unwrap();
    let trace = trace.path().to_str().unwrap();
    let silent = server(1);
    for (code, args, naming) in [
        (2, &["throughput", "--lengths", trace][..], "line 1"),
        (2, &["throughput", "--lengths", "0,4"], "lengths must be"),
        (2, &["throughput", "--requests", "0"], "\"0\""),
        (2, &["throughput", "--block-size", "many"], "block-size"),
        (2, &["throughput", "--prompt", "x"], "--prompt"),
        (1, &["throughput", "--requests", "1", "--lengths", "4,2", "--json", "/no/such/file"], "/no/such/file"),
        (2, &["latency", "--batch", "1,,2"], "--batch"),
        (1, &["latency", "--model", "/nowhere"], "/nowhere"),
        (2, &["serve"], "--rate or --concurrency"),
        (2, &["serve", "--rate", "1", "--concurrency", "1"], "--rate or --concurrency"),
        (2, &["serve", "--rate", "nan"], "--rate"),
        (2, &["serve", "--rate", "1", "--arrivals", "late"], "late"),
        (2, &["serve", "--rate", "1", "--duration", "-1"], "--duration"),
        (1, &["serve", "--rate", "1", "--url", "http://127.0.0.1:1"], "http://127.0.0.1:1"),
        (1, &["serve", "--concurrency", "1", "--requests", "2", "--url", &silent], "no request was answered"),
    ] {
        let output = bench(args);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
        let last = message.lines().last().unwrap();
        assert!(last.starts_with("error: ") && last.contains(naming), "{args:?}: {message}");
    }
}

#[test]
fn several_outputs_are_counted_with_their_requests() {
    let common = ["throughput", "--lengths", "8,4", "--requests", "3"];
    let tokens =
        |more: &[&str]| figures(&[&common[..], more].concat()).1["points"][0]["output_tokens"].as_u64().unwrap();
    assert_eq!([tokens(&[]), tokens(&["--n", "3"]), tokens(&["--best-of", "3"])], [12, 36, 12]);
    assert_eq!(tokens(&["--n", "2", "--beam-width", "4"]), 24);
    assert!(!bench(&["throughput", "--n", "3", "--best-of", "2"]).status.success());
}

#[test]
fn too_few_requests_are_noted() {
    let url = server(1000);
    let note = |requests: &str| {
        let args = ["bench", "serve", "--url", &url, "--rate", "1000", "--lengths", "5,2", "--requests", requests];
        let output = Command::new(env!("CARGO_BIN_EXE_quire")).args(args).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap().contains("too few to measure a rate")
    };
    assert!(note("10") && !note("50"));
}
