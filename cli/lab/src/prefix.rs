//! `lab prefix`: measures requests with a common prefix, with and without sharing it.

use std::io::{self, Write};
use std::time::Instant;

use anyhow::Result;
use argh::{ArgsInfo, FromArgs};
use engine::ModelFiles;
use engine::SamplingParams;
use engine::{Llm, Prompt};
use loadgen::random::WorkloadRng;

use cli::bench::options;
use cli::command::{Command, Positionals, Words};
use cli::engine_args::EngineArgs;
use cli::progress;
use cli::table::Table;
use cli::values::count;

/// The command.
pub const COMMAND: Command = Command {
    name: "prefix",
    positionals: Positionals::Model,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: true,
    examples: &[],
    run,
};

/// Measure the time to answer requests with a common prefix that is computed for each request, cached, or pinned in
/// advance.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// number of requests (64)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "64")]
    requests: usize,
    /// tokens of the common prefix; the paper's five examples have 341 (341)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "341")]
    tokens: usize,
    /// tokens of each prompt after the prefix (20)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "20")]
    own: usize,
    /// tokens to generate per request (32)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "32")]
    output: usize,
    /// interleaved measurements of each method, whose median counts (3)
    #[argh(option, arg_name = "n", from_str_fn(options::requests), default = "3")]
    repeats: usize,
}

/// The methods: name, whether prefix caching is on, and whether the prefix is pinned in advance.
const METHODS: [(&str, bool, bool); 3] =
    [("computed for each", false, false), ("prefix caching", true, false), ("pinned in advance", false, true)];

/// Answers the requests with each method and prints the table.
fn run(words: &Words) -> Result<()> {
    let (args, engine) = (words.own::<Args>()?, words.engine()?);
    if !engine.prefix_caching || !engine.shared_prefix.is_empty() {
        return Err(words
            .wrong("this benchmark compares --prefix-caching and --shared-prefix, so they cannot be given")
            .into());
    }
    Ok(io::stdout().write_all(args.table(&engine)?.to_string().as_bytes())?)
}

impl Args {
    fn table(&self, engine: &EngineArgs) -> Result<Table> {
        let mut table = Table::new(&["prefix", "tokens computed", "seconds", "speedup"]);
        let mut measured = METHODS.map(|_| (0, Vec::new()));
        for _ in 0..self.repeats {
            for ((_, prefix_caching, pinned), (computed, seconds)) in METHODS.into_iter().zip(&mut measured) {
                let (tokens, time) = self.serve(engine, prefix_caching, pinned)?;
                *computed = tokens;
                seconds.push(time);
            }
        }
        let mut slowest = None;
        for ((name, ..), (computed, mut seconds)) in METHODS.into_iter().zip(measured) {
            seconds.sort_by(f64::total_cmp);
            let seconds = seconds[seconds.len() / 2];
            let faster = *slowest.get_or_insert(seconds) / seconds;
            table.row([name.into(), computed.to_string(), format!("{seconds:.3}"), format!("{faster:.2}x")]);
        }
        Ok(table)
    }

    /// Returns the number of computed tokens, and the time without loading and pinning.
    fn serve(&self, engine: &EngineArgs, prefix_caching: bool, pinned: bool) -> Result<(usize, f64)> {
        let mut options = engine.options()?;
        options.scheduler.prefix_caching = prefix_caching;
        let files = ModelFiles::resolve(engine.model.as_deref(), true)?;
        let mut llm = Llm::load_with(&files, &options, progress::loading())?;
        let mut random = WorkloadRng::new(1);
        let vocab_size = llm.config().vocab_size;
        let mut text = |len: usize| random.tokens(len, vocab_size);
        let prefix = text(self.tokens);
        let prompts: Vec<Prompt> =
            (0..self.requests).map(|_| Prompt::Tokens([prefix.clone(), text(self.own)].concat())).collect();
        if pinned {
            llm.pin_prefix(&Prompt::Tokens(prefix))?;
        }
        let params = SamplingParams { max_tokens: self.output, ignore_eos: true, ..SamplingParams::default() };
        let begun = Instant::now();
        llm.generate(&prompts, &params)?;
        Ok((llm.stats().computed_tokens, begun.elapsed().as_secs_f64()))
    }
}
