//! `quire plan`: what a deployment needs, and the rate that it sustains.

use std::fs;
use std::io::{self, Write};

use anyhow::{Context, Result};
use argh::{ArgsInfo, FromArgs};
use engine::kv::KvDtype;
use simulator::gpu::{self, GpuSpec};
use simulator::model::ModelShape;
use simulator::plan::{self, Plan, Question};
use simulator::traces::TraceWorkload;

use crate::command::{Command, Positionals, Words};
use crate::values::{coded, count};

/// The command.
pub const COMMAND: Command = Command {
    name: "plan",
    positionals: Positionals::Model,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &["quire plan llama-3-8b --gpu l4 --workload code", "quire plan opt-66b --gpu a100-40gb --gpus 4"],
    run,
};

/// Say where a model's memory goes on a GPU, how many requests have room, at which rate latency turns up, and how to serve it.
/// Computed and simulated: neither the GPU nor the weights are needed.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// directory, hub id or short name
    #[argh(option, short = 'm', arg_name = "model")]
    model: String,
    /// which GPU: h200, h100, a100, a100-40gb, l40s, l4 or rtx-4090 (h200)
    #[argh(option, arg_name = "gpu", from_str_fn(gpu::named), default = "&gpu::GPUS[0]")]
    gpu: &'static GpuSpec,
    /// GPUs that divide the model (the fewest that have room)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    gpus: Option<usize>,
    /// chat, code, long-document, or a file of lengths as bench serve takes (chat)
    #[argh(option, arg_name = "lengths", default = "\"chat\".into()")]
    workload: String,
    /// element type of keys and values: int8 or fp8 (16 bits)
    #[argh(option, arg_name = "type", from_str_fn(coded))]
    kv_dtype: Option<KvDtype>,
    /// file that gets the figures as well
    #[argh(option, arg_name = "file")]
    json: Option<String>,
}

/// Prints the plan.
fn run(words: &Words) -> Result<()> {
    let args = words.own::<Args>()?;
    let model = ModelShape::find(&args.model)?;
    let workload = match plan::workload(&args.workload) {
        Ok(workload) => workload,
        Err(why) => listed(&args.workload).context(why)?,
    };
    let (gpu, gpus, name, kv_dtype) = (args.gpu, args.gpus, &args.workload, args.kv_dtype);
    let question = Question { model: &model, gpu, gpus, name, workload: &workload, kv_dtype };
    let plan = Plan::new(&question)?;
    write!(io::stdout(), "{plan}")?;
    let Some(file) = &args.json else { return Ok(()) };
    fs::write(file, format!("{:#}\n", plan.json())).with_context(|| format!("cannot write {file}"))
}

/// The lengths of a file.
///
/// # Errors
/// If it cannot be read, or is no trace.
pub fn listed(file: &str) -> Result<TraceWorkload> {
    let requests = match file.parse()? {
        loadgen::workload::Workload::Listed { requests, .. } => requests,
        other => other.requests(1, usize::MAX).take(10_000).collect(),
    };
    Ok(TraceWorkload::Listed(requests.iter().map(|lengths| (lengths.prompt, lengths.output)).collect()))
}
