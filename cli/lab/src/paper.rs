//! `lab paper`: redraws the figures of the PagedAttention paper.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::figures::{self, ALL};
use crate::jobs::Progress;
use crate::laboratory::{HOUR, Lab};
use crate::page;
use anyhow::Result;
use argh::{ArgsInfo, FromArgs};
use indicatif::{ProgressBar, ProgressStyle};
use simulator::traces::PublishedLengths;

use cli::command::{Command, Positionals, Words};
use cli::plan::listed;
use cli::values::{seconds, seed};

/// The command.
pub const COMMAND: Command = Command {
    name: "paper",
    positionals: Positionals::None,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &["lab paper --figure all --out paper", "lab paper --figure 12 --seconds 900"],
    run,
};

/// Redraw the figures of the PagedAttention paper with this engine's scheduler and block manager, next to the paper's
/// results. Times are simulated: no GPU is used.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// number of a figure, or all (all)
    #[argh(option, arg_name = "n", default = "\"all\".into()")]
    figure: String,
    /// folder for a page, and for an image, JSON and text of each figure (paper)
    #[argh(option, arg_name = "folder", default = "PathBuf::from(\"paper\")")]
    out: PathBuf,
    /// random seed of lengths and arrivals (1)
    #[argh(option, arg_name = "n", from_str_fn(seed), default = "1")]
    seed: u64,
    /// length of a trace in seconds (3600); OPT-175B uses a quarter, as in the paper
    #[argh(option, arg_name = "s", from_str_fn(trace_seconds), default = "HOUR")]
    seconds: f64,
    /// trace with ShareGPT's real lengths, made by lab trace (random lengths like them)
    #[argh(option, arg_name = "file")]
    sharegpt: Option<String>,
    /// trace with Alpaca's real lengths, made by lab trace (random lengths like them)
    #[argh(option, arg_name = "file")]
    alpaca: Option<String>,
}

fn trace_seconds(s: &str) -> Result<f64, String> {
    let seconds = seconds(s)?.as_secs_f64();
    if (1.0..=100.0 * HOUR).contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("{s:?} is not from 1 second to 100 hours"))
    }
}

/// Makes the figures. Prints and writes each one as soon as it is done.
fn run(words: &Words) -> Result<()> {
    let args = words.own::<Args>()?;
    let wanted = figures::named(&args.figure);
    if wanted.is_empty() {
        let numbers: Vec<_> = ALL.iter().map(|(number, _)| *number).collect();
        let numbers = numbers.join(", ");
        return Err(words.wrong(format!("--figure {:?} is not one of {numbers} and all", args.figure)).into());
    }
    // The bar hides itself if standard error is not a terminal.
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} figure {prefix}: {msg}") {
        bar.set_style(style);
    }
    let progress = |Progress { name, done, of, unit }: Progress<'_>| {
        bar.set_message(format!("{done} of {of} {unit} done, {name}"));
        bar.tick();
    };
    let [sharegpt, alpaca] = [&args.sharegpt, &args.alpaca].map(|file| file.as_deref().map(listed).transpose());
    let (sharegpt, alpaca) = (sharegpt?, alpaca?);
    let published = PublishedLengths { sharegpt: sharegpt.as_ref(), alpaca: alpaca.as_ref() };
    let lab = Lab { seed: args.seed, seconds: args.seconds, published, progress: &progress };
    let mut figures = Vec::new();
    for (number, make) in wanted {
        bar.set_prefix(number);
        bar.set_message("0 done");
        bar.tick();
        let figure = make(&lab)?;
        page::write_figure(&args.out, &figure)?;
        bar.suspend(|| writeln!(io::stdout(), "{}", figure.text()))?;
        figures.push(figure);
    }
    bar.finish_and_clear();
    page::write_index(&args.out, &figures, args.seed)?;
    writeln!(io::stdout(), "{}", args.out.join("index.html").display())?;
    Ok(())
}
