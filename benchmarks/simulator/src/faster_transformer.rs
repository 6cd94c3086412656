//! FasterTransformer behind a dynamic batcher: all requests of a batch begin and end together.

use anyhow::{Result, ensure};

use crate::cost::StepLoad;
use crate::memory::MemoryUse;
use crate::outcome::Outcome;
use crate::request::{Method, TraceRequest};
use crate::server::SimulatedServer;

/// Serves a trace in batches of the earliest requests. A batch takes as many requests as fit the memory if each
/// sequence may have `max_len` tokens. Prompts are padded to the longest, and all requests run until the longest output
/// is complete.
///
/// # Errors
/// If a single request does not fit the memory.
pub fn run(server: &SimulatedServer<'_>, trace: &[TraceRequest], max_len: usize) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let last_arrival = trace.last().map_or(0.0, |request| request.arrival);
    let mut left = trace;
    let mut latencies = 0.0;
    while let Some(first) = left.first() {
        outcome.end = outcome.end.max(first.arrival);
        let mut seqs = 0;
        let fits = |request: &&TraceRequest| {
            seqs += request.method.width();
            request.arrival <= outcome.end && seqs * max_len <= server.slots
        };
        let size = left.iter().take_while(fits).count();
        ensure!(size > 0, "a request does not fit a memory of {} tokens", server.slots);
        let (batch, rest) = left.split_at(size);
        serve(server, batch, max_len, !rest.is_empty() && outcome.end <= last_arrival, &mut outcome);
        latencies += batch.iter().map(|r| (outcome.end - r.arrival) / r.output as f64).sum::<f64>();
        outcome.completed.extend(batch.iter().map(|request| (*request, outcome.end)));
        left = rest;
        if latencies > server.limit * trace.len() as f64 {
            outcome.is_overloaded = true;
            break;
        }
    }
    Ok(outcome)
}

/// Serves a batch from its prompts to its longest output.
fn serve(server: &SimulatedServer<'_>, batch: &[TraceRequest], max_len: usize, is_loaded: bool, outcome: &mut Outcome) {
    let longest = |tokens: fn(&TraceRequest) -> usize| batch.iter().map(tokens).max().unwrap_or(0);
    let (prompt, output) = (longest(|r| r.prompt), longest(|r| r.output));
    let seqs: usize = batch.iter().map(|r| r.method.width()).sum();
    let load = StepLoad { prompts: vec![(prompt, prompt); batch.len()], logits: seqs, ..StepLoad::default() };
    let mut seconds = server.cost.seconds(&load);
    // Each sample gets a copy of the prompt. Beams find their prompt through an index and need no copy.
    let samples = |r: &TraceRequest| if let Method::Samples(width) = r.method { width - 1 } else { 0 };
    seconds += server.cost.copy_seconds(prompt * batch.iter().map(samples).sum::<usize>());
    for step in 1..output {
        let decode_context = (seqs * (prompt + step)) as u64;
        seconds +=
            server.cost.seconds(&StepLoad { decodes: seqs, decode_context, logits: seqs, ..StepLoad::default() });
    }
    outcome.steps += output;
    outcome.generated += batch.iter().map(|r| r.output * r.method.width()).sum::<usize>();
    let slots = seqs * max_len;
    outcome.peak_slots = outcome.peak_slots.max(slots);
    if is_loaded {
        outcome.busy += seconds;
        outcome.batched += seconds * batch.len() as f64;
        outcome.memory.add(&average(server.slots, batch, max_len, output), seconds);
    }
    outcome.end += seconds;
}

/// Returns how the memory is used on average over the steps of a batch. Outputs grow by one token per step until they
/// are complete.
fn average(slots: usize, batch: &[TraceRequest], max_len: usize, steps: usize) -> MemoryUse {
    let mut usage = MemoryUse { external: slots as f64, ..MemoryUse::default() };
    for request in batch {
        let width = request.method.width() as f64;
        let (own, steps) = (request.output as f64, steps as f64);
        let generated = own - own * own / (2.0 * steps);
        let tokens = request.prompt as f64 + generated;
        usage.tokens += width * tokens;
        usage.reserved += width * (own - generated);
        usage.internal += width * (max_len - request.tokens()) as f64;
        usage.external -= width * max_len as f64;
    }
    usage
}
