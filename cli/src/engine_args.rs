//! The options of every command that runs an engine: which model, and how it is set up.

use anyhow::{Context, Result};
use argh::{ArgsInfo, FromArgs};
use engine::kv::KvDtype;
use engine::llm::{AttentionKernels, Device, Options, Preemption, Prompt, SchedulerOptions};
use engine::tensor::DType;

use crate::values::{coded, count, memory, number, switch};

/// Which model runs, and how.
#[derive(ArgsInfo, FromArgs, Debug)]
pub struct EngineArgs {
    /// directory, GGUF file, hub id, hub id:file.gguf or short name (default: a story model, built in)
    #[argh(option, short = 'm', arg_name = "model")]
    pub model: Option<String>,
    /// auto (a GPU if there is one), cpu, cuda, cuda:1 or emulator
    #[argh(option, arg_name = "device", from_str_fn(device), default = "Device::Auto")]
    pub device: Device,
    /// element type of weights: f32, f16, bf16 (as stored; GPU: 16 bits); f16 and bf16 undo quantisation
    #[argh(option, arg_name = "type", from_str_fn(element_type), default = "None")]
    pub dtype: Option<DType>,
    /// element type of the KV cache: also int8, fp8 (auto: f32; GPU: as weights)
    #[argh(option, arg_name = "type", from_str_fn(kv_type), default = "None")]
    pub kv_dtype: Option<KvDtype>,
    /// use embeddings in their file, on, or copy them to memory too, off (on)
    #[argh(option, arg_name = "on|off", from_str_fn(switch), default = "true")]
    pub mmap: bool,
    /// workers that divide the model, each on a GPU of its own (1)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "1")]
    pub tensor_parallel_size: usize,
    /// tokens in a KV block (16)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "16")]
    pub block_size: usize,
    /// memory for the KV cache (CPU: at most 4GiB; GPU: what is left)
    #[argh(option, arg_name = "size", from_str_fn(memory))]
    pub kv_memory: Option<usize>,
    /// host memory for blocks that are swapped out or evicted (at most 4GiB)
    #[argh(option, arg_name = "size", from_str_fn(memory))]
    pub swap_space: Option<usize>,
    /// out of KV blocks: swap, recompute or auto (swap groups only)
    #[argh(option, arg_name = "how", from_str_fn(preemption), default = "Preemption::Auto")]
    pub preemption: Preemption,
    /// keep full KV blocks for prompts that begin alike: on or off (on)
    #[argh(option, arg_name = "on|off", from_str_fn(switch), default = "true")]
    pub prefix_caching: bool,
    /// decode several tokens in a step where a text repeats itself: ngram or off (off)
    #[argh(option, arg_name = "how", from_str_fn(speculation), default = "false")]
    pub speculate: bool,
    /// most tokens that are drafted at a time with --speculate (5)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "5")]
    pub draft_tokens: usize,
    /// file with a text that prompts begin with; repeatable
    #[argh(option, arg_name = "file")]
    pub shared_prefix: Vec<String>,
    /// part of a GPU's memory that may be used (0.9)
    #[argh(option, arg_name = "part", from_str_fn(number), default = "0.9")]
    pub gpu_memory_utilization: f32,
    /// attention on a GPU: quire, or the paper's kernels, v1 or v2 (quire)
    #[argh(option, arg_name = "kernels", from_str_fn(attention), default = "AttentionKernels::Quire")]
    pub attention: AttentionKernels,
    /// decode steps on a GPU as CUDA graphs: on or off (on)
    #[argh(option, arg_name = "on|off", from_str_fn(switch), default = "true")]
    pub cuda_graphs: bool,
    /// launches on Hopper begin before those ahead are over: on or off (on)
    #[argh(option, arg_name = "on|off", from_str_fn(switch), default = "true")]
    pub dependent_launches: bool,
    /// compute decode steps at start; on a GPU all graphs but those of drafts are recorded
    #[argh(switch)]
    pub warmup: bool,
    /// most sequences running at a time (256)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "256")]
    pub max_num_seqs: usize,
    /// most tokens in a step; longer prompts run in chunks (2048)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "2048")]
    pub max_batch_tokens: usize,
    /// hold new prompts for x times the last prompt step (0)
    #[argh(option, arg_name = "x", from_str_fn(number), default = "0.0")]
    pub delay_factor: f32,
    /// most of sequences and blocks for a request while others wait (0.5)
    #[argh(option, arg_name = "part", from_str_fn(number), default = "0.5")]
    pub max_request_share: f32,
    /// CPU threads (one a core)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub threads: Option<usize>,
    /// round activations to bf16 for products with bf16 weights on a CPU that has them (AMX or AVX512_BF16): faster, less exact
    #[argh(switch)]
    pub round_activations: bool,
}

impl EngineArgs {
    /// How to set the engine up.
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
            block_size: self.block_size,
            kv_memory: self.kv_memory,
            swap_space: self.swap_space,
            gpu_memory_utilization: self.gpu_memory_utilization,
            attention: self.attention,
            hopper_from: None,
            hopper_decode_from: None,
            cuda_graphs: self.cuda_graphs,
            dependent_launches: self.dependent_launches,
            warmup: self.warmup,
            scheduler: SchedulerOptions {
                max_num_seqs: self.max_num_seqs,
                max_batch_tokens: self.max_batch_tokens,
                max_request_share: f64::from(self.max_request_share),
                delay_factor: f64::from(self.delay_factor),
                preemption: self.preemption,
                prefix_caching: self.prefix_caching,
                draft_tokens: if self.speculate { self.draft_tokens } else { 0 },
            },
            threads: self.threads,
            round_activations: self.round_activations,
        };
        options.validate()?;
        Ok(options)
    }

    /// The texts that are computed once for all prompts that begin with them. A line break at a file's end does not
    /// count.
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
        _ => Err(format!("{s:?} is not a type; auto, f32, f16 and bf16 are")),
    }
}

fn kv_type(s: &str) -> Result<Option<KvDtype>, String> {
    if let Ok(dtype) = coded(s) {
        return Ok(Some(dtype));
    }
    match element_type(s) {
        Ok(dtype) => Ok(dtype.map(KvDtype::Float)),
        Err(_) => Err(format!("{s:?} is not a type; auto, f32, f16, bf16, int8 and fp8 are")),
    }
}

fn attention(s: &str) -> Result<AttentionKernels, String> {
    match s {
        "quire" => Ok(AttentionKernels::Quire),
        "v1" => Ok(AttentionKernels::V1),
        "v2" => Ok(AttentionKernels::V2),
        _ => Err(format!("{s:?} names no attention kernels; quire, v1 and v2 do")),
    }
}

fn speculation(s: &str) -> Result<bool, String> {
    match s {
        "ngram" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{s:?} is no way to speculate; ngram and off are")),
    }
}

fn preemption(s: &str) -> Result<Preemption, String> {
    match s {
        "auto" => Ok(Preemption::Auto),
        "swap" => Ok(Preemption::Swap),
        "recompute" => Ok(Preemption::Recompute),
        _ => Err(format!("{s:?} is no way to preempt; auto, swap and recompute are")),
    }
}
