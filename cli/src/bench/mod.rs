//! `quire bench`: what a model costs and what sharing saves, computed or measured. A file for each command.

mod floor;
mod gpu;
mod lengths;
mod model;
mod prefix;
mod sharing;
mod stand_in;
mod step;

use std::io::{self, Write};

use anyhow::{Result, bail};
use argh::FromArgs;

/// Say what a model costs, and what sharing memory saves.
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
    Sharing(sharing::Args),
    Prefix(prefix::Args),
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
        Command::Sharing(args) => sharing::run(&args),
        Command::Prefix(args) => prefix::run(&args),
    }
}
