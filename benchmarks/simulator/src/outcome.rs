//! What came of a trace.

use crate::memory::MemoryUse;
use crate::request::TraceRequest;

/// What came of a trace on a simulated server.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The requests that are complete, and when.
    pub completed: Vec<(TraceRequest, f64)>,
    /// Whether the run was given up because its normalized latency is above the limit that was set, whatever follows.
    pub is_overloaded: bool,
    /// Where the memory went while a request waited for it: slots times seconds.
    pub memory: MemoryUse,
    /// Requests times seconds in steps while requests still arrived, and these seconds.
    pub batched: f64,
    /// See `batched`.
    pub busy: f64,
    /// Iterations.
    pub steps: usize,
    /// Tokens that were generated, those of beams that were dropped later included.
    pub generated: usize,
    /// Most slots that were in use.
    pub peak_slots: usize,
    /// Groups that were preempted, and those of them that were swapped out.
    pub preempted: usize,
    /// See `preempted`.
    pub swapped: usize,
    /// Blocks that sequences would hold by themselves, and that they hold, summed over steps.
    pub unshared_blocks: f64,
    /// See `unshared_blocks`.
    pub used_blocks: f64,
    /// The last moment.
    pub end: f64,
}

impl Outcome {
    /// The mean over all requests of the time from arrival to end, divided by the tokens of an output: seconds a token.
    /// Nothing if the run was given up.
    pub fn normalized_latency(&self) -> Option<f64> {
        let of = |(request, end): &(TraceRequest, f64)| (end - request.arrival) / request.output as f64;
        let sum: f64 = self.completed.iter().map(of).sum();
        (!self.is_overloaded && !self.completed.is_empty()).then(|| sum / self.completed.len() as f64)
    }

    /// Requests that ran at a time, on average over the steps while requests still arrived.
    pub fn mean_batch(&self) -> f64 {
        if self.busy > 0.0 { self.batched / self.busy } else { 0.0 }
    }

    /// Share of blocks that sharing saved.
    pub fn sharing_saved(&self) -> f64 {
        if self.unshared_blocks > 0.0 { 1.0 - self.used_blocks / self.unshared_blocks } else { 0.0 }
    }
}
