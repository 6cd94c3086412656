//! `lab sharing`: measures the blocks that sharing saves, at the paper's scale (6.3, figure 15).

use std::io::{self, Write};

use anyhow::Result;
use argh::{ArgsInfo, FromArgs};
use engine::SchedulerOptions;
use engine::tools::engine::{Engine, EngineConfig};
use engine::tools::kv::CacheGroup;
use engine::tools::sampling::{Beam, EarlyStopping, SamplingParams};
use loadgen::random::WorkloadRng;
use loadgen::trace::{ALPACA, LengthDistribution, SHAREGPT};

use crate::fake_model::{FakeModel, VOCAB};
use cli::command::{Command, Positionals, Words};
use cli::table::Table;
use cli::values::{count, seed};

/// The command.
pub const COMMAND: Command = Command {
    name: "sharing",
    positionals: Positionals::None,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &[],
    run,
};

/// Measure the KV blocks that sharing saves in parallel sampling and beam search. Lengths are like the paper's, and the
/// KV cache has OPT-13B's size there. A fake model chooses the tokens: nothing is computed.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// requests per row (200)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "200")]
    requests: usize,
    /// random seed of lengths and tokens (1)
    #[argh(option, arg_name = "n", from_str_fn(seed), default = "1")]
    seed: u64,
}

/// KV slots of OPT-13B on an A100 with 40 GB (table 1 of the paper). `BLOCK_SIZE` is the paper's block size.
const SLOTS: usize = 15_700;
const BLOCK_SIZE: usize = 16;

/// Runs the requests of each row and prints the table.
fn run(words: &Words) -> Result<()> {
    Ok(io::stdout().write_all(words.own::<Args>()?.table()?.to_string().as_bytes())?)
}

impl Args {
    fn table(&self) -> Result<Table> {
        let headings =
            ["lengths", "method", "width", "blocks saved", "paper", "utilisation", "swapped out", "recomputed"];
        let mut table = Table::new(&headings);
        for (trace, sampling, beams) in [(SHAREGPT, "16.2-30.5 %", "44.3-66.3 %"), (ALPACA, "6.1-9.8 %", "37.6-55.2 %")]
        {
            for (method, paper, search) in [("parallel sampling", sampling, false), ("beam search", beams, true)] {
                for width in [2, 4, 6] {
                    let stats = self.serve(&trace, width, search)?;
                    table.row([
                        trace.name.into(),
                        method.into(),
                        width.to_string(),
                        format!("{:.1} %", 100.0 * stats.sharing_saved()),
                        paper.into(),
                        format!("{:.1} %", 100.0 * stats.utilisation()),
                        stats.swapped_out.to_string(),
                        (stats.preemptions - stats.swapped_out).to_string(),
                    ]);
                }
            }
        }
        Ok(table)
    }

    /// Runs the requests of a trace, which all arrive at once.
    fn serve(&self, trace: &LengthDistribution, width: usize, search: bool) -> Result<engine::Stats> {
        let num_blocks = SLOTS / BLOCK_SIZE;
        let config = EngineConfig {
            num_blocks,
            block_size: BLOCK_SIZE,
            swap_blocks: num_blocks,
            groups: vec![CacheGroup::only(None)],
            max_len: 2048,
            boundary: None,
            vocab_size: VOCAB,
            eos: Vec::new(),
            // Only sharing between the sequences of one request is measured.
            scheduler: SchedulerOptions {
                prefix_caching: false,
                max_request_share: 1.0,
                ..SchedulerOptions::default()
            },
        };
        let mut engine = Engine::new(config, Box::new(FakeModel));
        let mut random = WorkloadRng::new(self.seed);
        for (prompt, output) in trace.lengths(self.requests, &mut random) {
            let beam = search.then_some(Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::Never });
            let params = SamplingParams {
                n: width,
                best_of: width,
                max_tokens: output,
                temperature: if search { 0.0 } else { 1.0 },
                seed: Some(random.bits()),
                ignore_eos: true,
                beam,
                ..SamplingParams::default()
            };
            engine.add(random.tokens(prompt, VOCAB), params)?;
        }
        while engine.has_work() {
            engine.step()?;
        }
        Ok(engine.stats())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_prompts_and_beams_share_more() {
        let bench = Args { requests: 20, seed: 1 };
        let saved =
            |trace: &LengthDistribution, width, search| bench.serve(trace, width, search).map(|s| s.sharing_saved());
        let [short, long] = [ALPACA, SHAREGPT].map(|trace| saved(&trace, 4, false).unwrap_or_default());
        assert!(short > 0.0 && long > short, "{short} {long}");
        assert!(saved(&ALPACA, 4, true).unwrap_or_default() > short);
        assert!(saved(&ALPACA, 6, false).unwrap_or_default() > saved(&ALPACA, 2, false).unwrap_or_default());
    }
}
