//! `quire bench throughput`: how fast an engine answers requests that are all there.

use std::io::{self, Write};
use std::time::Instant;

use anyhow::Result;
use argh::FromArgs;
use bench::random::Random;
use bench::report::{Axis, Point, Report};
use bench::summary::Summary;
use bench::trace::SHAREGPT;
use bench::workload::Workload;

use super::drive::Loaded;
use super::{measured, options};
use crate::report;

/// Measure how fast the engine answers requests that all come at once, without a server. Takes the engine's options as well
/// (--model, --device, --max-num-seqs and so on): quire --help.
#[derive(FromArgs)]
#[argh(subcommand, name = "throughput", help_triggers("-h", "--help", "help"))]
pub struct Args {
    /// sharegpt, alpaca, tokens of prompt and output such as 128,64, or a file of JSON lines (sharegpt)
    #[argh(option, arg_name = "lengths", from_str_fn(options::lengths), default = "Workload::Like(SHAREGPT)")]
    lengths: Workload,
    /// requests (100)
    #[argh(option, arg_name = "n", from_str_fn(options::requests), default = "100")]
    requests: usize,
    /// seed of lengths and prompts (1)
    #[argh(option, arg_name = "n", default = "1")]
    seed: u64,
    /// file that gets the figures as well
    #[argh(option, arg_name = "file")]
    json: Option<String>,
}

/// Runs the command.
pub fn run(args: &Args, mut loaded: Loaded) -> Result<()> {
    let (max_len, mut random) = (loaded.max_len(), Random::new(args.seed));
    let requests = args.lengths.requests(args.seed, max_len).take(args.requests);
    let records = loaded.answer(requests, &mut random, Instant::now())?;
    let report = Report {
        bench: "throughput",
        model: loaded.name,
        load: format!("{}, at most {max_len} tokens each, seed {}", args.lengths, args.seed),
        axis: Axis::Batch,
        points: vec![Point { at: args.requests as f64, summary: Summary::of(&records) }],
    };
    measured::show(&report, args.json.as_deref())?;
    let stats = loaded.llm.stats();
    writeln!(
        io::stdout(),
        "{} steps, at most {} sequences, {} preemptions, KV utilisation {:.1} %",
        stats.steps,
        stats.peak_seqs,
        stats.preemptions,
        100.0 * stats.utilisation()
    )?;
    if let Some(note) = report::exhausted(&loaded.llm) {
        eprintln!("{note}");
    }
    Ok(())
}
