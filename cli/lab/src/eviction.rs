//! `lab eviction`: compares rules that evict cached prefixes, on simulated sessions.

use std::io::{self, Write};

use anyhow::{Context, Result, ensure};
use argh::{ArgsInfo, FromArgs};
use engine::DType;
use engine::tools::kv::KvLayout;
use engine::tools::parallel::Shard;
use simulator::cache_plan;
use simulator::eviction::{
    BLOCK_SIZE, Kind, Order, PagedReplay, QueuedReplay, Replay, Saved, Work, bound, fits, qwen3_5_35b, requests,
};
use simulator::model::ModelShape;

use cli::command::{Command, Positionals, Words};
use cli::table::Table;
use cli::values::{count, seed};

/// The command.
pub const COMMAND: Command = Command {
    name: "eviction",
    positionals: Positionals::Model,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &[],
    run,
};

/// Compare the tokens of prompts that the prefix cache saves with this engine's rule of eviction, with least recently
/// used, with vLLM's rule, and at most. Sessions are simulated: nothing is computed.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// directory, hub id or short name, or qwen3.5-35b-a3b (gemma-3-12b)
    #[argh(option, short = 'm', arg_name = "model", default = "\"gemma-3-12b\".into()")]
    model: String,
    /// requests per trace (600)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "600")]
    requests: usize,
    /// open sessions at a time (32)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "32")]
    sessions: usize,
    /// random seed of lengths and times (1)
    #[argh(option, arg_name = "n", from_str_fn(seed), default = "1")]
    seed: u64,
}

/// A model with recurrent layers.
const RECURRENT: &str = "qwen3.5-35b-a3b";
/// GiB of the KV cache.
const SIZES: [usize; 4] = [12, 24, 48, 96];
const KINDS: [(&str, Kind); 2] = [("conversations", Kind::Conversations), ("agents", Kind::Agents)];

/// A measure of saved work.
type Value = fn(&Saved) -> f64;
/// The columns' values.
const VALUES: [(&str, Value); 2] = [("tokens", |saved| saved.tokens), ("operations", |saved| saved.flops)];

/// Prints the table.
fn run(words: &Words) -> Result<()> {
    Ok(io::stdout().write_all(words.own::<Args>()?.table()?.to_string().as_bytes())?)
}

impl Args {
    /// Returns the cache of the model, and the work of its prompts.
    fn model(&self) -> Result<(KvLayout, Work)> {
        if self.model == RECURRENT {
            return Ok(qwen3_5_35b());
        }
        let config = ModelShape::find(&self.model)?.config;
        let layout = cache_plan::layout(&config, Shard::WHOLE, BLOCK_SIZE, DType::F16.into())?;
        Ok((layout, Work::new(&config).context("only decoders from LLaMA on are compared")?))
    }

    fn table(&self) -> Result<Table> {
        let (layout, work) = self.model()?;
        let mut table = Table::new(&["trace", "GiB", "% saved", "this engine", "LRU", "vLLM's rule", "at most"]);
        for (name, kind) in KINDS {
            let trace = requests(kind, self.requests, self.sessions, self.seed);
            let all = Saved::all(&trace, &work);
            for gib in SIZES {
                let bytes = gib << 30;
                ensure!(fits(&trace, &layout, bytes), "a request does not fit {gib} GiB");
                let [paged, lru, vllm] = rules(&layout, bytes).map(|mut rule| Saved::by(&mut *rule, &trace, &work));
                let saved = [paged, lru, vllm, bound(&trace, &layout, &work, bytes)];
                let share =
                    |value: Value| saved.each_ref().map(|saved| format!("{:.1}", 100.0 * value(saved) / value(&all)));
                for (what, value) in VALUES {
                    let [paged, lru, vllm, most] = share(value);
                    table.row([name.into(), gib.to_string(), what.into(), paged, lru, vllm, most]);
                }
            }
        }
        Ok(table)
    }
}

/// Returns an empty cache for each rule.
fn rules(layout: &KvLayout, bytes: usize) -> [Box<dyn Replay>; 3] {
    [
        Box::new(PagedReplay::new(layout, bytes)),
        Box::new(QueuedReplay::new(layout, bytes, Order::Forward)),
        Box::new(QueuedReplay::new(layout, bytes, Order::Reverse)),
    ]
}
