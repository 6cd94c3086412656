//! What a deployment needs: where the memory goes, how many requests run at a time, and the rate at which latency turns up.

use std::fmt;

use anyhow::{Result, anyhow, bail};
use engine::kv::KvDtype;
use serde_json::{Value, json};

use crate::cost::{CostModel, DTYPE, RehearsedModel};
use crate::deployment::Deployment;
use crate::efficiency::Efficiency;
use crate::gpu::{GPUS, GpuSpec};
use crate::lineage::Lineages;
use crate::model::ModelShape;
use crate::request::Method;
use crate::sustained;
use crate::system::System;
use crate::traces::{Trace, TraceWorkload};

/// Share of a GPU's memory that is used: the engine's default.
const UTILISATION: f64 = 0.9;
/// Numbers of GPUs that a model is divided among.
const DIVISIONS: [usize; 4] = [1, 2, 4, 8];
/// Sizes of blocks that the GPU kernels take, the usual one first: another one is only proposed if it is faster by so much.
const BLOCK_SIZES: [usize; 3] = [16, 8, 32];
const GAIN: f64 = 0.02;
/// Latency is said to turn up where it is so many times that of a server with nothing else to do.
const TURN: f64 = 3.0;
/// Requests of the traces.
const REQUESTS: f64 = 2000.0;
/// Lengths that are averaged.
const LENGTHS: usize = 20_000;
const SEED: u64 = 1;
const GIB: f64 = (1u64 << 30) as f64;

/// What is asked of a deployment.
pub struct Question<'a> {
    /// The model.
    pub model: &'a ModelShape,
    /// The GPU.
    pub gpu: &'static GpuSpec,
    /// GPUs that divide it; the fewest that suffice if not said.
    pub gpus: Option<usize>,
    /// The workload's name.
    pub name: &'a str,
    /// Its lengths.
    pub workload: &'a TraceWorkload,
    /// The type of keys and values; that of the weights if not said.
    pub kv_dtype: Option<KvDtype>,
}

impl Question<'_> {
    fn memory(&self, gpu: &GpuSpec, gpus: usize) -> Result<Memory> {
        Memory::of(self.model, gpu, gpus, self.kv_dtype.unwrap_or(DTYPE.into()))
    }
}

/// What a deployment needs and gives.
#[derive(Clone, Debug)]
pub struct Plan {
    model: String,
    gpu: &'static GpuSpec,
    gpus: usize,
    workload: String,
    kv_dtype: Option<KvDtype>,
    /// Bytes of one GPU: of weights, of activations, and of keys and values.
    weights: f64,
    activations: f64,
    cache: f64,
    /// Bytes of a token's keys and values, on all GPUs together.
    token_bytes: f64,
    slots: usize,
    max_len: usize,
    /// Mean tokens of prompts and outputs, and those that a request has on average while it runs.
    prompt: f64,
    output: f64,
    in_flight: f64,
    /// Block sizes and normalized latencies under load.
    block_sizes: Vec<(usize, f64)>,
    block_size: usize,
    /// Seconds a token of a server with nothing else to do.
    unloaded: f64,
    /// Requests a second at which latency turns up.
    rate: f64,
    max_num_seqs: usize,
}

/// Lengths by what they are for, with their source.
///
/// # Errors
/// A sentence, if there is no such workload.
pub fn workload(name: &str) -> Result<TraceWorkload, String> {
    // The standard deviation of the logarithm follows from the 90th percentile, which is 1.2816 of them above the median.
    let spread = |median: f64, p90: f64| (p90 / median).ln() / 1.2816;
    Ok(match name {
        // openchat_sharegpt4 in Sarathi-Serve (Agrawal et al., OSDI 2024), table 2: medians and 90th percentiles.
        "chat" => TraceWorkload::LogNormal([(1730.0, spread(1730.0, 5696.0)), (415.0, spread(415.0, 834.0))]),
        // Medians of the coding service in Splitwise (Patel et al., ISCA 2024); the spread is assumed.
        "code" => TraceWorkload::LogNormal([(1500.0, 0.8), (13.0, 0.8)]),
        // arxiv_summarization in Sarathi-Serve, table 2.
        "long-document" => TraceWorkload::LogNormal([(7059.0, spread(7059.0, 12985.0)), (208.0, spread(208.0, 371.0))]),
        _ => return Err(format!("{name:?} is no workload; chat, code and long-document are, or a file of lengths")),
    })
}

