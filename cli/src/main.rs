//! `quire`: continue text with a language model.

mod args;
mod bench;
mod generate;
mod help;
mod json;
mod kernels;
mod print;
mod report;
mod request;
mod table;
mod trace;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::{Result, bail};
use argh::FromArgs;

use crate::args::Args;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = match std::env::args_os().skip(1).map(OsString::into_string).collect() {
        Ok(words) => words,
        Err(word) => bail!("{word:?} is not valid UTF-8"),
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["kernels", ref rest @ ..] => return kernels::run(rest),
        ["bench", ref rest @ ..] => return bench::run(rest),
        _ => {}
    }
    let words = with_early_stopping(words);
    let args = match Args::from_args(&["quire"], &words) {
        Ok(args) => args,
        Err(exit) if exit.status.is_ok() => return Ok(io::stdout().write_all(help::page().as_bytes())?),
        Err(exit) => bail!("{} (--help shows all options)", one_line(&exit.output)),
    };
    if args.version {
        return Ok(writeln!(io::stdout(), "quire {}", env!("CARGO_PKG_VERSION"))?);
    }
    generate::run(&args)
}

/// `--early-stopping` without a word of its own means true; argh knows no optional values.
fn with_early_stopping(mut words: Vec<&str>) -> Vec<&str> {
    if let Some(at) = words.iter().position(|w| *w == "--early-stopping")
        && words.get(at + 1).is_none_or(|next| next.starts_with("--"))
    {
        words.insert(at + 1, "true");
    }
    words
}

/// argh's messages span lines.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whoever read our output has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
}
