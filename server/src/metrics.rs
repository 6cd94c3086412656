//! Metrics for `GET /metrics`.
//!
//! Metrics named `vllm:` have the same meaning as in vLLM, so its Grafana dashboards work with this server. Metrics
//! named `quire:` are this server's own.

mod register;
mod swap;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::http::StatusCode;
use engine::FinishReason;
use engine::SamplingParams;
use engine::Stats;
use engine::{Completion, Llm};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use self::register::{FIRST_TOKEN, OUTPUTS, PER_TOKEN, TOKENS, WHOLE, add, histogram};
use self::swap::SwapMetrics;
use crate::finished::FinishedRequests;
use crate::load::EngineLoad;

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct Reason {
    finished_reason: &'static str,
}

/// The shape of the KV cache.
#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct CacheConfig {
    block_size: usize,
    num_gpu_blocks: usize,
}

type FloatGauge = Gauge<f64, AtomicU64>;

/// All metrics. Clones share the same values.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    load: watch::Sender<EngineLoad>,
    /// Requests in the running batch.
    pub running: Gauge,
    /// Requests that wait to run.
    pub waiting: Gauge,
    swapped: Gauge,
    /// Share of the KV blocks in use, from 0 to 1.
    pub kv_usage: FloatGauge,
    preemptions: Counter,
    prompt_tokens: Counter,
    /// Generated tokens.
    pub generation_tokens: Counter,
    success: Family<Reason, Counter>,
    first_token: Histogram,
    per_token: Histogram,
    inter_token: Histogram,
    request_per_token: Histogram,
    whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_n: Histogram,
    request_max_tokens: Histogram,
    cache_config: Family<CacheConfig, Gauge>,
    num_blocks: Gauge,
    used_blocks: Gauge,
    shared_blocks: Gauge,
    cached_blocks: Gauge,
    filled_slots: Gauge,
    prefix_queries: Counter,
    prefix_hits: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
    swap: SwapMetrics,
    copied_blocks: Counter,
    steps: Counter,
    /// Tokens run through the model, of prompts and outputs.
    pub computed_tokens: Counter,
    /// Failed steps.
    pub engine_failures: Counter,
    /// Requests refused because too many were waiting or in progress.
    pub refused: Counter,
    /// Requests answered with a server error (500 or 504).
    pub failed: Counter,
    /// Requests refused with a client error (4xx other than 429).
    pub invalid: Counter,
    /// Engine requests that were cancelled because the client disconnected, read too slowly or ran out of time, or
    /// because an operator cancelled them.
    pub aborted: Counter,
    /// The most recently finished requests.
    pub finished: FinishedRequests,
    /// Batches of KV events that were dropped because the queue was full.
    pub dropped_batches: Counter,
    /// Open connections.
    pub connections: Gauge,
    /// Admitted HTTP requests in progress.
    pub requests: Gauge,
    tasks: Gauge,
}

