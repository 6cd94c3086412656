//! `quire bench throughput`: measures how fast an engine answers requests that all arrive at once.

use std::io::{self, Write};
use std::time::Instant;

use anyhow::Result;
use argh::{ArgsInfo, FromArgs};
use loadgen::random::WorkloadRng;
use loadgen::report::{Axis, Point, Report};
use loadgen::summary::Summary;
use loadgen::trace::SHAREGPT;
use loadgen::workload::Workload;

use super::{measured, options, run_requests};
use crate::command::{Command, Positionals, Words};
use crate::report;
use crate::values::{count, seed};

/// The command.
pub const COMMAND: Command = Command {
    name: "bench throughput",
    positionals: Positionals::Model,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: true,
    examples: &["quire bench throughput --lengths alpaca --requests 100"],
    run,
};

/// Measure how fast the engine answers requests that all arrive at once, without a server.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// sharegpt, alpaca, prompt and output tokens such as 128,64, or a file of JSON lines (sharegpt)
    #[argh(option, arg_name = "lengths", from_str_fn(options::lengths), default = "Workload::Like(SHAREGPT)")]
    lengths: Workload,
    /// number of requests (100)
    #[argh(option, arg_name = "n", from_str_fn(options::requests), default = "100")]
    requests: usize,
    /// outputs per request, sampled at temperature 1 if there are several (1)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "1")]
    n: usize,
    /// outputs generated per request, returning the n best (n)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    best_of: Option<usize>,
    /// beams per request, returning the n best
    #[argh(option, arg_name = "n", from_str_fn(count))]
    beam_width: Option<usize>,
    /// random seed of lengths and prompts (1)
    #[argh(option, arg_name = "n", from_str_fn(seed), default = "1")]
    seed: u64,
    /// also write the figures to this file as JSON
    #[argh(option, arg_name = "file")]
    json: Option<String>,
}

/// Runs the command.
fn run(words: &Words) -> Result<()> {
    let args = words.own::<Args>()?;
    let params = options::decoding(args.n, args.best_of, args.beam_width);
    params.validate()?;
    let mut loaded = run_requests::load(&words.engine()?)?;
    let (max_len, mut random) = (loaded.max_len(), WorkloadRng::new(args.seed));
    let requests = args.lengths.requests(args.seed, max_len).take(args.requests);
    options::note_if_shortened(&args.lengths, max_len);
    let records = loaded.answer(requests, &params, &mut random, Instant::now())?;
    let report = Report {
        bench: "throughput",
        model: loaded.name,
        load: format!("{}{}, seed {}", args.lengths.cut_to(max_len), options::described(&params), args.seed),
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