/// What the memory of one of several GPUs is used for.
struct Memory {
    model: RehearsedModel,
    /// Bytes of weights, of activations, and for keys and values; the last below 0 if there is not even room for the others.
    weights: f64,
    activations: f64,
    cache: f64,
    /// Bytes of a token's keys and values.
    token_bytes: f64,
    slots: usize,
}

impl Memory {
    fn of(model: &ModelShape, gpu: &GpuSpec, gpus: usize, kv_dtype: KvDtype) -> Result<Self> {
        let model = RehearsedModel::new(&model.config, gpu, gpus, kv_dtype)?;
        let (weights, activations) = (model.weight_bytes() as f64, model.activation_bytes()? as f64);
        let (cache, token_bytes) = (UTILISATION * gpu.memory - weights - activations, model.token_bytes());
        let slots = (cache / token_bytes).max(0.0) as usize;
        Ok(Memory { model, weights, activations, cache, token_bytes, slots })
    }

    /// Whether requests of up to `max_len` tokens have room.
    fn suffices(&self, max_len: usize) -> bool {
        self.slots >= max_len
    }
}

/// The fewest GPUs of a kind that suffice.
fn fewest(question: &Question<'_>, gpu: &GpuSpec, max_len: usize) -> Option<(usize, Memory)> {
    let found = DIVISIONS.iter().filter_map(|&gpus| Some((gpus, question.memory(gpu, gpus).ok()?)));
    found.into_iter().find(|(_, memory)| memory.suffices(max_len))
}

impl Plan {
    /// Answers a question.
    ///
    /// # Errors
    /// If the model does not fit, with what it would fit; or if there are no kernels for it.
    pub fn new(question: &Question<'_>) -> Result<Self> {
        let &Question { model, gpu, name, workload, .. } = question;
        let max_len = model.config.max_positions;
        let fitting = match question.gpus {
            Some(gpus) => Some((gpus, question.memory(gpu, gpus)?)).filter(|(_, memory)| memory.suffices(max_len)),
            None => fewest(question, gpu, max_len),
        };
        let Some((gpus, Memory { model: rehearsed, weights, activations, cache, token_bytes, slots })) = fitting else {
            bail!("{}", does_not_fit(question, max_len));
        };
        let lengths: Vec<(usize, usize)> =
            workload.lengths(LENGTHS, SEED).into_iter().map(|l| cut(l, max_len)).collect();
        let mean = |of: fn(&(usize, usize)) -> usize| lengths.iter().map(of).sum::<usize>() as f64 / LENGTHS as f64;
        let (prompt, output) = (mean(|l| l.0), mean(|l| l.1));
        let weighted = lengths.iter().map(|&(prompt, output)| output as f64 * (prompt as f64 + output as f64 / 2.0));
        let in_flight = weighted.sum::<f64>() / (output * LENGTHS as f64);
        let mut plan = Plan {
            model: model.name.clone(),
            gpu,
            gpus,
            workload: name.to_owned(),
            kv_dtype: question.kv_dtype,
            weights,
            activations,
            cache,
            token_bytes: token_bytes * gpus as f64,
            slots,
            max_len,
            prompt,
            output,
            in_flight,
            block_sizes: Vec::new(),
            block_size: BLOCK_SIZES[0],
            unloaded: 0.0,
            rate: 0.0,
            max_num_seqs: 256,
        };
        plan.simulate(&CostModel::new(&rehearsed, Efficiency::of(gpu))?, workload)?;
        Ok(plan)
    }

    fn simulate(&mut self, cost: &CostModel, workload: &TraceWorkload) -> Result<()> {
        let deployment = Deployment { model: "", gpu: "", gpus: self.gpus, slots: self.slots, max_len: self.max_len };
        let run = |rate: f64, block_size: usize, limit: f64| -> Result<Option<f64>> {
            let seconds = REQUESTS / rate;
            let (workload, method) = (workload.clone(), Method::Single);
            let trace = Trace { workload, method, seconds, max_len: self.max_len, seed: SEED };
            let requests = trace.requests(rate);
            let outcome = System::Quire.run(&deployment, cost, &Lineages::default(), &requests, |server| {
                (server.block_size, server.limit) = (block_size, limit);
            })?;
            Ok(outcome.normalized_latency())
        };
        let alone = run(1e-3, BLOCK_SIZES[0], f64::INFINITY)?.ok_or_else(|| anyhow!("nothing was simulated"))?;
        let bound = TURN * alone;
        // What memory has room for, each for as long as it takes without others.
        let guess = self.concurrency() / (alone * self.output) / 4.0;
        let found = sustained::search(bound, guess, |rate| run(rate, BLOCK_SIZES[0], 4.0 * bound))?;
        let mut sizes = Vec::new();
        for size in BLOCK_SIZES {
            let latency = run(0.95 * found.rate, size, f64::INFINITY)?;
            sizes.push((size, latency.ok_or_else(|| anyhow!("nothing was simulated"))?));
        }
        let usual = sizes[0];
        let best = sizes.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(usual);
        self.block_size = if best.1 < (1.0 - GAIN) * usual.1 { best.0 } else { usual.0 };
        // As many sequences as there is room for, in the steps that are usual.
        let seqs = (self.concurrency() as usize).clamp(1, 1024).next_power_of_two();
        (self.max_num_seqs, self.block_sizes, self.unloaded, self.rate) = (seqs.max(256), sizes, alone, found.rate);
        Ok(())
    }