impl Metrics {
    /// Creates the metrics of a server of `model`, all zero.
    pub fn new(model: &str) -> Self {
        let labels = [("model_name", model), ("engine", "0")].map(|(k, v)| (k.into(), v.to_owned().into()));
        let mut r = Registry::with_labels(labels.into_iter());
        let success = Family::<Reason, Counter>::default();
        for ended in [FinishReason::Stop, FinishReason::Length, FinishReason::Abort] {
            // Creates the series at zero, so that it exists before the first such request.
            drop(success.get_or_create(&Reason { finished_reason: reason(ended) }));
        }
        Metrics {
            running: add(&mut r, "vllm:num_requests_running", "Requests in the running batch", Gauge::default()),
            waiting: add(&mut r, "vllm:num_requests_waiting", "Requests that wait to run", Gauge::default()),
            swapped: add(
                &mut r,
                "vllm:num_requests_swapped",
                "Requests with sequences that are swapped out",
                Gauge::default(),
            ),
            kv_usage: add(
                &mut r,
                "vllm:kv_cache_usage_perc",
                "Share of the KV blocks in use, from 0 to 1",
                FloatGauge::default(),
            ),
            preemptions: add(&mut r, "vllm:num_preemptions", "Requests preempted", Counter::default()),
            prompt_tokens: add(&mut r, "vllm:prompt_tokens", "Prompt tokens of answered requests", Counter::default()),
            generation_tokens: add(&mut r, "vllm:generation_tokens", "Tokens generated", Counter::default()),
            success: add(
                &mut r,
                "vllm:request_success",
                "Completed requests, by the finish reason of their first output",
                success,
            ),
            first_token: histogram(
                &mut r,
                "vllm:time_to_first_token_seconds",
                "Time to a request's first token",
                &FIRST_TOKEN,
            ),
            per_token: histogram(
                &mut r,
                "vllm:time_per_output_token_seconds",
                "Time between a request's steps",
                &PER_TOKEN,
            ),
            inter_token: histogram(
                &mut r,
                "vllm:inter_token_latency_seconds",
                "Time between a request's steps, under vLLM's newer name",
                &PER_TOKEN,
            ),
            request_per_token: histogram(
                &mut r,
                "vllm:request_time_per_output_token_seconds",
                "Mean time per token after the first of a request",
                &PER_TOKEN,
            ),
            whole: histogram(&mut r, "vllm:e2e_request_latency_seconds", "Time for a whole request", &WHOLE),
            queue: histogram(
                &mut r,
                "vllm:request_queue_time_seconds",
                "Time from a request's arrival until it was first scheduled",
                &FIRST_TOKEN,
            ),
            prefill: histogram(
                &mut r,
                "vllm:request_prefill_time_seconds",
                "Time from when a request was first scheduled to its first token",
                &FIRST_TOKEN,
            ),
            decode: histogram(
                &mut r,
                "vllm:request_decode_time_seconds",
                "Time from a request's first token to its last",
                &WHOLE,
            ),
            inference: histogram(
                &mut r,
                "vllm:request_inference_time_seconds",
                "Time from when a request was first scheduled to its last token",
                &WHOLE,
            ),
            request_prompt_tokens: histogram(
                &mut r,
                "vllm:request_prompt_tokens",
                "Prompt tokens of a request",
                &TOKENS,
            ),
            request_generation_tokens: histogram(
                &mut r,
                "vllm:request_generation_tokens",
                "Tokens generated for an output",
                &TOKENS,
            ),
            request_n: histogram(&mut r, "vllm:request_params_n", "Outputs requested", &OUTPUTS),
            request_max_tokens: histogram(
                &mut r,
                "vllm:request_params_max_tokens",
                "Maximum tokens requested",
                &TOKENS,
            ),
            cache_config: add(
                &mut r,
                "vllm:cache_config_info",
                "The shape of the KV cache, in the labels (the value is always 1)",
                Family::default(),
            ),
            num_blocks: add(&mut r, "quire:kv_blocks", "KV blocks in the pool", Gauge::default()),
            used_blocks: add(&mut r, "quire:kv_blocks_used", "KV blocks in use by sequences", Gauge::default()),
            filled_slots: add(&mut r, "quire:kv_slots_filled", "Slots with a token in used blocks", Gauge::default()),
            shared_blocks: add(
                &mut r,
                "quire:kv_blocks_shared",
                "KV blocks with more than one reference",
                Gauge::default(),
            ),
            cached_blocks: add(
                &mut r,
                "quire:kv_blocks_cached",
                "KV blocks kept only for the prefix cache",
                Gauge::default(),
            ),
            prefix_queries: add(
                &mut r,
                "vllm:prefix_cache_queries",
                "Tokens looked up in the prefix cache",
                Counter::default(),
            ),
            prefix_hits: add(&mut r, "vllm:prefix_cache_hits", "Tokens found in the prefix cache", Counter::default()),
            drafted_tokens: add(
                &mut r,
                "vllm:spec_decode_num_draft_tokens",
                "Tokens drafted from a sequence's own text",
                Counter::default(),
            ),
            accepted_tokens: add(
                &mut r,
                "vllm:spec_decode_num_accepted_tokens",
                "Drafted tokens that were accepted",
                Counter::default(),
            ),
            swap: SwapMetrics::new(&mut r),
            copied_blocks: add(&mut r, "quire:kv_blocks_copied", "KV blocks copied on write", Counter::default()),
            steps: add(&mut r, "quire:engine_steps", "Steps of the engine", Counter::default()),
            computed_tokens: add(&mut r, "quire:computed_tokens", "Tokens run through the model", Counter::default()),
            engine_failures: add(&mut r, "quire:engine_failures", "Steps that failed", Counter::default()),
            refused: add(&mut r, "quire:requests_refused", "Requests refused for lack of capacity", Counter::default()),
            failed: add(&mut r, "quire:requests_failed", "Requests answered with 500 or 504", Counter::default()),
            invalid: add(&mut r, "quire:requests_invalid", "Invalid requests that were refused", Counter::default()),
            aborted: add(&mut r, "quire:requests_aborted", "Requests cancelled before their end", Counter::default()),
            dropped_batches: add(
                &mut r,
                "quire:kv_event_batches_dropped",
                "Batches of KV events that were not published",
                Counter::default(),
            ),
            connections: add(&mut r, "quire:connections", "Open connections", Gauge::default()),
            requests: add(&mut r, "quire:http_requests", "HTTP requests for text in progress", Gauge::default()),
            tasks: add(&mut r, "quire:tasks", "Tasks alive in the runtime", Gauge::default()),
            finished: FinishedRequests::new(),
            load: watch::Sender::default(),
            registry: Arc::new(r),
        }
    }

    /// Sets the metrics that describe the engine's memory.
    pub fn describe(&self, llm: &Llm) {
        let config = llm.engine().config();
        self.num_blocks.set(config.num_blocks as i64);
        // A reloaded model may find less memory.
        self.cache_config.clear();
        let shape = CacheConfig { block_size: config.block_size, num_gpu_blocks: config.num_blocks };
        self.cache_config.get_or_create(&shape).set(1);
    }

