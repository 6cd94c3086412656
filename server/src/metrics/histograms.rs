//! Histograms of the times and sizes of requests.

use std::time::Duration;

use engine::llm::Completion;
use engine::sampling::SamplingParams;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::register::{FIRST_TOKEN, OUTPUTS, PER_TOKEN, TOKENS, WHOLE, add};

/// Histograms of the times and sizes of requests.
#[derive(Clone, Debug)]
pub struct RequestHistograms {
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
}

impl RequestHistograms {
    /// Creates the histograms in `r`, all empty.
    pub fn new(r: &mut Registry) -> Self {
        let mut new = |name, help, buckets: &[f64]| add(r, name, help, Histogram::new(buckets.iter().copied()));
        RequestHistograms {
            first_token: new("vllm:time_to_first_token_seconds", "Time to a request's first token", &FIRST_TOKEN),
            per_token: new("vllm:time_per_output_token_seconds", "Time between a request's steps", &PER_TOKEN),
            inter_token: new(
                "vllm:inter_token_latency_seconds",
                "Time between a request's steps, under vLLM's newer name",
                &PER_TOKEN,
            ),
            request_per_token: new(
                "vllm:request_time_per_output_token_seconds",
                "Mean time per token after the first of a request",
                &PER_TOKEN,
            ),
            whole: new("vllm:e2e_request_latency_seconds", "Time for a whole request", &WHOLE),
            queue: new(
                "vllm:request_queue_time_seconds",
                "Time from a request's arrival until it was first scheduled",
                &FIRST_TOKEN,
            ),
            prefill: new(
                "vllm:request_prefill_time_seconds",
                "Time from when a request was first scheduled to its first token",
                &FIRST_TOKEN,
            ),
            decode: new("vllm:request_decode_time_seconds", "Time from a request's first token to its last", &WHOLE),
            inference: new(
                "vllm:request_inference_time_seconds",
                "Time from when a request was first scheduled to its last token",
                &WHOLE,
            ),
            request_prompt_tokens: new("vllm:request_prompt_tokens", "Prompt tokens of a request", &TOKENS),
            request_generation_tokens: new("vllm:request_generation_tokens", "Tokens generated for an output", &TOKENS),
            request_n: new("vllm:request_params_n", "Outputs requested", &OUTPUTS),
            request_max_tokens: new("vllm:request_params_max_tokens", "Maximum tokens requested", &TOKENS),
        }
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
        self.request_prompt_tokens.observe(completion.prompt_tokens.len() as f64);
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
}
