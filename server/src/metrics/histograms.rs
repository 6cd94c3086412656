//! Histograms of the times and sizes of requests.

use std::time::Duration;

use engine::Completion;
use engine::SamplingParams;
use prometheus_client::metrics::histogram::Histogram;

use super::register::{FIRST_TOKEN, OUTPUTS, PER_TOKEN, TOKENS, WHOLE, metrics};

metrics! {
    /// Histograms of the times and sizes of requests.
    pub struct RequestHistograms {
        first_token: Histogram = "vllm:time_to_first_token_seconds",
            "Time to a request's first token", Histogram::new(FIRST_TOKEN);
        per_token: Histogram = "vllm:time_per_output_token_seconds",
            "Time between a request's steps", Histogram::new(PER_TOKEN);
        inter_token: Histogram = "vllm:inter_token_latency_seconds",
            "Time between a request's steps, under vLLM's newer name", Histogram::new(PER_TOKEN);
        request_per_token: Histogram = "vllm:request_time_per_output_token_seconds",
            "Mean time per token after the first of a request", Histogram::new(PER_TOKEN);
        whole: Histogram = "vllm:e2e_request_latency_seconds", "Time for a whole request", Histogram::new(WHOLE);
        queue: Histogram = "vllm:request_queue_time_seconds",
            "Time from a request's arrival until it was first scheduled", Histogram::new(FIRST_TOKEN);
        prefill: Histogram = "vllm:request_prefill_time_seconds",
            "Time from when a request was first scheduled to its first token", Histogram::new(FIRST_TOKEN);
        decode: Histogram = "vllm:request_decode_time_seconds",
            "Time from a request's first token to its last", Histogram::new(WHOLE);
        inference: Histogram = "vllm:request_inference_time_seconds",
            "Time from when a request was first scheduled to its last token", Histogram::new(WHOLE);
        request_prompt_tokens: Histogram = "vllm:request_prompt_tokens",
            "Prompt tokens of a request", Histogram::new(TOKENS);
        request_generation_tokens: Histogram = "vllm:request_generation_tokens",
            "Tokens generated for an output", Histogram::new(TOKENS);
        request_n: Histogram = "vllm:request_params_n", "Outputs requested", Histogram::new(OUTPUTS);
        request_max_tokens: Histogram = "vllm:request_params_max_tokens",
            "Maximum tokens requested", Histogram::new(TOKENS);
    }
}

impl RequestHistograms {
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
