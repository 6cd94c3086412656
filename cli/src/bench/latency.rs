//! `quire bench latency`: measures how long an engine takes for a batch.

use std::time::Instant;

use anyhow::Result;
use argh::{ArgsInfo, FromArgs};
use loadgen::random::WorkloadRng;
use loadgen::report::{Axis, Point, Report};
use loadgen::summary::Summary;
use loadgen::workload::{Lengths, Workload};

use super::options::{self, Sweep};
use super::{measured, run_requests};
use crate::command::{Command, Positionals, Words};
use crate::values::{count, seed};

/// The command.
pub const COMMAND: Command = Command {
    name: "bench latency",
    positionals: Positionals::Model,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: true,
    examples: &["quire bench latency --batch 1,8,32 --lengths 128,64"],
    run,
};

/// Measure how long the engine takes for batches of requests, one batch after the other, without a server.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// requests per batch, one or several numbers (1,8,32)
    #[argh(option, arg_name = "n", from_str_fn(options::sweep), default = "Sweep(vec![1, 8, 32])")]
    batch: Sweep,
    /// sharegpt, alpaca, prompt and output tokens such as 128,64, or a file of JSON lines (128,64)
    #[argh(
        option,
        arg_name = "lengths",
        from_str_fn(options::lengths),
        default = "Workload::Fixed(Lengths { prompt: 128, output: 64 })"
    )]
    lengths: Workload,
    /// batches of each size, after one for warm-up (5)
    #[argh(option, arg_name = "n", from_str_fn(options::requests), default = "5")]
    repeats: usize,
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
    if let Some(longest) = args.lengths.longest().filter(|longest| *longest > max_len) {
        let room = format!("the model and the KV cache have room for {max_len}");
        return Err(words.wrong(format!("--lengths asks for {longest} tokens in a request, but {room}")).into());
    }
    let mut points = Vec::new();
    for &batch in &args.batch.0 {
        let mut requests = args.lengths.requests(args.seed, max_len);
        loaded.answer(requests.by_ref().take(batch), &params, &mut random, Instant::now())?;
        let (start, mut records) = (Instant::now(), Vec::new());
        for _ in 0..args.repeats {
            records.extend(loaded.answer(requests.by_ref().take(batch), &params, &mut random, start)?);
        }
        points.push(Point { at: batch as f64, summary: Summary::of(&records) });
    }
    let lengths = args.lengths.cut_to(max_len) + &options::described(&params);
    let load = format!("{lengths}, {} batches of each size, seed {}", args.repeats, args.seed);
    let report = Report { bench: "latency", model: loaded.name, load, axis: Axis::Batch, points };
    measured::show(&report, args.json.as_deref())
}
