//! The result of serving a trace.

use crate::memory::MemoryUse;
use crate::request::TraceRequest;

/// The result of serving a trace.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Complete requests, each with its time of completion.
    pub completed: Vec<(TraceRequest, f64)>,
    /// Whether the run stopped early because its mean normalized latency was certain to exceed the limit.
    pub is_overloaded: bool,
    /// How the memory was used while a request waited for memory, in slots times seconds.
    pub memory: MemoryUse,
    /// Running requests times seconds, summed over steps while requests still arrived.
    pub batched: f64,
    /// Seconds of steps while requests still arrived.
    pub busy: f64,
    /// Number of iterations.
    pub steps: usize,
    /// Generated tokens, including tokens of beams that were dropped later.
    pub generated: usize,
    /// Most slots in use at a time.
    pub peak_slots: usize,
    /// Number of preempted groups.
    pub preempted: usize,
    /// Number of preempted groups that were swapped out.
    pub swapped: usize,
    /// Blocks that sequences would use without sharing, summed over steps.
    pub unshared_blocks: f64,
    /// Blocks that sequences use, summed over steps.
    pub used_blocks: f64,
    /// Time at the end of the run.
    pub end: f64,
}

impl Outcome {
    /// Returns the mean normalized latency: the time from arrival to completion per token of an output, in seconds. If
    /// the run stopped early or no request is complete, returns `None`.
    pub fn normalized_latency(&self) -> Option<f64> {
        let latency = |(request, end): &(TraceRequest, f64)| (end - request.arrival) / request.output as f64;
        let sum: f64 = self.completed.iter().map(latency).sum();
        (!self.is_overloaded && !self.completed.is_empty()).then(|| sum / self.completed.len() as f64)
    }

    /// Returns the mean number of running requests, over steps while requests still arrived.
    pub fn mean_batch(&self) -> f64 {
        if self.busy > 0.0 { self.batched / self.busy } else { 0.0 }
    }

    /// Returns the share of blocks that sharing saved.
    pub fn sharing_saved(&self) -> f64 {
        if self.unshared_blocks > 0.0 { 1.0 - self.used_blocks / self.unshared_blocks } else { 0.0 }
    }
}
