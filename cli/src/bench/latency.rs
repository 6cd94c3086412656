//! `quire bench latency`: how long an engine takes for a batch.

use std::time::Instant;

use anyhow::Result;
use argh::FromArgs;
use bench::random::Random;
use bench::report::{Axis, Point, Report};
use bench::summary::Summary;
use bench::workload::{Lengths, Workload};

use super::drive::Loaded;
use super::measured;
use super::options::{self, Sweep};

/// Measure how long the engine takes for batches of requests, one batch after the other, without a server. Takes the
/// engine's options as well (--model, --device, --max-num-seqs and so on): quire --help.
#[derive(FromArgs)]
#[argh(subcommand, name = "latency", help_triggers("-h", "--help", "help"))]
pub struct Args {
    /// requests in a batch, one or several numbers (1,8,32)
    #[argh(option, arg_name = "n", from_str_fn(options::sweep), default = "Sweep(vec![1, 8, 32])")]
    batch: Sweep,
    /// sharegpt, alpaca, tokens of prompt and output such as 128,64, or a file of JSON lines (128,64)
    #[argh(
        option,
        arg_name = "lengths",
        from_str_fn(options::lengths),
        default = "Workload::Fixed(Lengths { prompt: 128, output: 64 })"
    )]
    lengths: Workload,
    /// batches of each size, after one that does not count (5)
    #[argh(option, arg_name = "n", from_str_fn(options::requests), default = "5")]
    repeats: usize,
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
    let mut points = Vec::new();
    for &batch in &args.batch.0 {
        let mut requests = args.lengths.requests(args.seed, max_len);
        loaded.answer(requests.by_ref().take(batch), &mut random, Instant::now())?;
        let (start, mut records) = (Instant::now(), Vec::new());
        for _ in 0..args.repeats {
            records.extend(loaded.answer(requests.by_ref().take(batch), &mut random, start)?);
        }
        points.push(Point { at: batch as f64, summary: Summary::of(&records) });
    }
    let load = format!("{}, {} batches of each size, seed {}", args.lengths, args.repeats, args.seed);
    let report = Report { bench: "latency", model: loaded.name, load, axis: Axis::Batch, points };
    measured::show(&report, args.json.as_deref())
}