    /// Requests that memory has room for at a time, on average.
    fn concurrency(&self) -> f64 {
        self.slots as f64 / self.in_flight
    }

    /// The command that serves so.
    pub fn command(&self) -> String {
        let mut line = format!("quire serve {}", self.model);
        if self.gpus > 1 {
            line += &format!(" --tensor-parallel-size {}", self.gpus);
        }
        if let Some(dtype) = self.kv_dtype {
            line += &format!(" --kv-dtype {dtype}");
        }
        if self.block_size != BLOCK_SIZES[0] {
            line += &format!(" --block-size {}", self.block_size);
        }
        if self.max_num_seqs != 256 {
            line += &format!(" --max-num-seqs {}", self.max_num_seqs);
        }
        line
    }

    /// The plan as JSON.
    pub fn json(&self) -> Value {
        json!({
            "model": self.model,
            "gpu": self.gpu.name,
            "gpus": self.gpus,
            "workload": self.workload,
            "kv_dtype": self.kv_dtype.unwrap_or(DTYPE.into()).to_string(),
            "weight_bytes_per_gpu": self.weights,
            "activation_bytes_per_gpu": self.activations,
            "kv_cache_bytes_per_gpu": self.cache,
            "kv_bytes_per_token": self.token_bytes,
            "kv_slots": self.slots,
            "blocks": self.slots / self.block_size,
            "block_size": self.block_size,
            "mean_prompt_tokens": self.prompt,
            "mean_output_tokens": self.output,
            "mean_tokens_in_flight": self.in_flight,
            "concurrency": self.concurrency(),
            "simulated_unloaded_seconds_per_token": self.unloaded,
            "simulated_rate_where_latency_turns_up": self.rate,
            "command": self.command(),
        })
    }
}

/// Cut to the model's positions, as a server would: first the output.
fn cut((prompt, output): (usize, usize), max_len: usize) -> (usize, usize) {
    let prompt = prompt.min(max_len - 1);
    (prompt, output.min(max_len - prompt))
}

