//! The plan of a deployment: its use of memory, its number of concurrent requests, and the rate at which latency turns
//! up.

use std::fmt;

use anyhow::{Result, anyhow};
use engine::KvDtype;
use serde_json::{Value, json};

use crate::beam_record::BeamRecord;
use crate::cache_plan::CachePlan;
use crate::cost::{CostModel, DTYPE};
use crate::deployment::Deployment;
use crate::efficiency::Efficiency;
use crate::estimate::Estimate;
use crate::fit::Memory;
pub use crate::fit::Question;
use crate::gpu::GpuSpec;
use crate::request::Method;
use crate::sustained;
use crate::system::System;
use crate::traces::{Trace, TraceWorkload};

/// Block sizes of the GPU kernels, the default first. Another size is proposed only if it is faster by the share
/// `GAIN`.
const BLOCK_SIZES: [usize; 3] = [16, 8, 32];
const GAIN: f64 = 0.02;
/// Latency counts as turning up at this multiple of the latency on an idle server.
const TURN: f64 = 3.0;
/// Requests per trace.
const REQUESTS: f64 = 2000.0;
/// Number of lengths that are averaged.
const LENGTHS: usize = 20_000;
const SEED: u64 = 1;
const GIB: f64 = (1u64 << 30) as f64;

/// The resources and the predicted performance of a deployment.
#[derive(Clone, Debug)]
pub struct Plan {
    model: String,
    gpu: &'static GpuSpec,
    gpus: usize,
    workload: String,
    kv_dtype: Option<KvDtype>,
    /// The estimate of a model with experts, and the reason why it cannot run on a GPU, if it cannot.
    experts: Option<(Estimate, Option<String>)>,
    /// Bytes on one GPU for weights, for activations, and for keys and values.
    weights: f64,
    activations: f64,
    cache: f64,
    /// The cache on all GPUs together.
    kv: CachePlan,
    slots: usize,
    max_len: usize,
    /// Mean tokens of prompts and of outputs, mean tokens of a request while it runs, and the mean bytes that it keeps.
    prompt: f64,
    output: f64,
    in_flight: f64,
    kept: f64,
    /// Block sizes, each with its normalized latency under load.
    block_sizes: Vec<(usize, f64)>,
    block_size: usize,
    /// Seconds per token on an idle server.
    unloaded: f64,
    /// Requests per second at which latency turns up.
    rate: f64,
    max_num_seqs: usize,
}

/// Returns the lengths of the workload with this name. Each has a source.
///
/// # Errors
/// A message that lists the workloads, if `name` is not one of them.
pub fn workload(name: &str) -> Result<TraceWorkload, String> {
    // The 90th percentile is 1.2816 standard deviations of the logarithm above the median.
    let spread = |median: f64, p90: f64| (p90 / median).ln() / 1.2816;
    Ok(match name {
        // openchat_sharegpt4 in Sarathi-Serve (Agrawal et al., OSDI 2024), table 2: medians and 90th percentiles.
        "chat" => TraceWorkload::LogNormal([(1730.0, spread(1730.0, 5696.0)), (415.0, spread(415.0, 834.0))]),
        // Medians of the coding service in Splitwise (Patel et al., ISCA 2024). The spread is assumed.
        "code" => TraceWorkload::LogNormal([(1500.0, 0.8), (13.0, 0.8)]),
        // arxiv_summarization in Sarathi-Serve, table 2.
        "long-document" => TraceWorkload::LogNormal([(7059.0, spread(7059.0, 12985.0)), (208.0, spread(208.0, 371.0))]),
        _ => return Err(format!("unknown workload {name:?}; use chat, code, long-document or a file of lengths")),
    })
}

