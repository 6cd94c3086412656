//! Options of every command that runs an engine: the model and its setup.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use argh::{ArgsInfo, FromArgs};
use engine::DType;
use engine::KvDtype;
use engine::{AdapterHandle, Llm};
use engine::{AttentionKernels, Device, Options, Preemption, Prompt, SchedulerOptions, SchedulingPolicy};

use crate::values::{count, memory, number, quantised_kv, switch};

/// Selects the model and how to run it.
#[derive(ArgsInfo, FromArgs, Debug)]
pub struct EngineArgs {
    /// model: a directory, GGUF file, hub id, hub id:file.gguf or short name (the built-in story model)
    #[argh(option, short = 'm', arg_name = "model")]
    pub model: Option<String>,
    /// where to run: auto (a GPU if there is one), cpu, cuda, cuda:1 or emulator (auto)
    #[argh(option, arg_name = "device", from_str_fn(device), default = "Device::Auto")]
    pub device: Device,
    /// type of weights: f32, f16 or bf16 (as stored, 16 bits on a GPU); f16 and bf16 dequantise
    #[argh(option, arg_name = "type", from_str_fn(element_type), default = "None")]
    pub dtype: Option<DType>,
    /// type of the KV cache: f32, f16, bf16, int8 or fp8 (f32 on the CPU, the weights' type on a GPU)
    #[argh(option, arg_name = "type", from_str_fn(kv_type), default = "None")]
    pub kv_dtype: Option<KvDtype>,
    /// read embeddings from the mapped model file: on, or off to copy them into memory (on)
    #[argh(option, arg_name = "on|off", from_str_fn(switch), default = "true")]
    pub mmap: bool,
    /// workers that split the model, each on its own GPU (1)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "1")]
    pub tensor_parallel_size: usize,
    /// give each worker whole experts instead of a part of each (mixture-of-experts models only)
    #[argh(switch)]
    pub expert_parallel: bool,
    /// tokens per KV block (16)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "16")]
    pub block_size: usize,
    /// memory for the KV cache (at most 4GiB on the CPU, all that is free on a GPU)
    #[argh(option, arg_name = "size", from_str_fn(memory))]
    pub kv_memory: Option<usize>,
    /// host memory for swapped or evicted KV blocks (at most 4GiB)
    #[argh(option, arg_name = "size", from_str_fn(memory))]
    pub swap_space: Option<usize>,
    /// when KV blocks run out: swap, recompute or auto, which swaps only groups (auto)
    #[argh(option, arg_name = "how", from_str_fn(preemption), default = "Preemption::Auto")]
    pub preemption: Preemption,
    /// reuse KV blocks for prompts that share a prefix: on or off (on)
    #[argh(option, arg_name = "on|off", from_str_fn(switch), default = "true")]
    pub prefix_caching: bool,
    /// speculative decoding from repeated text: ngram or off (off)
    #[argh(option, arg_name = "how", from_str_fn(speculation), default = "false")]
    pub speculate: bool,
    /// maximum tokens per draft with --speculate (5)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "5")]
    pub draft_tokens: usize,
    /// file with a prefix that prompts share, computed once (repeatable)
    #[argh(option, arg_name = "file")]
    pub shared_prefix: Vec<String>,
    /// adapter that requests can use: its name, and a PEFT directory or GGUF file (repeatable)
    #[argh(option, arg_name = "name=path", from_str_fn(lora_module))]
    pub lora_modules: Vec<(String, PathBuf)>,
    /// maximum different adapters in a step (8)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "8")]
    pub max_loras: usize,
    /// maximum rank of adapters (64)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "64")]
    pub max_lora_rank: usize,
    /// fraction of GPU memory to use (0.9)
    #[argh(option, arg_name = "part", from_str_fn(number), default = "0.9")]
    pub gpu_memory_utilization: f32,
    /// attention kernels on a GPU: quire, or the paper's v1 or v2 (quire)
    #[argh(option, arg_name = "kernels", from_str_fn(attention), default = "AttentionKernels::Quire")]
    pub attention: AttentionKernels,
    /// run decode steps on a GPU as CUDA graphs: on or off (on)
    #[argh(option, arg_name = "on|off", from_str_fn(switch), default = "true")]
    pub cuda_graphs: bool,
    /// on Hopper, start a launch before the previous one ends: on or off (on)
    #[argh(option, arg_name = "on|off", from_str_fn(switch), default = "true")]
    pub dependent_launches: bool,
    /// run decode steps at start, which on a GPU also records CUDA graphs (except for drafts)
    #[argh(switch)]
    pub warmup: bool,
    /// maximum sequences running at a time (256)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "256")]
    pub max_num_seqs: usize,
    /// maximum tokens per step; longer prompts are split into chunks (2048)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "2048")]
    pub max_batch_tokens: usize,
    /// delay new prompts by x times the duration of the last prompt step (0)
    #[argh(option, arg_name = "x", from_str_fn(number), default = "0.0")]
    pub delay_factor: f32,
    /// maximum share of sequences and blocks per request while others wait (0.5)
    #[argh(option, arg_name = "part", from_str_fn(number), default = "0.5")]
    pub max_request_share: f32,
    /// order of requests: fcfs for first come, first served, or priority for the lowest `priority` first (fcfs)
    #[argh(option, arg_name = "policy", from_str_fn(policy), default = "SchedulingPolicy::Fcfs")]
    pub scheduling_policy: SchedulingPolicy,
    /// steps after which waiting requests count as one priority more urgent; 0 means never (256)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "256")]
    pub priority_ageing: usize,
    /// lowest, most urgent priority that requests may ask for, a number not above 0 (all)
    #[argh(option, arg_name = "n", from_str_fn(level))]
    pub min_priority: Option<i64>,
    /// CPU threads (one per core)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub threads: Option<usize>,
    /// round activations to bf16 for bf16 weights on a CPU with AMX or AVX512_BF16: faster, less exact
    #[argh(switch)]
    pub round_activations: bool,
}

