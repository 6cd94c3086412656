//! The command line of `quire`, and the parts of it that `lab` shares.

mod args;
pub mod bench;
mod chat;
mod choices;
pub mod command;
mod commands;
mod completions;
mod dispatch;
pub mod engine_args;
mod generate;
mod help;
mod interrupt;
mod json;
mod manual;
#[cfg(feature = "cuda")]
pub mod plan;
mod print;
pub mod progress;
mod quantize;
mod report;
mod request;
mod serve;
mod session;
#[cfg(unix)]
mod sigaction;
mod signals;
pub mod suggest;
pub mod table;
mod trace;
pub mod values;
pub mod words;

use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;
use engine::tools::constraint::trial;

use crate::command::{Program, Words};
pub use crate::commands::QUIRE;
use crate::dispatch::Call;
use crate::interrupt::Interrupted;
use crate::words::UsageError;

/// The exit status for an invalid command line.
const USAGE: u8 = 2;

/// Runs a program with the words of this process's command line.
pub fn main(program: &'static Program) -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == trial::ARGUMENT) {
        return trial::run();
    }
    match run(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => interrupt::STATUS.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            if is_usage(&error) { USAGE.into() } else { ExitCode::FAILURE }
        }
    }
}

fn run(program: &'static Program) -> Result<()> {
    #[cfg(unix)]
    sigaction::explain_lost_files();
    let words: Vec<String> = match std::env::args_os().skip(1).map(OsString::into_string).collect() {
        Ok(words) => words,
        Err(word) => return Err(UsageError::new(format!("{word:?} is not valid UTF-8")).into()),
    };
    if words.is_empty() && program.default().is_some() && io::stdin().is_terminal() {
        return put(&help::hello());
    }
    match dispatch::find(program, &words)? {
        Call::Page(page) => put(&page),
        Call::Run(command, words) => {
            let words = Words::sort(program, command, words)?;
            if words.help { put(&help::page(program, command)) } else { (command.run)(&words) }
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