impl Plan {
    /// Answers a question.
    ///
    /// # Errors
    /// If the model does not fit, with the GPUs that would suffice, or if the model has no kernels.
    pub fn new(question: &Question<'_>) -> Result<Self> {
        let &Question { model, gpu, name, workload, .. } = question;
        let max_len = model.config.max_positions;
        let (gpus, memory) = question.fit()?;
        let kv = memory.kv(gpus, max_len);
        let Memory { model: rehearsed, weights, activations, cache, slots } = memory;
        let lengths: Vec<(usize, usize)> =
            workload.lengths(LENGTHS, SEED).into_iter().map(|l| cut(l, max_len)).collect();
        let mean = |part: fn(&(usize, usize)) -> usize| lengths.iter().map(part).sum::<usize>() as f64 / LENGTHS as f64;
        let (prompt, output) = (mean(|l| l.0), mean(|l| l.1));
        let weighted = |of: &dyn Fn(f64) -> f64| {
            let sum: f64 = lengths.iter().map(|l| l.1 as f64 * of(l.0 as f64 + l.1 as f64 / 2.0)).sum();
            sum / (output * LENGTHS as f64)
        };
        let (in_flight, kept) = (weighted(&|tokens| tokens), weighted(&|tokens| kv.kept_bytes(tokens)));
        let mut plan = Plan {
            model: model.name.clone(),
            gpu,
            gpus,
            workload: name.to_owned(),
            kv_dtype: question.kv_dtype,
            experts: rehearsed.estimate().map(|(estimate, lacks)| (estimate.clone(), lacks.map(str::to_owned))),
            weights,
            activations,
            cache,
            kv,
            slots,
            max_len,
            prompt,
            output,
            in_flight,
            kept,
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
            let outcome = System::Quire.run(&deployment, cost, &BeamRecord::default(), &requests, |server| {
                (server.block_size, server.limit) = (block_size, limit);
            })?;
            Ok(outcome.normalized_latency())
        };
        let alone = run(1e-3, BLOCK_SIZES[0], f64::INFINITY)?.ok_or_else(|| anyhow!("no request was simulated"))?;
        let bound = TURN * alone;
        // A first guess: as many requests as fit the memory, each as fast as on an idle server.
        let guess = self.concurrency() / (alone * self.output) / 4.0;
        let found = sustained::search(bound, guess, |rate| run(rate, BLOCK_SIZES[0], 4.0 * bound))?;
        let mut sizes = Vec::new();
        for size in BLOCK_SIZES {
            let latency = run(0.95 * found.rate, size, f64::INFINITY)?;
            sizes.push((size, latency.ok_or_else(|| anyhow!("no request was simulated"))?));
        }
        let usual = sizes[0];
        let best = sizes.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(usual);
        self.block_size = if best.1 < (1.0 - GAIN) * usual.1 { best.0 } else { usual.0 };
        // As many sequences as fit, rounded up to a power of two.
        let seqs = (self.concurrency() as usize).clamp(1, 1024).next_power_of_two();
        (self.max_num_seqs, self.block_sizes, self.unloaded, self.rate) = (seqs.max(256), sizes, alone, found.rate);
        Ok(())
    }

    /// Returns the mean number of requests that fit the memory at a time.
    fn concurrency(&self) -> f64 {
        (self.slots / BLOCK_SIZES[0] * self.kv.page_bytes()) as f64 / self.kept
    }

    /// Returns the number of pages of the cache.
    fn pages(&self) -> usize {
        self.slots / self.block_size
    }

    /// Returns the number of sequences of the maximum length that fit the memory at a time.
    fn longest_sequences(&self) -> usize {
        self.kv.sequences_in(self.slots / BLOCK_SIZES[0])
    }

    /// Returns the command that serves the model as planned.
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

