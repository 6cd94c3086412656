//! The command line: what each option is called and means.

use argh::{ArgsInfo, FromArgs};
use engine::llm::{Device, Preemption};
use engine::sampling::EarlyStopping;
use engine::tensor::DType;

/// Continue text with a language model, on this machine.
#[derive(ArgsInfo, FromArgs, Debug)]
#[argh(help_triggers("-h", "--help", "help"))]
pub struct Args {
    /// directory, hub id or short name (default: a story model, built in)
    #[argh(option, arg_name = "model")]
    pub model: Option<String>,

    /// text to continue; repeatable
    #[argh(option, arg_name = "text")]
    pub prompt: Vec<String>,
    /// file with a prompt on each line, - for standard input
    #[argh(option, arg_name = "file")]
    pub prompts: Option<String>,
    /// prompt as token ids, 5,6,7; repeatable
    #[argh(option, arg_name = "ids", from_str_fn(token_ids))]
    pub prompt_ids: Vec<TokenIds>,

    /// most tokens to generate per output (256)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub max_tokens: Option<usize>,
    /// texts that end an output; repeatable
    #[argh(option, arg_name = "text")]
    pub stop: Vec<String>,
    /// generate past end-of-sequence tokens
    #[argh(switch)]
    pub ignore_eos: bool,

    /// randomness; 0 is greedy (the model's own default, else 0)
    #[argh(option, arg_name = "t", from_str_fn(number))]
    pub temperature: Option<f32>,
    /// sample among the k likeliest tokens; 0 is all
    #[argh(option, arg_name = "k", from_str_fn(count))]
    pub top_k: Option<usize>,
    /// sample among the likeliest tokens that reach probability p
    #[argh(option, arg_name = "p", from_str_fn(number))]
    pub top_p: Option<f32>,
    /// sample among tokens at least p times as likely as the likeliest
    #[argh(option, arg_name = "p", from_str_fn(number))]
    pub min_p: Option<f32>,
    /// weaken tokens seen in prompt or output; 1 is off
    #[argh(option, arg_name = "x", from_str_fn(number))]
    pub repetition_penalty: Option<f32>,
    /// weaken tokens seen in the output, -2 to 2 (0)
    #[argh(option, arg_name = "x", from_str_fn(number), default = "0.0")]
    pub presence_penalty: f32,
    /// weaken tokens by how often they are in the output, -2 to 2 (0)
    #[argh(option, arg_name = "x", from_str_fn(number), default = "0.0")]
    pub frequency_penalty: f32,
    /// make sampling reproducible
    #[argh(option, arg_name = "s", from_str_fn(seed))]
    pub seed: Option<u64>,

    /// outputs per prompt (1)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub n: Option<usize>,
    /// generate this many, return the n with the best mean logprob
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub best_of: Option<usize>,
    /// search with k beams; --n says how many come back, best first
    #[argh(option, arg_name = "k", from_str_fn(count))]
    pub beam_width: Option<usize>,
    /// beam score = sum of logprobs / length^x (1)
    #[argh(option, arg_name = "x", from_str_fn(number))]
    pub length_penalty: Option<f32>,
    /// stop once k beams are done: true (as alone), false or never (false)
    #[argh(option, arg_name = "when", from_str_fn(early_stopping))]
    pub early_stopping: Option<EarlyStopping>,

    /// one JSON object a prompt, a line each
    #[argh(switch)]
    pub json: bool,
    /// report each token's logprob, and the k likeliest tokens
    #[argh(option, arg_name = "k", from_str_fn(count))]
    pub logprobs: Option<usize>,
    /// print times, rates and KV cache use at the end
    #[argh(switch)]
    pub stats: bool,
    /// write what happens to KV blocks, a JSON object a line
    #[argh(option, arg_name = "file")]
    pub trace_kv: Option<String>,
    /// say on standard error what is loaded and how
    #[argh(switch)]
    pub verbose: bool,

