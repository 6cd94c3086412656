//! Signals, files that change while they are mapped, and limits on memory and file descriptors.

#![cfg(target_os = "linux")] // Linux reports the signals that a process ignores, and raises SIGBUS for shrunk files
#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::{env, io};

const QUIRE: &str = env!("CARGO_BIN_EXE_quire");

/// Returns `quire` with these arguments, run by a shell after the command `first`.
///
/// It does not ignore SIGHUP, even if the tests run under nohup. The shell cannot reset a signal that it inherits as ignored.
fn quire(first: &str, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let reset = || {
        // SAFETY: the default action is valid for SIGHUP.
        match unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) } {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: `signal` may be called between fork and exec, and `last_os_error` only reads `errno`.
    unsafe { command.pre_exec(reset) };
    command.args(["-c", &format!("{first}; exec \"$0\" \"$@\""), QUIRE]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("QUIRE_API_KEY").env_remove("RUST_LOG");
    command
}

/// A server in its own process.
struct Server {
    child: Child,
    address: String,
    logs: BufReader<ChildStderr>,
}

impl Server {
    /// Starts a server and waits until it is ready for requests.
    fn start(first: &str, words: &[&str]) -> Self {
        let mut child = quire(first, &[&["serve", "--port", "0"], words].concat()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on http://").unwrap().to_owned();
        let logs = BufReader::new(child.stderr.take().unwrap());
        let server = Server { child, address, logs };
        while !server.get("/ready").starts_with("HTTP/1.1 200 ") {}
        server
    }

    fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
    }

    /// Requests a short completion.
    fn complete(&self) -> String {
        let body = r#"{"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0}"#;
        self.ask(&format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    /// Sends a request and returns the answer, or the part of it that arrived before the server ended.
    fn ask(&self, request: &str) -> String {
        let mut answer = Vec::new();
        if let Ok(mut stream) = TcpStream::connect(&self.address) {
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.read_to_end(&mut answer);
        }
        String::from_utf8(answer).unwrap()
    }

    /// Starts a request without sending its body, so that it stays in progress.
    fn begin_request(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
            content-length: 9\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let in_progress = |line: &str| line.starts_with("quire:http_requests{") && line.ends_with(" 1");
        while !self.get("/metrics").lines().any(in_progress) {}
        stream
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for a log line that contains this text.
    fn wait_for(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert_ne!(self.logs.read_line(&mut line).unwrap(), 0, "the log ended without {text:?}");
        }
    }

    /// Returns the exit status and the rest of the log.
    fn end(mut self) -> (std::process::ExitStatus, String) {
        let mut logs = String::new();
        self.logs.read_to_string(&mut logs).unwrap();
        (self.child.wait().unwrap(), logs)
    }
}

#[test]
fn a_second_interrupt_ends_the_server_at_once() {
    let mut server = Server::start(":", &["--read-timeout", "3600", "--stop-timeout", "3600"]);
    let _request = server.begin_request();
    server.signal("INT");
    server.wait_for("stopping");
    server.signal("INT");
    assert_eq!(server.end().0.code(), Some(130));
}

#[test]
fn an_interrupt_while_the_server_stops_ends_it_too() {
    let mut server = Server::start(":", &["--read-timeout", "3600", "--stop-timeout", "3600"]);
    let _request = server.begin_request();
    server.signal("TERM");
    server.wait_for("stopping");
    server.signal("INT");
    assert_eq!(server.end().0.code(), Some(130));
}

/// Whether a process ignores SIGHUP: the lowest bit of `SigIgn`.
fn ignores_hangup(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1
}

#[test]
fn a_hangup_waits_for_requests() {
    let mut server = Server::start(":", &["--read-timeout", "3600", "--stop-timeout", "3600"]);
    assert!(!ignores_hangup(server.child.id()));
    let mut request = server.begin_request();
    server.signal("HUP");
    server.wait_for("stopping");
    request.write_all(b"{\"no\": 1}").unwrap();
    let mut answer = String::new();
    request.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(server.end().0.code(), Some(0));
}

#[test]
fn the_tests_pass_under_nohup() {
    let mut command = Command::new("nohup");
    command.arg(env::current_exe().unwrap()).args(["--exact", "a_hangup_waits_for_requests"]).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn an_ignored_hangup_stays_ignored() {
    let server = Server::start("trap '' HUP", &[]);
    assert!(ignores_hangup(server.child.id()));
    server.signal("HUP");
    let answer = server.complete();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.signal("TERM");
    assert_eq!(server.end().0.code(), Some(0));
}

/// Copies the bundled model to a directory. Returns the path of its weights.
fn copied_model(directory: &Path) -> PathBuf {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/model");
    for file in fs::read_dir(bundled).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), directory.join(file.file_name())).unwrap();
    }
    directory.join("model.safetensors")
}

fn empty(file: &Path) {
    File::options().write(true).open(file).unwrap().set_len(0).unwrap();
}

#[test]
fn a_model_file_that_becomes_shorter_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let weights = copied_model(directory.path());
    let server = Server::start(":", &["--model", directory.path().to_str().unwrap()]);
    assert!(server.complete().starts_with("HTTP/1.1 200 "));
    // Truncation unmaps the pages, even those that were already read.
    empty(&weights);
    assert_eq!(server.complete(), "");
    let (status, logs) = server.end();
    assert_eq!(status.code(), Some(1), "{logs}");
    let last = logs.lines().last().unwrap();
    assert!(last.starts_with("error: the model file ") && last.contains(weights.to_str().unwrap()), "{logs}");
    assert!(last.contains("can no longer be read") && last.contains("--mmap off"), "{logs}");
}