    /// Returns the plan as JSON.
    pub fn json(&self) -> Value {
        json!({
            "model": self.model,
            "gpu": self.gpu.name,
            "gpus": self.gpus,
            "workload": self.workload,
            "kv_dtype": self.kv_dtype.unwrap_or(DTYPE.into()).to_string(),
            "experts": self.experts.as_ref().map(|(estimate, _)| estimate.json()),
            "weight_bytes_per_gpu": self.weights,
            "activation_bytes_per_gpu": self.activations,
            "kv_cache_bytes_per_gpu": self.cache,
            "kv_bytes_per_token": self.kv.token_bytes(),
            "kv_groups": self.kv.json(),
            "kv_slots": self.kv.keeps_all().then_some(self.slots),
            "blocks": self.kv.keeps_all().then_some(self.pages()),
            "pages": self.pages(),
            "sequences_of_max_len": self.longest_sequences(),
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

/// Shortens a request to the model's positions as a server would, its output first.
fn cut((prompt, output): (usize, usize), max_len: usize) -> (usize, usize) {
    let prompt = prompt.min(max_len - 1);
    (prompt, output.min(max_len - prompt))
}

impl Plan {
    /// Writes the shape of the cache.
    fn write_cache(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kv.keeps_all() {
            let kib = self.kv.token_bytes() / 1024.0;
            let (slots, pages, size) = (self.slots, self.pages(), self.block_size);
            return writeln!(f, "\nKV cache      {kib:>8.0} KiB per token, {slots} tokens in {pages} blocks of {size}");
        }
        let page = self.kv.page_bytes() as f64 / (1 << 20) as f64;
        writeln!(f, "\nKV cache      {:>8} pages of {page:.2} MiB", self.slots / BLOCK_SIZES[0])?;
        write!(f, "{}", self.kv)?;
        let (fits, max_len) = (self.longest_sequences(), self.max_len);
        write!(f, "room for      {fits:>8} sequences of {max_len} tokens")?;
        if self.kv.has_windows() {
            let whole = self.kv.whole_sequences_in(self.slots / BLOCK_SIZES[0]);
            write!(f, "; {whole} if windows gave no blocks back")?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = self.gpu.memory;
        let rest = memory - self.weights - self.activations - self.cache;
        let kv = self.kv_dtype.map_or(String::new(), |dtype| format!(", with a KV cache in {dtype},"));
        let format = self.experts.as_ref().map_or("16 bits", |(estimate, _)| estimate.format());
        writeln!(
            f,
            "{} in {format}{kv} on {} x {}, {} requests: computed and simulated, not measured.\n",
            self.model, self.gpus, self.gpu.name, self.workload
        )?;
        let parts =
            [("weights", self.weights), ("activations", self.activations), ("KV cache", self.cache), ("unused", rest)];
        for (name, bytes) in parts {
            writeln!(f, "{name:<14}{:>8.2} GiB  {:>5.1} %  of each GPU", bytes / GIB, 100.0 * bytes / memory)?;
        }
        if let Some((estimate, _)) = &self.experts {
            write!(f, "\n{estimate}")?;
        }
        self.write_cache(f)?;
        writeln!(
            f,
            "requests      {:>8.0} prompt tokens and {:.0} output tokens on average, {:.0} tokens while they run",
            self.prompt, self.output, self.in_flight
        )?;
        writeln!(f, "room for      {:>8.0} requests at a time", self.concurrency())?;
        writeln!(
            f,
            "alone         {:>8.1} ms per token when the server handles one request at a time",
            1e3 * self.unloaded
        )?;
        writeln!(
            f,
            "load limit    {:>8.2} requests per second; at higher rates a token takes over {TURN} times as long as alone",
            self.rate
        )?;
        let sizes: Vec<_> = self.block_sizes.iter().map(|(size, s)| format!("{size}: {:.1} ms", 1e3 * s)).collect();
        writeln!(f, "block sizes   {} per token, close to that rate", sizes.join(", "))?;
        if let Some((_, Some(lacks))) = &self.experts {
            writeln!(f, "\nThis engine cannot run the model on a GPU yet: {lacks}.")?;
        }
        if self.gpus > 1 {
            writeln!(f, "\nWith several GPUs, this engine has only run in the emulator so far.")?;
        }
        writeln!(f, "\n{}", self.command())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use engine::tools::config::ModelConfig;

    use super::*;
    use crate::fit::UTILISATION;
    use crate::gpu::named;
    use crate::model::ModelShape;

    fn plan(model: &str, gpu: &str, gpus: Option<usize>, name: &str) -> Result<Plan> {
        let (model, gpu, workload) = (ModelShape::find(model).unwrap(), named(gpu).unwrap(), workload(name).unwrap());
        Plan::new(&Question { model: &model, gpu, gpus, name, workload: &workload, kv_dtype: None })
    }

    #[test]
    fn opt_13b_has_the_papers_memory() {
        let plan = plan("opt-13b", "a100-40gb", None, "chat").unwrap();
        assert_eq!((plan.kv.token_bytes(), plan.gpus, plan.block_size), (800.0 * 1024.0, 1, 16));
        // The paper states 15.7K slots.
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
        // A head has 128 elements of one byte, and two bytes of scales.
        assert_eq!(coded.kv.token_bytes() * 256.0, plain.kv.token_bytes() * 130.0);
        assert!(coded.slots as f64 > 1.9 * plain.slots as f64 && coded.rate > plain.rate, "{coded}");
        assert_eq!(coded.command(), "quire serve opt-13b --kv-dtype int8");
    }

    #[test]
    fn windows_make_room_for_more_sequences() {
        let text = br#"{"architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "hidden_size": 4096,
            "intermediate_size": 8192, "max_position_embeddings": 32768, "num_attention_heads": 32,
            "num_hidden_layers": 6, "num_key_value_heads": 8, "vocab_size": 32000, "use_sliding_window": true,
            "sliding_window": 1024, "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
            "sliding_attention", "sliding_attention", "full_attention"]}"#;
        let config = ModelConfig::from_json(text).unwrap();
        let (model, gpu, workload) =
            (ModelShape { name: "mixed".into(), config }, named("l4").unwrap(), workload("long-document").unwrap());
        let question = Question { model: &model, gpu, gpus: None, name: "code", workload: &workload, kv_dtype: None };
        let plan = Plan::new(&question).unwrap();
        let text = plan.to_string();
        for line in [
            "5 layers, 8 heads of 128, the last 1024 tokens: 20 KiB per token, at most 20 MiB per sequence",
            "1 layer, 8 heads of 128, all tokens: 4 KiB per token",
        ] {
            assert!(text.lines().any(|shown| shown.trim() == line), "{text}");
        }
        // 32,768 tokens take 128 MiB in one layer, and 20.3 MiB in the others. All tokens would take 768 MiB.
        let cache = plan.cache / f64::from(1 << 20);
        let (fits, whole) = ((cache / (128.0 + 20.32)) as usize, (cache / 768.0) as usize);
        let line = format!("{fits:>8} sequences of 32768 tokens; {whole} if windows gave no blocks back");
        assert!(fits > 4 * whole && text.contains(&line), "{line}, {text}");
        assert!(plan.concurrency() > 2.0 * plan.cache / (plan.in_flight * plan.kv.token_bytes()), "{text}");
    }

    #[test]
    fn an_error_names_gpus_that_would_suffice() {
        let wrong = plan("opt-175b", "l4", None, "code").unwrap_err().to_string();
        assert!(wrong.contains("does not fit up to 8 x l4") && wrong.contains("8 x a100"), "{wrong}");
        let wrong = plan("opt-66b", "a100-40gb", Some(2), "code").unwrap_err().to_string();
        assert!(wrong.contains("does not fit 2 x a100-40gb") && wrong.contains("4 x a100-40gb"), "{wrong}");
        let divided = plan("opt-66b", "a100-40gb", None, "code").unwrap();
        assert!(divided.gpus == 4 && divided.to_string().contains("only run in the emulator so far"), "{divided}");
        assert!(workload("poetry").unwrap_err().contains("chat, code, long-document"));
    }

    #[test]
    fn a_faster_gpu_sustains_more() {
        let rate = |gpu| plan("llama-3-8b", gpu, None, "code").unwrap().rate;
        assert!(rate("h100") > 1.5 * rate("a100") && rate("a100") > 2.0 * rate("l4"));
    }
}
