//! Words of a command line.

#[cfg(unix)]
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use crate::support::{fixture, json, misused, quire, refused, stdout};

#[test]
fn bad_options_are_refused_in_one_sentence() {
    let with = |args: &[&'static str]| [&["--prompt", "Once"][..], args].concat();
    misused(&[], "nothing to continue");
    misused(&["--prompt"], "--prompt");
    misused(&with(&["--colour", "red"]), "--colour");
    misused(&with(&["--max-tokens", "0"]), "max-tokens");
    misused(&with(&["--max-tokens", "many"]), "many");
    misused(&with(&["--temperature", "-0.5"]), "temperature");
    misused(&with(&["--temperature", "nan"]), "temperature");
    misused(&with(&["--top-p", "0"]), "top-p");
    misused(&with(&["--top-p", "1.5"]), "top-p");
    misused(&with(&["--min-p", "2"]), "min-p");
    misused(&with(&["--top-k", "5"]), "need --temperature");
    misused(&with(&["--repetition-penalty", "0"]), "repetition-penalty");
    misused(&with(&["--n", "0"]), "n must be at least 1");
    misused(&with(&["--n", "3", "--best-of", "2"]), "best-of");
    misused(&with(&["--beam-width", "0"]), "beam-width");
    misused(&with(&["--beam-width", "4", "--temperature", "0.5"]), "temperature");
    misused(&with(&["--beam-width", "2", "--n", "3"]), "beam-width");
    misused(&with(&["--length-penalty", "2"]), "beam-width");
    misused(&with(&["--stop", ""]), "stop");
    misused(&with(&["--logprobs", "1000"]), "logprobs");
    refused(&with(&["--n", "300"]), "at most 256");
    misused(&with(&["--device", "abacus"]), "abacus");
    misused(&with(&["--dtype", "f8"]), "f8");
    misused(&with(&["--kv-dtype", "int4"]), "int8 and fp8");
    misused(&with(&["--block-size", "0"]), "block-size");
    misused(&with(&["--threads", "0"]), "threads");
    misused(&with(&["--threads", "100000"]), "threads");
    misused(&with(&["--max-num-seqs", "0"]), "max-num-seqs");
    misused(&with(&["--max-batch-tokens", "0"]), "max-batch-tokens");
    refused(&with(&["--kv-memory", "1KB"]), "takes 147456 bytes");
    refused(&with(&["--kv-memory", "1KB", "--kv-dtype", "int8"]), "takes 38016 bytes");
    misused(&with(&["--kv-memory", "lots"]), "lots");
    misused(&with(&["--swap-space", "lots"]), "lots");
    misused(&with(&["--preemption", "never"]), "never");
    misused(&with(&["--prefix-caching", "perhaps"]), "perhaps");
    refused(&with(&["--shared-prefix", "no-such-file"]), "no-such-file");
    misused(&with(&["--delay-factor", "-1"]), "delay-factor");
    refused(&["--prompts", "no-such-file"], "no-such-file");
}

#[test]
fn an_option_has_several_spellings() {
    let want = json(&["--prompt", "Once upon a time", "--max-tokens", "4", "--json"]);
    for spelling in [
        &["--prompt=Once upon a time", "--max-tokens=4", "--json"][..],
        &["-p", "Once upon a time", "-n", "4", "--json"],
        &["-pOnce upon a time", "-n4", "--json"],
        &["--json", "-p=Once upon a time", "-n=4"],
        &["generate", "--json", "-n4", "-p", "Once upon a time"],
        &["-m", "opt-story-3m", "-p", "Once upon a time", "-n", "4", "--json"],
    ] {
        assert_eq!(json(spelling), want, "{spelling:?}");
    }
    assert_eq!(stdout(&["-V"]), stdout(&["--version"]));
    assert_eq!(stdout(&["-V", "serve"]), stdout(&["--version"]));
    assert_eq!(stdout(&["--help", "serve"]), stdout(&["serve", "--help"]));
    assert_eq!(stdout(&["-h", "bench", "latency"]), stdout(&["bench", "latency", "-h"]));
    assert_eq!(json(&["--prompt=a=b", "-n1", "--json"])[0]["prompt"], "a=b");
    assert_eq!(json(&["--prompt=", "-n1", "--json"])[0]["prompt"], "");
    assert_eq!(json(&["-p", "--json", "-n1", "--json"])[0]["prompt"], "--json");
}

#[test]
fn similar_names_are_suggested() {
    misused(&["--promt", "a"], "there is no option --promt; did you mean --prompt?");
    misused(&["-prompt", "a"], "did you mean --prompt?");
    misused(&["-json", "-p", "a"], "did you mean --json?");
    misused(&["--max_tokens=4", "-p", "a"], "there is no option --max_tokens; did you mean --max-tokens?");
    misused(&["--temp", "0.5", "-p", "a"], "did you mean --temperature?");
    misused(&["--port", "8000"], "--port is an option of `quire serve`, not of `quire`");
    misused(&["serve", "--prompt", "a"], "--prompt is an option of `quire`, not of `quire serve`");
    misused(&["--max-qeue", "8"], "did you mean --max-queue of `quire serve`?");
    misused(&["serve", "--prot", "0"], "did you mean --port? (quire serve --help shows all options)");
    misused(&["bench", "latency", "--batches", "1"], "did you mean --batch?");
    misused(&["serve", "-V"], "--version is an option of `quire`, not of `quire serve`");
    misused(&["-p", "a", "-n", "5", "--max-tokens=6"], "--max-tokens is given twice");
    misused(&["-p", "a", "--model="], "the model's name is empty");
}

#[test]
fn an_unknown_command_is_refused_with_a_suggestion() {
    misused(&["generat"], "there is no command or model \"generat\"");
    misused(
        &["generat"],
        "commands are generate, chat, serve, quantize, bench, plan, completions, man and help; did you mean generate?",
    );
    misused(&["srve", "--port", "0"], "did you mean serve?");
    misused(&["help", "srve"], "did you mean serve?");
    misused(&["bench", "latancy"], "did you mean bench latency?");
    misused(&["bench", "plan"], "did you mean plan?");
    misused(&["serve", "nosuch"], "there is no model \"nosuch\"");
    misused(&["-p", "hi", "extra"], "a prompt of several words needs quotes");
    misused(&["bench"], "bench needs a command");
    misused(&["--json", "serve"], "the command comes first: quire serve");
    misused(&["opt-13c", "-p", "a"], "did you mean opt-13b?");
    misused(&["serve", "gpt3"], "did you mean gpt2?");
    misused(&["Once upon a time"], "put --prompt (-p) before a prompt");
}

#[test]
fn a_model_needs_no_option() {
    let dir = fixture("opt-pre");
    let dir = dir.to_str().unwrap();
    let more = ["--prompt-ids", "2,37", "-n", "3", "--json"];
    let want = json(&[&["--model", dir][..], &more].concat());
    assert_eq!(json(&[&[dir][..], &more].concat()), want);
    assert_eq!(json(&[&more[..], &["--", dir]].concat()), want);
    refused(&["./nowhere", "-p", "a"], "nowhere");
    refused(&["serve", "/nowhere"], "/nowhere");
    refused(&["bench", "throughput", "/nowhere"], "/nowhere");
    misused(&[dir, "--model", dir, "-p", "a"], "two models");
    misused(&[dir, "gpt2", "-p", "a"], "two models");
    misused(&["serve", dir, dir], "two models");
    misused(&["bench", "serve", dir], "unexpected word");
}

#[test]
fn odd_words_are_refused_in_one_sentence() {
    let long = "x".repeat(100_000);
    let dashes = format!("--{long}");
    for words in [
        &["--"][..],
        &["-"],
        &["--", "--"],
        &["--=x"],
        &["--="],
        &["-="],
        &["---"],
        &["-pn", "-x"],
        &["-n"],
        &["-n", "-5", "-p", "a"],
        &["-n5x", "-p", "a"],
        &["-Vx"],
        &["-hx"],
        &["--json=true", "-p", "a"],
        &["--seed=", "-p", "a"],
        &["--seed=1", "--seed=2", "-p", "a"],
        &["--prompt-ids=", "-n1"],
        &["--early-stopping=", "--beam-width=2", "-p", "a"],
        &[""],
        &["\n"],
        &["a\nb\u{1b}[31m"],
        &["--a\nb\u{1b}[31m"],
        &["é"],
        &["-é"],
        &["--é=é"],
        &[&long],
        &[&dashes],
        &["bench", ""],
        &["bench", "--json"],
        &["help", ""],
        &["help", "\n"],
        &["serve", "-"],
        &["serve", "--port=x"],
        &["serve", "--port=99999"],
        &["bench", "throughput", "--requests=-1"],
        &["bench", "throughput", "--seed="],
    ] {
        misused(words, "");
        let message = String::from_utf8(quire(words).stderr).unwrap();
        assert!(message.len() < 400 && !message.trim_end().contains(char::is_control), "{words:?}: {message:?}");
        for jargon in ["digit found", "usize", "argument"] {
            assert!(!message.contains(jargon), "{words:?}: {message}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_word_in_invalid_utf_8_is_refused() {
    for words in [&[&b"\xff"[..]][..], &[b"--prompt", b"a\xffb"], &[b"serve", b"--model=\xfe"]] {
        let words = words.iter().map(|word| std::ffi::OsStr::from_bytes(word));
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        let output = command.args(words).stdin(Stdio::null()).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("is not valid UTF-8") && message.trim_end().lines().count() == 1, "{message}");
    }
}