    /// Updates the metrics with the engine's state after a step. `before` holds its counters at the previous call.
    pub fn observe(&self, llm: &Llm, before: &mut Stats) {
        let (engine, stats) = (llm.engine(), llm.stats());
        let usage = engine.scheduler().usage();
        self.running.set(engine.scheduler().num_running() as i64);
        self.waiting.set(engine.scheduler().num_waiting() as i64);
        self.swapped.set(engine.scheduler().num_swapped() as i64);
        self.kv_usage.set(usage.used_blocks as f64 / usage.num_blocks as f64);
        self.used_blocks.set(usage.used_blocks as i64);
        self.shared_blocks.set(usage.shared_blocks as i64);
        self.cached_blocks.set(usage.cached_blocks as i64);
        self.filled_slots.set(usage.filled_slots as i64);
        self.prefix_queries.inc_by((stats.looked_up_tokens - before.looked_up_tokens) as u64);
        self.prefix_hits.inc_by((stats.hit_tokens - before.hit_tokens) as u64);
        self.drafted_tokens.inc_by((stats.drafted_tokens - before.drafted_tokens) as u64);
        self.accepted_tokens.inc_by((stats.accepted_tokens - before.accepted_tokens) as u64);
        self.swap.observe(engine.scheduler().swap_usage(), &stats, before);
        self.preemptions.inc_by((stats.preemptions - before.preemptions) as u64);
        self.generation_tokens.inc_by((stats.sampled_tokens - before.sampled_tokens) as u64);
        self.copied_blocks.inc_by((stats.copied_blocks - before.copied_blocks) as u64);
        self.steps.inc_by((stats.steps - before.steps) as u64);
        self.computed_tokens.inc_by((stats.computed_tokens - before.computed_tokens) as u64);
        *before = stats;
        let load = EngineLoad {
            used_blocks: usage.used_blocks,
            num_blocks: usage.num_blocks,
            queried_tokens: self.prefix_queries.get(),
            hit_tokens: self.prefix_hits.get(),
        };
        self.load.send_if_modified(|before| std::mem::replace(before, load) != load);
    }

    /// Returns a receiver for the engine's load, which callers can wait on.
    pub fn load(&self) -> watch::Receiver<EngineLoad> {
        self.load.subscribe()
    }

    /// Records requests that were queued.
    pub fn accepted(&self, params: &SamplingParams, requests: usize) {
        for _ in 0..requests {
            self.request_n.observe(params.n as f64);
            self.request_max_tokens.observe(params.max_tokens as f64);
        }
    }

    /// Records that a request got tokens. `after` is the time since its previous tokens, if any.
    pub fn token(&self, after: Option<Duration>) {
        if let Some(time) = after {
            self.per_token.observe(time.as_secs_f64());
            self.inter_token.observe(time.as_secs_f64());
        }
    }

    /// Records a finished request. `queued` is the time until it was first scheduled, if it was.
    pub fn done(&self, completion: &Completion, queued: Option<Duration>) {
        self.finished.push(completion);
        self.prompt_tokens.inc_by(completion.prompt_tokens.len() as u64);
        self.request_prompt_tokens.observe(completion.prompt_tokens.len() as f64);
        if let Some(first) = completion.outputs.first() {
            self.success.get_or_create(&Reason { finished_reason: reason(first.finish_reason) }).inc();
        }
        for output in &completion.outputs {
            self.request_generation_tokens.observe(output.tokens.len() as f64);
        }
        let (first, whole) = (completion.time_to_first_token, completion.time);
        if let Some(queued) = queued {
            self.queue.observe(queued.as_secs_f64());
            self.prefill.observe(first.saturating_sub(queued).as_secs_f64());
            self.decode.observe((whole - first).as_secs_f64());
            self.inference.observe(whole.saturating_sub(queued).as_secs_f64());
        }
        let longest = completion.outputs.iter().map(|o| o.tokens.len()).max().unwrap_or(0);
        // A request that was cancelled early has no first token.
        if longest > 0 {
            self.first_token.observe(first.as_secs_f64());
        }
        self.whole.observe(whole.as_secs_f64());
        if longest > 1 {
            self.request_per_token.observe((whole - first).as_secs_f64() / (longest - 1) as f64);
        }
    }

    /// Records an answer's status if it is an error. Refusals for lack of capacity are counted where they arise.
    pub fn error(&self, status: StatusCode) {
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {}
            status if status.is_server_error() => drop(self.failed.inc()),
            status if status.is_client_error() => drop(self.invalid.inc()),
            _ => {}
        }
    }

    /// Returns the text of all metrics in the OpenMetrics format.
    ///
    /// # Errors
    /// None in practice, because a string accepts any text.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.tasks.set(runtime.metrics().num_alive_tasks() as i64);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Returns OpenAI's word for the reason why an output ended.
pub fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}