/// Says what is lacking, and what would do.
fn does_not_fit(question: &Question<'_>, max_len: usize) -> String {
    let &Question { model, gpu, gpus, .. } = question;
    let kinds = GPUS.iter().filter_map(|gpu| Some(format!("{} x {}", fewest(question, gpu, max_len)?.0, gpu.name)));
    let kinds: Vec<_> = kinds.collect();
    let would = if kinds.is_empty() {
        "nothing that is known would do".into()
    } else {
        format!("what would do: {}", kinds.join(", "))
    };
    let asked = gpus.map_or(format!("up to 8 x {}", gpu.name), |gpus| format!("{gpus} x {}", gpu.name));
    let weights = question.memory(gpu, gpus.unwrap_or(8)).ok().map_or(String::new(), |memory| {
        let (weights, room) = (memory.weights / GIB, UTILISATION * gpu.memory / GIB);
        format!(
            ": each has {room:.1} GiB to use, weights take {weights:.1}, and keys and values of {max_len} tokens {:.1}",
            max_len as f64 * memory.token_bytes / GIB
        )
    });
    format!("{} does not fit {asked}{weights}; {would}", model.name)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = self.gpu.memory;
        let rest = memory - self.weights - self.activations - self.cache;
        let kv = self.kv_dtype.map_or(String::new(), |dtype| format!(", with a KV cache in {dtype},"));
        writeln!(
            f,
            "{} in 16 bits{kv} on {} x {}, {} requests: computed and simulated, not measured.\n",
            self.model, self.gpus, self.gpu.name, self.workload
        )?;
        let parts = [
            ("weights", self.weights),
            ("activations", self.activations),
            ("KV cache", self.cache),
            ("left free", rest),
        ];
        for (name, bytes) in parts {
            writeln!(f, "{name:<14}{:>8.2} GiB  {:>5.1} %  of each GPU", bytes / GIB, 100.0 * bytes / memory)?;
        }
        writeln!(
            f,
            "\nKV cache      {:>8.0} KiB a token, {} tokens in {} blocks of {}",
            self.token_bytes / 1024.0,
            self.slots,
            self.slots / self.block_size,
            self.block_size
        )?;
        writeln!(
            f,
            "requests      {:>8.0} tokens of prompt and {:.0} of output on average, {:.0} while they run",
            self.prompt, self.output, self.in_flight
        )?;
        writeln!(f, "room for      {:>8.0} requests at a time", self.concurrency())?;
        writeln!(f, "alone         {:>8.1} ms a token", 1e3 * self.unloaded)?;
        writeln!(f, "latency turns {:>8.2} requests a second: {TURN} times as long a token", self.rate)?;
        let sizes: Vec<_> = self.block_sizes.iter().map(|(size, s)| format!("{size}: {:.1} ms", 1e3 * s)).collect();
        writeln!(f, "block sizes   {} a token, close to that rate", sizes.join(", "))?;
        if self.gpus > 1 {
            writeln!(f, "\nDivided among GPUs, this engine has run in the emulator alone so far.")?;
        }
        writeln!(f, "\n{}", self.command())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;
    use crate::gpu::named;

    fn plan(model: &str, gpu: &str, gpus: Option<usize>, name: &str) -> Result<Plan> {
        let (model, gpu, workload) = (ModelShape::find(model).unwrap(), named(gpu).unwrap(), workload(name).unwrap());
        Plan::new(&Question { model: &model, gpu, gpus, name, workload: &workload, kv_dtype: None })
    }

    #[test]
    fn opt_13b_has_the_papers_memory() {
        let plan = plan("opt-13b", "a100-40gb", None, "chat").unwrap();
        assert_eq!((plan.token_bytes, plan.gpus, plan.block_size), (800.0 * 1024.0, 1, 16));
        // The paper has 15.7K slots.
        assert!((plan.slots as f64 / 15_700.0 - 1.0).abs() < 0.1, "{}", plan.slots);
        assert!(plan.rate > 0.1 && plan.unloaded > 0.01 && plan.concurrency() > 5.0, "{plan}");
        assert_eq!(plan.command(), "quire serve opt-13b");
        let parts: f64 = [plan.weights, plan.activations, plan.cache].iter().sum();
        assert!((parts / plan.gpu.memory - UTILISATION).abs() < 1e-9);
    }

    #[test]
    fn a_cache_of_8_bits_has_room_for_nearly_twice_the_tokens() {
        let (model, gpu) = (ModelShape::find("opt-13b").unwrap(), named("a100-40gb").unwrap());
        let workload = workload("code").unwrap();
        let question = Question { model: &model, gpu, gpus: None, name: "code", workload: &workload, kv_dtype: None };
        let plain = Plan::new(&question).unwrap();
        let coded = Plan::new(&Question { kv_dtype: Some(KvDtype::Int8), ..question }).unwrap();
        // Heads of 128, with two bytes each for the scales.
        assert_eq!(coded.token_bytes * 256.0, plain.token_bytes * 130.0);
        assert!(coded.slots as f64 > 1.9 * plain.slots as f64 && coded.rate > plain.rate, "{coded}");
        assert_eq!(coded.command(), "quire serve opt-13b --kv-dtype int8");
    }

    #[test]
    fn what_does_not_fit_is_told_what_would() {
        let wrong = plan("opt-175b", "l4", None, "code").unwrap_err().to_string();
        assert!(wrong.contains("does not fit up to 8 x l4") && wrong.contains("8 x a100"), "{wrong}");
        let wrong = plan("opt-66b", "a100-40gb", Some(2), "code").unwrap_err().to_string();
        assert!(wrong.contains("does not fit 2 x a100-40gb") && wrong.contains("4 x a100-40gb"), "{wrong}");
        let divided = plan("opt-66b", "a100-40gb", None, "code").unwrap();
        assert!(divided.gpus == 4 && divided.to_string().contains("in the emulator alone so far"), "{divided}");
        assert!(workload("poetry").unwrap_err().contains("chat, code and long-document"));
    }

    #[test]
    fn a_faster_gpu_sustains_more() {
        let rate = |gpu| plan("llama-3-8b", gpu, None, "code").unwrap().rate;
        assert!(rate("h100") > 1.5 * rate("a100") && rate("a100") > 2.0 * rate("l4"));
    }
}
