//! `quire bench`: what a model costs and what sharing saves, computed or measured. A file for each command.

mod drive;
mod floor;
mod gpu;
mod latency;
mod measured;
mod model;
mod options;
mod prefix;
mod serve;
mod sharing;
mod stand_in;
mod step;
mod throughput;

use std::io::{self, Write};

use anyhow::{Result, anyhow};
use argh::FromArgs;

use crate::{args, help, request};

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
    Serve(serve::Args),
    Throughput(throughput::Args),
    Latency(latency::Args),
    Sharing(sharing::Args),
    Prefix(prefix::Args),
}

/// Runs the command; `words` follow `quire bench`.
pub fn run(words: &[&str]) -> Result<()> {
    let has_engine = matches!(words, ["throughput" | "latency", ..]);
    let (engine, own) = if has_engine { split(words) } else { (Vec::new(), words.to_vec()) };
    let args = match Args::from_args(&["quire", "bench"], &own) {
        Ok(args) => args,
        Err(exit) if exit.status.is_ok() => return Ok(io::stdout().write_all(exit.output.as_bytes())?),
        Err(exit) => return Err(usage(&exit.output)),
    };
    let engine = args::Args::from_args(&["quire", "bench"], &engine).map_err(|exit| usage(&exit.output))?;
    let load = || drive::load(engine.model.as_deref(), &request::options(&engine));
    match args.command {
        Command::Floor(args) => floor::run(&args),
        Command::Serve(args) => serve::run(args),
        Command::Throughput(args) => throughput::run(&args, load()?),
        Command::Latency(args) => latency::run(&args, load()?),
        Command::Sharing(args) => sharing::run(&args),
        Command::Prefix(args) => prefix::run(&args),
    }
}

/// Words for the engine, which have the same names as in `quire` itself, and the others.
fn split<'a>(words: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    help::split(words, help::is_engine_option, help::is_engine_option)
}

fn usage(message: &str) -> anyhow::Error {
    anyhow!("{} (--help shows all options)", crate::one_line(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_to_the_engine_or_the_command() {
        let (engine, own) = split(&["latency", "--model", "gpt2", "--batch", "1,2", "--block-size", "8", "--json"]);
        assert_eq!(engine, ["--model", "gpt2", "--block-size", "8"]);
        assert_eq!(own, ["latency", "--batch", "1,2", "--json"]);
    }
}