impl EngineArgs {
    /// Returns the engine's options.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn options(&self) -> engine::Result<Options> {
        let options = Options {
            device: self.device,
            dtype: self.dtype,
            kv_dtype: self.kv_dtype,
            mmap: self.mmap,
            tensor_parallel_size: self.tensor_parallel_size,
            expert_parallel: self.expert_parallel,
            block_size: self.block_size,
            kv_memory: self.kv_memory,
            swap_space: self.swap_space,
            gpu_memory_utilization: self.gpu_memory_utilization,
            attention: self.attention,
            hopper_from: None,
            hopper_decode_from: None,
            chunked_states_from: None,
            cuda_graphs: self.cuda_graphs,
            dependent_launches: self.dependent_launches,
            warmup: self.warmup,
            lora_modules: self.lora_modules.clone(),
            max_lora_rank: self.max_lora_rank,
            scheduler: SchedulerOptions {
                max_num_seqs: self.max_num_seqs,
                max_batch_tokens: self.max_batch_tokens,
                max_request_share: f64::from(self.max_request_share),
                policy: self.scheduling_policy,
                priority_ageing: self.priority_ageing,
                min_priority: self.min_priority,
                delay_factor: f64::from(self.delay_factor),
                preemption: self.preemption,
                prefix_caching: self.prefix_caching,
                max_loras: self.max_loras,
                draft_tokens: if self.speculate { self.draft_tokens } else { 0 },
            },
            threads: self.threads,
            round_activations: self.round_activations,
        };
        options.validate()?;
        Ok(options)
    }

    /// The adapter for prompts of a command that has no names for them: the only one, or none.
    ///
    /// # Errors
    /// If several adapters are given.
    pub fn only_adapter(&self, llm: &Llm) -> Result<Option<AdapterHandle>> {
        let mut adapters = llm.adapters().list();
        match adapters.len() {
            0 | 1 => Ok(adapters.pop()),
            count => bail!("{count} adapters are given with --lora-modules, but this command can use only one"),
        }
    }

    /// Reads the shared prefixes from their files. A line break at the end of a file is ignored.
    pub fn shared_prefixes(&self) -> Result<Vec<Prompt>> {
        let read = |file: &String| {
            let text =
                std::fs::read_to_string(file).with_context(|| format!("cannot read a shared prefix from {file}"))?;
            let text = text.strip_suffix('\n').unwrap_or(&text);
            Ok(Prompt::Text(text.strip_suffix('\r').unwrap_or(text).into()))
        };
        self.shared_prefix.iter().map(read).collect()
    }
}

fn device(s: &str) -> Result<Device, String> {
    s.parse()
}

fn element_type(s: &str) -> Result<Option<DType>, String> {
    match s {
        "auto" => Ok(None),
        "f32" | "float32" => Ok(Some(DType::F32)),
        "f16" | "float16" | "half" => Ok(Some(DType::F16)),
        "bf16" | "bfloat16" => Ok(Some(DType::Bf16)),
        _ => Err(format!("{s:?} is not one of auto, f32, f16 and bf16")),
    }
}

fn kv_type(s: &str) -> Result<Option<KvDtype>, String> {
    if let Ok(dtype) = quantised_kv(s) {
        return Ok(Some(dtype));
    }
    match element_type(s) {
        Ok(dtype) => Ok(dtype.map(KvDtype::Float)),
        Err(_) => Err(format!("{s:?} is not one of auto, f32, f16, bf16, int8 and fp8")),
    }
}

fn policy(s: &str) -> Result<SchedulingPolicy, String> {
    match s {
        "fcfs" => Ok(SchedulingPolicy::Fcfs),
        "priority" => Ok(SchedulingPolicy::Priority),
        _ => Err(format!("{s:?} is not a scheduling policy; fcfs and priority are")),
    }
}

fn lora_module(s: &str) -> Result<(String, PathBuf), String> {
    match s.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_owned(), path.into())),
        _ => Err(format!("{s:?} is not a name and a path such as tales=./tales-lora")),
    }
}

fn level(s: &str) -> Result<i64, String> {
    s.parse().map_err(|_| format!("{s:?} is not a whole number"))
}

fn attention(s: &str) -> Result<AttentionKernels, String> {
    match s {
        "quire" => Ok(AttentionKernels::Quire),
        "v1" => Ok(AttentionKernels::V1),
        "v2" => Ok(AttentionKernels::V2),
        _ => Err(format!("{s:?} is not one of quire, v1 and v2")),
    }
}

fn speculation(s: &str) -> Result<bool, String> {
    match s {
        "ngram" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{s:?} is neither ngram nor off")),
    }
}

fn preemption(s: &str) -> Result<Preemption, String> {
    match s {
        "auto" => Ok(Preemption::Auto),
        "swap" => Ok(Preemption::Swap),
        "recompute" => Ok(Preemption::Recompute),
        _ => Err(format!("{s:?} is not one of auto, swap and recompute")),
    }
}