    /// auto (a GPU if there is one), cpu, cuda, cuda:1 or emulator
    #[argh(option, arg_name = "device", from_str_fn(device), default = "Device::Auto")]
    pub device: Device,
    /// element type of weights: f32, f16 or bf16 (as stored; GPU: 16 bits)
    #[argh(option, arg_name = "type", from_str_fn(element_type), default = "None")]
    pub dtype: Option<DType>,
    /// element type of the KV cache (auto: f32; on a GPU as weights)
    #[argh(option, arg_name = "type", from_str_fn(element_type), default = "None")]
    pub kv_dtype: Option<DType>,
    /// tokens in a KV block (16)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "16")]
    pub block_size: usize,
    /// memory for the KV cache (CPU: at most 4GiB; GPU: what is left)
    #[argh(option, arg_name = "size", from_str_fn(memory))]
    pub kv_memory: Option<usize>,
    /// host memory for blocks that are swapped out (at most 4GiB)
    #[argh(option, arg_name = "size", from_str_fn(memory), default = "4 << 30")]
    pub swap_space: usize,
    /// out of KV blocks: swap, recompute or auto (swap groups only)
    #[argh(option, arg_name = "how", from_str_fn(preemption), default = "Preemption::Auto")]
    pub preemption: Preemption,
    /// keep full KV blocks for prompts that begin alike: on or off (on)
    #[argh(option, arg_name = "on|off", from_str_fn(switch), default = "true")]
    pub prefix_caching: bool,
    /// file with a text that prompts begin with; repeatable
    #[argh(option, arg_name = "file")]
    pub shared_prefix: Vec<String>,
    /// part of a GPU's memory that may be used (0.9)
    #[argh(option, arg_name = "part", from_str_fn(number), default = "0.9")]
    pub gpu_memory_utilization: f32,
    /// decode steps on a GPU as CUDA graphs: on or off (on)
    #[argh(option, arg_name = "on|off", from_str_fn(switch), default = "true")]
    pub cuda_graphs: bool,
    /// most sequences running at a time (256)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "256")]
    pub max_num_seqs: usize,
    /// most tokens in a step; longer prompts are computed in chunks (2048)
    #[argh(option, arg_name = "n", from_str_fn(count), default = "2048")]
    pub max_batch_tokens: usize,
    /// hold new prompts for x times the last prompt step (0)
    #[argh(option, arg_name = "x", from_str_fn(number), default = "0.0")]
    pub delay_factor: f32,
    /// CPU threads (one a core)
    #[argh(option, arg_name = "n", from_str_fn(count))]
    pub threads: Option<usize>,

    /// print the version
    #[argh(switch)]
    pub version: bool,
}

/// The ids of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

fn token_ids(s: &str) -> Result<TokenIds, String> {
    let id = |part: &str| part.trim().parse().map_err(|_| format!("{part:?} is not a token id"));
    s.split(',').map(id).collect::<Result<_, _>>().map(TokenIds)
}

fn count(s: &str) -> Result<usize, String> {
    s.parse().map_err(|_| format!("{s:?} is not a whole number"))
}

fn switch(s: &str) -> Result<bool, String> {
    match s {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{s:?} is neither on nor off")),
    }
}

fn seed(s: &str) -> Result<u64, String> {
    s.parse().map_err(|_| format!("{s:?} is not a whole number"))
}

fn number(s: &str) -> Result<f32, String> {
    s.parse().map_err(|_| format!("{s:?} is not a number"))
}

fn device(s: &str) -> Result<Device, String> {
    match s {
        "auto" => Ok(Device::Auto),
        "cpu" => Ok(Device::Cpu),
        "cuda" => Ok(Device::Cuda(0)),
        "emulator" => Ok(Device::Emulator),
        _ => match s.strip_prefix("cuda:").and_then(|number| number.parse().ok()) {
            Some(number) => Ok(Device::Cuda(number)),
            None => Err(format!("{s:?} is not a device; auto, cpu, cuda, cuda:1 and emulator are")),
        },
    }
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

fn preemption(s: &str) -> Result<Preemption, String> {
    match s {
        "auto" => Ok(Preemption::Auto),
        "swap" => Ok(Preemption::Swap),
        "recompute" => Ok(Preemption::Recompute),
        _ => Err(format!("{s:?} is no way to preempt; auto, swap and recompute are")),
    }
}

fn early_stopping(s: &str) -> Result<EarlyStopping, String> {
    match s {
        "true" => Ok(EarlyStopping::Yes),
        "false" => Ok(EarlyStopping::No),
        "never" => Ok(EarlyStopping::Never),
        _ => Err(format!("{s:?} is neither true, false nor never")),
    }
}

/// Bytes: a number with an optional unit, KB to TB in thousands, KiB to TiB in 1024s.
fn memory(s: &str) -> Result<usize, String> {
    let bad = || format!("{s:?} is not an amount of memory such as 512MB or 4GiB");
    let digits = s.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(s.len());
    let (amount, unit) = s.split_at(digits);
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024f64,
        "mib" => 1024f64.powi(2),
        "gib" => 1024f64.powi(3),
        "tib" => 1024f64.powi(4),
        _ => return Err(bad()),
    };
    let amount: f64 = amount.parse().map_err(|_| bad())?;
    Ok((amount * unit) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_units() {
        assert_eq!(memory("1024"), Ok(1024));
        assert_eq!(memory("1.5KiB"), Ok(1536));
        assert_eq!(memory("2 GB"), Ok(2_000_000_000));
        assert!(memory("GB").is_err() && memory("1XB").is_err() && memory("-1").is_err());
    }

    #[test]
    fn token_ids_are_separated_by_commas() {
        assert_eq!(token_ids("5, 6,7"), Ok(TokenIds(vec![5, 6, 7])));
        assert!(token_ids("").is_err() && token_ids("5,,6").is_err() && token_ids("-1").is_err());
    }

    #[test]
    fn options_and_repeats_are_read() {
        let args = Args::from_args(&["quire"], &["--prompt", "a", "--prompt", "b", "--top-k", "5", "--dtype", "bf16"])
            .unwrap();
        assert_eq!((args.prompt, args.top_k, args.dtype), (vec!["a".into(), "b".into()], Some(5), Some(DType::Bf16)));
        assert!(Args::from_args(&["quire"], &["--temperature", "warm"]).is_err());
    }
}
