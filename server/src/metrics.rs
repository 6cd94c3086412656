//! Metrics for `GET /metrics`.
//!
//! Metrics named `vllm:` have the same meaning as in vLLM, so its Grafana dashboards work with this server. Metrics
//! named `quire:` are this server's own.

mod cache;
mod histograms;
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
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use self::cache::CacheMetrics;
use self::histograms::RequestHistograms;
use self::register::metrics;
use self::swap::SwapMetrics;
use crate::finished::FinishedRequests;
use crate::load::EngineLoad;

#[derive(Clone, Debug, EncodeLabelSet, PartialEq, Eq, Hash)]
struct Reason {
    finished_reason: &'static str,
}

type FloatGauge = Gauge<f64, AtomicU64>;

metrics! {
    /// All metrics. Clones share the same values.
    pub struct Metrics {
        pub running: Gauge = "vllm:num_requests_running", "Requests in the running batch";
        pub waiting: Gauge = "vllm:num_requests_waiting", "Requests that wait to run";
        swapped: Gauge = "vllm:num_requests_swapped", "Requests with sequences that are swapped out";
        pub kv_usage: FloatGauge = "vllm:kv_cache_usage_perc", "Share of the KV blocks in use, from 0 to 1";
        preemptions: Counter = "vllm:num_preemptions", "Requests preempted";
        prompt_tokens: Counter = "vllm:prompt_tokens", "Prompt tokens of answered requests";
        pub generation_tokens: Counter = "vllm:generation_tokens", "Tokens generated";
        success: Family<Reason, Counter> = "vllm:request_success",
            "Completed requests, by the finish reason of their first output";
        histograms: RequestHistograms;
        cache: CacheMetrics;
        drafted_tokens: Counter = "vllm:spec_decode_num_draft_tokens", "Tokens drafted from a sequence's own text";
        accepted_tokens: Counter = "vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted";
        swap: SwapMetrics;
        copied_blocks: Counter = "quire:kv_blocks_copied", "KV blocks copied on write";
        steps: Counter = "quire:engine_steps", "Steps of the engine";
        /// Tokens run through the model, of prompts and outputs.
        pub computed_tokens: Counter = "quire:computed_tokens", "Tokens run through the model";
        pub engine_failures: Counter = "quire:engine_failures", "Steps that failed";
        /// Requests refused because too many were waiting or in progress.
        pub refused: Counter = "quire:requests_refused", "Requests refused for lack of capacity";
        pub failed: Counter = "quire:requests_failed", "Requests answered with 500 or 504";
        /// Requests refused with a client error (4xx other than 429).
        pub invalid: Counter = "quire:requests_invalid", "Invalid requests that were refused";
        /// Engine requests that were cancelled because the client disconnected, read too slowly or ran out of time, or
        /// because an operator cancelled them.
        pub aborted: Counter = "quire:requests_aborted", "Requests cancelled before their end";
        pub dropped_batches: Counter = "quire:kv_event_batches_dropped", "Batches of KV events that were not published";
        pub connections: Gauge = "quire:connections", "Open connections";
        pub requests: Gauge = "quire:http_requests", "HTTP requests for text in progress";
        tasks: Gauge = "quire:tasks", "Tasks alive in the runtime";
        ..
        registry: Arc<Registry>,
        load: watch::Sender<EngineLoad>,
        /// The most recently finished requests.
        pub finished: FinishedRequests,
    }
}

impl Metrics {
    /// Creates the metrics of a server of `model`, all zero.
    pub fn new(model: &str) -> Self {
        let labels = [("model_name", model), ("engine", "0")].map(|(k, v)| (k.into(), v.to_owned().into()));
        let mut r = Registry::with_labels(labels.into_iter());
        let metrics = Metrics::register(&mut r);
        for ended in [FinishReason::Stop, FinishReason::Length, FinishReason::Abort] {
            // Creates the series at zero, so that it exists before the first such request.
            drop(metrics.success.get_or_create(&Reason { finished_reason: reason(ended) }));
        }
        Metrics { registry: Arc::new(r), ..metrics }
    }

    /// Sets the metrics that describe the engine's memory.
    pub fn describe(&self, llm: &Llm) {
        let usage = llm.engine().scheduler().usage();
        self.cache.describe(llm.engine().config().block_size, usage.num_blocks);
    }

    /// Updates the metrics with the engine's state after a step. `before` holds its counters at the previous call.
    pub fn observe(&self, llm: &Llm, before: &mut Stats) {
        let (engine, stats) = (llm.engine(), llm.stats());
        let usage = engine.scheduler().usage();
        self.running.set(engine.scheduler().num_running() as i64);
        self.waiting.set(engine.scheduler().num_waiting() as i64);
        self.swapped.set(engine.scheduler().num_swapped() as i64);
        self.kv_usage.set(usage.used_blocks as f64 / usage.num_blocks as f64);
        self.cache.observe(&usage, &stats, before);
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
            queried_tokens: self.cache.queried_tokens(),
            hit_tokens: self.cache.hit_tokens(),
        };
        self.load.send_if_modified(|before| std::mem::replace(before, load) != load);
    }

    /// Returns a receiver for the engine's load, which callers can wait on.
    pub fn load(&self) -> watch::Receiver<EngineLoad> {
        self.load.subscribe()
    }

    /// Records requests that were queued.
    pub fn accepted(&self, params: &SamplingParams, requests: usize) {
        self.histograms.accepted(params, requests);
    }

    /// Records that a request got tokens. `after` is the time since its previous tokens, if any.
    pub fn token(&self, after: Option<Duration>) {
        self.histograms.token(after);
    }

    /// Records a finished request. `queued` is the time until it was first scheduled, if it was.
    pub fn done(&self, completion: &Completion, queued: Option<Duration>) {
        self.finished.push(completion);
        self.prompt_tokens.inc_by(completion.prompt_tokens.len() as u64);
        if let Some(first) = completion.outputs.first() {
            self.success.get_or_create(&Reason { finished_reason: reason(first.finish_reason) }).inc();
        }
        self.histograms.done(completion, queued);
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
