//! `quire bench prefix`: requests that begin alike, with and without sharing what they begin with.

use std::io::{self, Write};
use std::time::Instant;

use anyhow::Result;
use argh::FromArgs;
use bench::random::Random;
use engine::llm::{Llm, Options, Prompt};
use engine::load::ModelFiles;
use engine::sampling::SamplingParams;

use crate::table::Table;

/// Time to answer requests with a common prefix, on the built-in model: computed for each, found by prefix caching, and
/// pinned before they come.
#[derive(FromArgs)]
#[argh(subcommand, name = "prefix", help_triggers("-h", "--help", "help"))]
pub struct Args {
    /// requests (64)
    #[argh(option, default = "64")]
    requests: usize,
    /// tokens of the common prefix; five examples in the paper (341)
    #[argh(option, default = "341")]
    tokens: usize,
    /// tokens of each prompt beside it (20)
    #[argh(option, default = "20")]
    own: usize,
    /// tokens to generate for each (32)
    #[argh(option, default = "32")]
    output: usize,
}

/// Answers the requests in each way, and prints the table.
pub fn run(args: &Args) -> Result<()> {
    Ok(io::stdout().write_all(args.table()?.to_string().as_bytes())?)
}

impl Args {
    fn table(&self) -> Result<Table> {
        let mut table = Table::new(&["prefix", "tokens computed", "seconds", "faster"]);
        let mut slowest = None;
        for (name, prefix_caching, pinned) in
            [("computed for each", false, false), ("prefix caching", true, false), ("pinned before", false, true)]
        {
            let (computed, seconds) = self.serve(prefix_caching, pinned)?;
            let faster = *slowest.get_or_insert(seconds) / seconds;
            table.row([name.into(), computed.to_string(), format!("{seconds:.3}"), format!("{faster:.2}x")]);
        }
        Ok(table)
    }

    /// Tokens computed, and the time it took without that for pinning.
    fn serve(&self, prefix_caching: bool, pinned: bool) -> Result<(usize, f64)> {
        let options = Options { prefix_caching, ..Options::default() };
        let mut llm = Llm::load(&ModelFiles::resolve(None, true)?, &options)?;
        let mut random = Random::new(1);
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
