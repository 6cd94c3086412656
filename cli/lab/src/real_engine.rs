//! Serves traces with the real engine on this machine. Requests arrive by the processor time that the engine uses, and
//! a gate outside the engine controls admission.

use std::collections::{HashMap, VecDeque};

use anyhow::{Result, bail};
use engine::SamplingParams;
use engine::{Event, Llm, Prompt};
use loadgen::random::WorkloadRng;

use crate::cpu_clock;
use simulator::admission::AdmissionPolicy;
use simulator::outcome::Outcome;
use simulator::request::TraceRequest;

/// Decides which requests begin to run.
pub enum Gate {
    /// The engine's scheduler alone.
    Open,
    /// A policy in front of the engine, which has blocks enough for all admitted requests.
    AdmissionPolicy(Box<dyn AdmissionPolicy>),
    /// Batches of at most this many requests, which are all answered together.
    Batches(usize),
}

/// Serves a trace, sorted by arrival. The clock counts the processor time of this process, so other programs do not
/// affect it. When the engine is idle, the clock skips to the next arrival.
///
/// # Errors
/// If a step fails, or if a request is refused or does not fit the memory.
pub fn run(llm: &mut Llm, gate: &mut Gate, trace: &[TraceRequest], seed: u64) -> Result<Outcome> {
    let vocab_size = llm.config().vocab_size;
    let mut random = WorkloadRng::new(seed);
    let prompts: Vec<Vec<u32>> = trace.iter().map(|request| random.tokens(request.prompt, vocab_size)).collect();
    let mut waiting: VecDeque<usize> = VecDeque::new();
    let mut running: HashMap<u64, usize> = HashMap::new();
    let mut batch: Vec<TraceRequest> = Vec::new();
    let mut outcome = Outcome::default();
    let (mut next, begun, mut idle) = (0, cpu_clock::now(), 0.0);
    while outcome.completed.len() < trace.len() {
        let now = (cpu_clock::now() - begun).as_secs_f64() + idle;
        while trace.get(next).is_some_and(|request| request.arrival <= now) {
            waiting.push_back(next);
            next += 1;
        }
        let is_empty = running.is_empty();
        while let Some(&at) = waiting.front()
            && match gate {
                Gate::Open => true,
                Gate::AdmissionPolicy(admission) => admission.admit(at as u64, &trace[at]),
                Gate::Batches(most) => is_empty && running.len() < *most,
            }
        {
            waiting.pop_front();
            let params = SamplingParams { max_tokens: trace[at].output, ignore_eos: true, ..SamplingParams::default() };
            running.insert(llm.add(&Prompt::Tokens(prompts[at].clone()), params)?, at);
        }
        if !llm.has_work() {
            let Some(request) = trace.get(next).filter(|_| waiting.is_empty()) else {
                bail!("a request does not fit the memory even alone");
            };
            idle += (request.arrival - now).max(0.0);
            continue;
        }
        let events = llm.step()?;
        outcome.steps += 1;
        let now = (cpu_clock::now() - begun).as_secs_f64() + idle;
        for event in events {
            let Event::Done(done) = event else { continue };
            let Some(at) = running.remove(&done.id) else { continue };
            outcome.generated += done.outputs.iter().map(|output| output.tokens.len()).sum::<usize>();
            match gate {
                Gate::Open => outcome.completed.push((trace[at], now)),
                Gate::AdmissionPolicy(admission) => {
                    admission.release(at as u64);
                    outcome.completed.push((trace[at], now));
                }
                Gate::Batches(_) => batch.push(trace[at]),
            }
        }
        if running.is_empty() {
            outcome.completed.extend(batch.drain(..).map(|request| (request, now)));
        }
        outcome.end = now;
    }
    Ok(outcome)
}
