//! `lab floor`: lists the launches of a step on a GPU, and the minimum time that they can take. It needs no
//! GPU.

use std::fs;
use std::io::{self, Write};

use anyhow::{Context, Result, ensure};
use argh::{ArgsInfo, FromArgs};
use engine::DType;
use engine::tools::kv::KvDtype;
use engine::tools::memory_plan::Rehearsal;
use engine::tools::parallel::Shard;
use serde_json::json;
use simulator::cost::RehearsedModel;
use simulator::estimate::Estimate;
use simulator::gpu::{self, GpuSpec};
use simulator::model::ModelShape;

use crate::step::{Kind, StepRoofline};
use cli::command::{Command, Positionals, Words};
use cli::values::{count, quantised_kv};

/// The command.
pub const COMMAND: Command = Command {
    name: "floor",
    positionals: Positionals::Model,
    info: Args::get_args_info,
    groups: &[],
    runs_engine: false,
    examples: &[
        "lab floor opt-13b --gpu h200 --prompt 2048",
        "lab floor opt-66b --gpu a100-40gb --tensor-parallel-size 4",
        "lab floor gpt-oss-20b --gpu h100",
    ],
    run,
};

/// Maximum sequences in a step.
const MAX_BATCH: usize = 4096;

/// List the launches of a model's steps with their minimum bytes, operations and times. Nothing is launched: no GPU and
/// no weights are needed. No network is needed for opt-6.7b to opt-175b, llama-7b to llama-65b, llama-3-8b, llama-3-70b,
/// qwen3-32b, qwen3-30b-a3b, gpt-oss-20b and others.
#[derive(ArgsInfo, FromArgs)]
pub struct Args {
    /// directory, hub id or short name
    #[argh(option, short = 'm', arg_name = "model")]
    model: String,
    /// GPU: h200, h100, a100, a100-40gb, l40s, l4 or rtx-4090 (h200)
    #[argh(option, arg_name = "gpu", from_str_fn(gpu::named), default = "&gpu::GPUS[0]")]
    gpu: &'static GpuSpec,
    /// GPUs that split the model, each with the printed figures (1)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "1")]
    tensor_parallel_size: usize,
    /// element type: f16 or bf16 (the weights' type; f16 if they are f32)
    #[argh(option, arg_name = "type", from_str_fn(dtype))]
    dtype: Option<DType>,
    /// element type of keys and values: int8 or fp8 (the weights' type)
    #[argh(option, arg_name = "type", from_str_fn(quantised_kv))]
    kv_dtype: Option<KvDtype>,
    /// sequences per decode step, one or several numbers (1,32,128)
    #[argh(option, arg_name = "n", from_str_fn(batches), default = "Batches(vec![1, 32, 128])")]
    batch: Batches,
    /// tokens that each sequence attends to (512)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "512")]
    context: usize,
    /// also list the step of a prompt of this many tokens
    #[argh(option, arg_name = "n", from_str_fn(count))]
    prompt: Option<usize>,
    /// also write the figures to this file as JSON
    #[argh(option, arg_name = "file")]
    json: Option<String>,
}

/// Batch sizes, with one decode step for each.
struct Batches(Vec<usize>);

fn batches(s: &str) -> Result<Batches, String> {
    let number = |part: &str| part.trim().parse().ok().filter(|n| (1..=MAX_BATCH).contains(n));
    let numbers: Option<_> = s.split(',').map(number).collect();
    numbers.map(Batches).ok_or_else(|| format!("{s:?} is not a number from 1 to {MAX_BATCH}, or several such as 1,32"))
}

fn dtype(s: &str) -> Result<DType, String> {
    match s {
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::Bf16),
        _ => Err(format!("{s:?} is neither f16 nor bf16")),
    }
}

/// Returns the step to rehearse.
fn rehearsal(kind: Kind) -> Rehearsal {
    match kind {
        Kind::Decode { batch, context } => Rehearsal { decodes: batch, context, drafted: 0, prompt: 0, logits: batch },
        Kind::Prefill(prompt) => Rehearsal { decodes: 0, context: 0, drafted: 0, prompt, logits: 1 },
    }
}