#[test]
fn a_model_in_memory_no_longer_needs_its_files() {
    let directory = tempfile::tempdir().unwrap();
    let weights = copied_model(directory.path());
    let server = Server::start(":", &["--model", directory.path().to_str().unwrap(), "--mmap", "off"]);
    empty(&weights);
    let answer = server.complete();
    assert!(answer.contains(", there lived a young"), "{answer}");
    server.signal("TERM");
    assert_eq!(server.end().0.code(), Some(0));
}

/// A bus error that no file explains must end the process by the signal.
#[test]
fn other_bus_errors_are_not_explained() {
    let mut server = Server::start(":", &[]);
    while server.child.try_wait().unwrap().is_none() {
        // Fails if the process has just ended.
        let _ = Command::new("kill").args(["-BUS", &server.child.id().to_string()]).stderr(Stdio::null()).status();
    }
    let (status, logs) = server.end();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{logs}");
    assert!(!logs.contains("model file"), "{logs}");
}

#[test]
fn a_server_without_file_descriptors_logs_it_and_continues() {
    let mut server = Server::start("ulimit -n 40", &["--threads", "1"]);
    let many: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    server.wait_for("a connection could not be accepted");
    drop(many);
    let answer = server.complete();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.signal("TERM");
    assert_eq!(server.end().0.code(), Some(0));
}

/// If the system refuses the default size of the KV cache, the cache is smaller. If `--kv-memory` sets the size, it is
/// an error.
#[test]
fn a_refused_kv_cache_becomes_smaller() {
    let run = |words: &[&str]| {
        let common = ["--device", "cpu", "--threads", "1", "--prompt", "Once upon a time", "--max-tokens", "5"];
        let output = quire("ulimit -v 700000", &[&common, words].concat()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (status, text, notes) = run(&["--temperature", "0"]);
    assert_eq!(status, Some(0), "{notes}");
    assert!(text.contains(", there lived a young"), "{text}");
    assert!(notes.contains("note: the KV cache has") && notes.contains("the system refuses more"), "{notes}");
    let (status, _, error) = run(&["--kv-memory", "2GiB"]);
    assert!(status == Some(1) && error.contains("cannot reserve"), "{error}");
}
