//! Helpers that run the command.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub fn fixture(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/golden").join(model)
}

pub fn quire(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quire")).args(args).stdin(Stdio::null()).output().unwrap()
}

pub fn stdout(args: &[&str]) -> String {
    let output = quire(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn json(args: &[&str]) -> Vec<Value> {
    stdout(args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asserts one sentence on standard error that contains `naming`, an empty standard output, and exit status 1.
pub fn refused(args: &[&str], naming: &str) {
    ends_with(1, args, naming);
}

/// Like [`refused`], with the exit status for an invalid command line.
pub fn misused(args: &[&str], naming: &str) {
    ends_with(2, args, naming);
}

fn ends_with(code: i32, args: &[&str], naming: &str) {
    let output = quire(args);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
    assert!(message.starts_with("error: ") && message.trim_end().lines().count() == 1, "{args:?}: {message}");
    assert!(message.contains(naming), "{args:?}: {message:?} does not say {naming:?}");
    assert!(output.stdout.is_empty(), "{args:?} printed something");
}

/// Runs the command with `text` as standard input.
pub fn fed(text: &[u8], args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    let command = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that reads no input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(text);
    child.wait_with_output().unwrap()
}

/// Copies a golden model to a directory where a test can change it.
pub fn copy_of(model: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(model)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

pub fn model(dir: &tempfile::TempDir) -> &str {
    dir.path().to_str().unwrap()
}

/// Replaces text in a model's file.
pub fn edit(dir: &tempfile::TempDir, file: &str, from: &str, to: &str) {
    let path = dir.path().join(file);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{file} has no {from}");
    fs::write(path, text.replace(from, to)).unwrap();
}