/// Writes the rates of a GPU.
fn write_gpu(out: &mut impl Write, gpu: &GpuSpec, shard: Shard, blocks: u32) -> io::Result<()> {
    writeln!(
        out,
        "read-only stream  {:.2} TB/s, derived from the nominal {:.2}",
        gpu.stream() / 1e12,
        gpu.bandwidth / 1e12
    )?;
    writeln!(out, "tensor cores      {:.0} TFLOP/s of dense 16-bit products, {}", gpu.rate / 1e12, gpu.rate_source)?;
    if !shard.is_whole() {
        writeln!(out, "links             {:.0} GB/s each way, {}, nominal", gpu.link / 1e9, gpu.link_name)?;
    }
    let held = match blocks {
        0 => String::new(),
        blocks => format!("; registers and shared memory allow {blocks} blocks of decode attention on each"),
    };
    writeln!(out, "multiprocessors   {}{held}", gpu.limits.multiprocessors)
}

/// Runs the command.
fn run(words: &Words) -> Result<()> {
    let args = words.own::<Args>()?;
    let (gpu, ModelShape { name, config }) = (args.gpu, ModelShape::find(&args.model)?);
    let most = config.max_positions;
    for (option, tokens) in [("context", Some(args.context)), ("prompt", args.prompt)] {
        ensure!(
            tokens.is_none_or(|n| (1..=most).contains(&n)),
            "--{option} must be from 1 to {most}, the model's context length"
        );
    }
    let dtype = match (args.dtype, config.torch_dtype) {
        (Some(dtype), _) | (None, Some(dtype @ (DType::F16 | DType::Bf16))) => dtype,
        (None, Some(DType::F32) | None) => DType::F16,
    };

    let kv_dtype = args.kv_dtype.unwrap_or(dtype.into());
    let shard = Shard { rank: 0, of: args.tensor_parallel_size, ..Shard::WHOLE };
    let longest = args.context.max(args.prompt.unwrap_or(0));
    let model = RehearsedModel::in_types(&config, gpu, shard.of, (dtype, kv_dtype), longest)?;
    let blocks = model.attention_blocks();
    let decodes = args.batch.0.iter().map(|&batch| Kind::Decode { batch, context: args.context });
    let steps = decodes
        .chain(args.prompt.map(Kind::Prefill))
        .map(|kind| Ok(StepRoofline::new(kind, gpu, &model.launches(rehearsal(kind))?)));
    let steps: Vec<StepRoofline> = steps.collect::<Result<_>>()?;

    let mut out = io::stdout().lock();
    let gpus = if shard.is_whole() { gpu.name.to_owned() } else { format!("one of {} {}", shard.of, gpu.name) };
    let estimate = model.estimate().map(|(estimate, _)| estimate);
    let format = estimate.map_or(dtype.to_string(), |estimate| estimate.format().to_owned());
    let types = if args.kv_dtype.is_some() { format!("{format}, with a KV cache in {kv_dtype},") } else { format };
    writeln!(out, "{name} in {types} on {gpus}: minimum times, computed from shapes. None of this was measured.\n")?;
    writeln!(out, "weights           {:.2} GB", model.weight_bytes() as f64 / 1e9)?;
    if estimate.is_some() {
        writeln!(out, "experts           as many as uniform routing is expected to use: E (1 - (1 - k / E)^B) of E")?;
    }
    write_gpu(&mut out, gpu, shard, blocks)?;
    for step in &steps {
        write!(out, "\n{step}")?;
    }
    let Some(file) = &args.json else { return Ok(()) };
    let all = json!({
        "model": name,
        "tensor_parallel_size": shard.of,
        "dtype": dtype.to_string(),
        "kv_dtype": kv_dtype.to_string(),
        "gpu": gpu.json(),
        "weight_bytes": model.weight_bytes(),
        "experts": estimate.map(Estimate::json),
        "attention_blocks_per_multiprocessor": blocks,
        "steps": steps.iter().map(StepRoofline::json).collect::<Vec<_>>(),
    });
    fs::write(file, format!("{all:#}\n")).with_context(|| format!("cannot write {file}"))
}
