//! `quire plan`: estimates a deployment's memory and the request rate that it sustains.

use std::fs;
use std::io::{self, Write};

use anyhow::{Context, Result};
use argh::{ArgsInfo, FromArgs};
use engine::{Error, KvDtype};
use serde_json::{Value, json};
use simulator::gpu::{self, GpuSpec};
use simulator::model::ModelShape;
use simulator::plan::{self, Plan, Question};
use simulator::traces::TraceWorkload;

use crate::command::{Command, Positionals, Words};
use crate::values::{count, quantised_kv};

/// The command.
pub const COMMAND: Command = Command {
    name: "plan",
    positionals: Positionals::Model,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &[
        "quire plan llama-3-8b --gpu l4 --workload code",
        "quire plan opt-66b --gpu a100-40gb --gpus 4",
        "quire plan gpt-oss-20b --gpu h100",
    ],
    run,
};

/// Show how a model uses GPU memory, how many requests fit, at which request rate latency starts to rise, and how to
/// serve it. All figures are computed or simulated: neither the GPU nor the weights are needed.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// directory, hub id or short name
    #[argh(option, short = 'm', arg_name = "model")]
    model: String,
    /// GPU: h200, h100, a100, a100-40gb, l40s, l4 or rtx-4090 (h200)
    #[argh(option, arg_name = "gpu", from_str_fn(gpu::named), default = "&gpu::GPUS[0]")]
    gpu: &'static GpuSpec,
    /// GPUs that split the model (the fewest that have room)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    gpus: Option<usize>,
    /// chat, code, long-document, or a file of lengths as for bench serve (chat)
    #[argh(option, arg_name = "lengths", default = "\"chat\".into()")]
    workload: String,
    /// element type of keys and values: int8 or fp8 (16 bits)
    #[argh(option, arg_name = "type", from_str_fn(quantised_kv))]
    kv_dtype: Option<KvDtype>,
    /// also write the figures to this file as JSON
    #[argh(option, arg_name = "file")]
    json: Option<String>,
}

/// Prints the plan, and writes it as JSON if a file is given.
fn run(words: &Words) -> Result<()> {
    let args = words.own::<Args>()?;
    let model = ModelShape::find(&args.model)?;
    let workload = match plan::workload(&args.workload) {
        Ok(workload) => workload,
        Err(why) => listed(&args.workload).context(why)?,
    };
    let (gpu, gpus, name, kv_dtype) = (args.gpu, args.gpus, &args.workload, args.kv_dtype);
    let question = Question { model: &model, gpu, gpus, name, workload: &workload, kv_dtype };
    let (text, json) = answer(&question)?;
    write!(io::stdout(), "{text}")?;
    let Some(file) = &args.json else { return Ok(()) };
    fs::write(file, format!("{json:#}\n")).with_context(|| format!("cannot write {file}"))
}

/// Returns the plan as text and as JSON. Without GPU kernels for the model, these are only the figures of its cache.
fn answer(question: &Question<'_>) -> Result<(String, Value)> {
    let error = match Plan::new(question) {
        Ok(plan) => return Ok((plan.to_string(), plan.json())),
        Err(error) => error,
    };
    let Some(Error::Unsupported(why)) = error.downcast_ref() else { return Err(error) };
    let (name, cache) = (&question.model.name, question.cache()?);
    let text = format!("{name}: the KV cache, computed. There is no plan of a deployment: {why}.\n\n{cache}");
    Ok((text, json!({"model": name, "kv_groups": cache.json(), "unsupported": why})))
}

/// Reads the request lengths in a file.
///
/// # Errors
/// If the file cannot be read or is not a trace.
pub fn listed(file: &str) -> Result<TraceWorkload> {
    let requests = match file.parse()? {
        loadgen::workload::Workload::Listed { requests, .. } => requests,
        other => other.requests(1, usize::MAX).take(10_000).collect(),
    };
    Ok(TraceWorkload::Listed(requests.iter().map(|lengths| (lengths.prompt, lengths.output)).collect()))
}
