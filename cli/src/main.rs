//! `quire`: continue text with a language model, serve it, measure it.

mod args;
mod bench;
mod chat;
mod choices;
mod command;
mod commands;
mod completions;
mod engine_args;
mod generate;
mod help;
mod interrupt;
mod json;
#[cfg(feature = "cuda")]
mod kernels;
mod manual;
#[cfg(feature = "cuda")]
mod paper;
#[cfg(feature = "cuda")]
mod plan;
mod print;
mod progress;
mod quantize;
mod report;
mod request;
mod serve;
mod session;
#[cfg(unix)]
mod sigaction;
mod signals;
mod suggest;
mod table;
mod trace;
mod values;
mod words;

use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;
use engine::tools::constraint::trial;

use crate::command::Words;
use crate::commands::{COMMANDS, Call};
use crate::interrupt::Interrupted;
use crate::words::UsageError;

/// The exit status for an invalid command line.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == trial::ARGUMENT) {
        return trial::run();
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => interrupt::STATUS.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            if is_usage(&error) { USAGE.into() } else { ExitCode::FAILURE }
        }
    }
}

fn run() -> Result<()> {
    #[cfg(unix)]
    sigaction::explain_lost_files();
    let words: Vec<String> = match std::env::args_os().skip(1).map(OsString::into_string).collect() {
        Ok(words) => words,
        Err(word) => return Err(UsageError::new(format!("{word:?} is not valid UTF-8")).into()),
    };
    if words.is_empty() && io::stdin().is_terminal() {
        return put(&help::hello());
    }
    match commands::find(&words)? {
        Call::Page(page) => put(&page),
        Call::Run(command, words) => {
            let words = Words::sort(COMMANDS, command, words)?;
            if words.help { put(&help::page(COMMANDS, command)) } else { (command.run)(&words) }
        }
    }
}

fn put(text: &str) -> Result<()> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Whether the command line itself is invalid, and not something that it refers to.
fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<UsageError>() || matches!(error.downcast_ref(), Some(engine::Error::Option(_)))
}

/// Whether the reader closed our output, as `head` does after enough lines.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
}
