//! `quire bench`: what a model costs, computed or measured. A file for each command.

mod floor;
mod gpu;
mod model;
mod step;

use std::io::{self, Write};

use anyhow::{Result, bail};
use argh::FromArgs;

/// Say what a model costs.
#[derive(FromArgs)]
#[argh(help_triggers("-h", "--help", "help"))]
struct Args {
    #[argh(subcommand)]
    command: Command,
}

#[derive(FromArgs)]
#[argh(subcommand)]
enum Command {
    Floor(floor::Args),
}

/// Runs the command; `words` follow `quire bench`.
pub fn run(words: &[&str]) -> Result<()> {
    let args = match Args::from_args(&["quire", "bench"], words) {
        Ok(args) => args,
        Err(exit) if exit.status.is_ok() => return Ok(io::stdout().write_all(exit.output.as_bytes())?),
        Err(exit) => bail!("{} (--help shows all options)", crate::one_line(&exit.output)),
    };
    match args.command {
        Command::Floor(args) => floor::run(&args),
    }
}
