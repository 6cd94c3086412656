//! Helpers that run the command.

use std::process::{Command, Output, Stdio};

pub fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(args).stdin(Stdio::null()).output().unwrap()
}

pub fn stdout(args: &[&str]) -> String {
    let output = lab(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

pub fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

/// Asserts one sentence on standard error that contains `naming`, and exit status 1.
pub fn refused(args: &[&str], naming: &str) {
    ends_with(1, &lab(args), naming);
}

/// Like [`refused`], with the exit status for an invalid command line.
pub fn misused(args: &[&str], naming: &str) {
    ends_with(2, &lab(args), naming);
}

/// Asserts an exit status, and one sentence on standard error that contains `naming`.
pub fn ends_with(code: i32, output: &Output, naming: &str) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.starts_with("error: ") && message.trim_end().lines().count() == 1, "{message}");
    assert!(message.contains(naming), "{message:?} does not say {naming:?}");
}
