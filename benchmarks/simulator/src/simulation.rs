//! Iteration-level scheduling on a virtual clock. The engine's scheduler, block manager and sequence groups run, but no
//! model is computed. A step lasts as long as its price says, and requests that arrive meanwhile wait for its end.

use std::collections::{HashMap, VecDeque};

use anyhow::{Result, ensure};
use engine::tools::group::{NewToken, SequenceGroup};
use engine::tools::kv::{BlockPool, PoolUsage};
use engine::tools::sampling::{Beam, EarlyStopping, Sampled, SamplingParams};
use engine::tools::scheduler::{Scheduler, Step};
use engine::tools::sequence::Sequence;

use crate::admission::AdmissionPolicy;
use crate::beam_record::BeamRecord;
use crate::memory::MemoryUse;
use crate::outcome::Outcome;
use crate::price;
use crate::request::{Method, TraceRequest};
use crate::server::SimulatedServer;

/// Share of the blocks that must stay free when a request is admitted, as in the engine.
const WATERMARK: f64 = 0.01;
/// Number of steps between two checks of the latency limit.
const LOOK: usize = 64;

/// The token of shared prefixes, and the token of everything else. They differ, so a prompt never matches more than the
/// shared prefix.
const COMMON: u32 = 1;
const OWN: u32 = 0;

/// A server in the middle of a trace.
pub struct Simulation<'a> {
    server: SimulatedServer<'a>,
    beam_record: &'a BeamRecord,
    /// The policy that admits requests, or `None` if the scheduler alone decides. Under a policy the memory is
    /// contiguous, and the policy manages it.
    admission: Option<Box<dyn AdmissionPolicy>>,
    pool: BlockPool,
    scheduler: Scheduler,
    /// Requests that arrived and that `admission` has not admitted.
    waiting: VecDeque<u64>,
    /// Requests that arrived and are not complete.
    open: HashMap<u64, TraceRequest>,
    clock: f64,
    /// Sums of 1 / output and of arrival / output, over the requests in `open`.
    weights: (f64, f64),
    /// Sum of the normalized latencies of complete requests.
    latencies: f64,
    /// Number of requests in the trace.
    expected: usize,
    /// Sampled tokens of a request without beam search, and a buffer for the tokens that `advance` reports.
    row: Vec<Sampled>,
    new: Vec<NewToken>,
    outcome: Outcome,
}

impl<'a> Simulation<'a> {
    /// Creates an idle server. If `server.keeps_prefix` is set, it keeps the blocks of the trace's shared prefix.
    pub fn new(
        server: SimulatedServer<'a>,
        admission: Option<Box<dyn AdmissionPolicy>>,
        beam_record: &'a BeamRecord,
    ) -> Self {
        // The scheduler must have blocks for every request that a policy admits. A sequence takes less than a block
        // more than its tokens.
        let slots = if admission.is_some() { 8 * server.slots + (1 << 20) } else { server.slots };
        let groups = server.cost.groups();
        let pool = BlockPool::with_groups(slots / server.block_size, server.block_size, &groups);
        let swap = BlockPool::with_groups(server.swap_slots / server.block_size, server.block_size, &groups);
        let watermark = (pool.num_pages() as f64 * WATERMARK) as usize;
        let scheduler = Scheduler::new(pool.clone(), swap, watermark, server.scheduler_options());
        Simulation {
            server,
            beam_record,
            admission,
            pool,
            scheduler,
            waiting: VecDeque::new(),
            open: HashMap::new(),
            clock: 0.0,
            weights: (0.0, 0.0),
            latencies: 0.0,
            expected: 0,
            row: Vec::new(),
            new: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    /// Serves a trace, sorted by arrival, to its end.
    ///
    /// # Errors
    /// If a request does not fit the memory even alone.
    pub fn run(mut self, trace: &[TraceRequest]) -> Result<Outcome> {
        self.expected = trace.len();
        self.keep_prefix(trace)?;
        let last_arrival = trace.last().map_or(0.0, |request| request.arrival);
        let mut next = 0;
        loop {
            while let Some(request) = trace.get(next).filter(|request| request.arrival <= self.clock) {
                self.arrive(next as u64, *request)?;
                next += 1;
            }
            self.admit();
            if self.scheduler.is_idle() {
                ensure!(self.waiting.is_empty(), "a request does not fit the memory even alone");
                let Some(request) = trace.get(next) else { break };
                self.clock = request.arrival;
                continue;
            }
            self.step(self.clock <= last_arrival)?;
            if self.outcome.steps.is_multiple_of(LOOK) && self.is_above_the_limit() {
                self.outcome.is_overloaded = true;
                break;
            }
        }
        self.outcome.end = self.clock;
        Ok(self.outcome)
    }

    /// Pins the blocks of the prefix that all requests share.
    fn keep_prefix(&mut self, trace: &[TraceRequest]) -> Result<()> {
        let tokens = trace.first().map_or(0, |request| request.prefix);
        if self.server.keeps_prefix && tokens > 0 {
            let mut seq = Sequence::new(vec![COMMON; tokens], &self.pool, false);
            ensure!(seq.table.reserve(tokens, &mut Vec::new()).is_ok(), "the shared prefix does not fit the memory");
            self.scheduler.pin(seq);
        }
        Ok(())
    }

    fn arrive(&mut self, id: u64, request: TraceRequest) -> Result<()> {
        let fits = match &self.admission {
            Some(_) => request.tokens() <= self.server.slots,
            None => self.pool.holds(&self.pool.blocks_at_once(request.tokens(), 1), 0),
        };
        ensure!(fits, "a request of {} tokens does not fit the memory", request.tokens());
        let weight = 1.0 / request.output as f64;
        self.weights.0 += weight;
        self.weights.1 += weight * request.arrival;
        self.open.insert(id, request);
        if self.admission.is_some() {
            self.waiting.push_back(id);
        } else {
            self.scheduler.add(group(id, &request, &self.pool));
        }
        Ok(())
    }

    /// Passes the requests that the policy admits to the scheduler.
    fn admit(&mut self) {
        let Some(admission) = &mut self.admission else { return };
        while let Some(&id) = self.waiting.front()
            && admission.admit(id, &self.open[&id])
        {
            self.waiting.pop_front();
            self.scheduler.add(group(id, &self.open[&id], &self.pool));
        }
    }

    /// Runs one iteration. `is_loaded` says whether requests still arrive.
    fn step(&mut self, is_loaded: bool) -> Result<()> {
        let step = self.scheduler.schedule(false);
        ensure!(!step.exhausted, "a sequence is longer than the whole memory");
        let mut seconds = price::seconds(&self.server, &step);
        if self.admission.is_none() {
            seconds += price::move_seconds(&self.server, &step);
        }
        let contiguous_copies = self.advance(&step);
        if self.admission.is_some() {
            seconds += self.server.cost.copy_seconds(contiguous_copies);
        }
        self.observe(&step, seconds, is_loaded);
        self.clock += seconds;
        self.retire()
    }

    /// Appends the new tokens. Returns the number of tokens whose keys and values contiguous sequences would copy: the
    /// prompt for each output after the first, and a beam's generated tokens for each child after its first.
    fn advance(&mut self, step: &Step) -> usize {
        let mut copied = 0;
        for &at in &step.sampled {
            let group = &mut self.scheduler.running_mut()[at];
            let (prompt, output) = group.running.first().map_or((0, 0), |seq| (seq.prompt_len, seq.output().len()));
            self.new.clear();
            if group.params.beam.is_some() {
                let width = group.params.width();
                let children = match output {
                    0 => vec![width],
                    _ => self.beam_record.children(group.id, output - 1, width),
                };
                let more: usize = children.iter().map(|n| n.saturating_sub(1)).sum();
                copied += more * if output == 0 { prompt } else { output };
                self.outcome.generated += width;
                let sampled: Vec<Sampled> = children.into_iter().map(beams).collect();
                group.advance(&sampled, &mut self.new);
            } else {
                let rows = group.num_sample_rows();
                copied += if output == 0 { prompt * (rows - 1) } else { 0 };
                self.outcome.generated += rows;
                if self.row.len() < rows {
                    self.row.resize(rows, Sampled { token: OWN, logprob: 0.0, top: Vec::new() });
                }
                group.advance(&self.row[..rows], &mut self.new);
            }
        }
        copied
    }

    fn observe(&mut self, step: &Step, seconds: f64, is_loaded: bool) {
        let outcome = &mut self.outcome;
        outcome.steps += 1;
        outcome.preempted += step.preempted;
        outcome.swapped += step.swapped_out;
        let running = self.scheduler.running();
        if is_loaded {
            outcome.busy += seconds;
            outcome.batched += seconds * running.len() as f64;
        }
        let usage = self.scheduler.usage();
        let unshared: usize =
            running.iter().flat_map(SequenceGroup::tables).map(|table| table.lane(0).live_blocks().len()).sum();
        outcome.unshared_blocks += unshared as f64;
        outcome.used_blocks += usage.used_blocks as f64;
        let is_short =
            if self.admission.is_some() { !self.waiting.is_empty() } else { self.scheduler.num_waiting() > 0 };
        match &self.admission {
            None => {
                outcome.peak_slots = outcome.peak_slots.max(usage.used_slots);
                if is_short {
                    outcome.memory.add(&paged(usage, self.server.block_size), seconds);
                }
            }
            Some(admission) if is_short => {
                let mut tokens = running.iter().filter_map(|g| Some((g.id, g.running.first()?.table.len())));
                let memory = admission.memory(&mut tokens);
                outcome.peak_slots = outcome.peak_slots.max((memory.total() - memory.external) as usize);
                outcome.memory.add(&memory, seconds);
            }
            Some(_) => {}
        }
    }

    /// Removes complete requests and records them.
    fn retire(&mut self) -> Result<()> {
        for group in self.scheduler.take_finished() {
            let id = group.id;
            if let Some(admission) = &mut self.admission {
                admission.release(id);
            }
            let Some(request) = self.open.remove(&id) else { continue };
            for output in group.into_outputs() {
                ensure!(output.tokens.len() == request.output, "an output does not have the requested length");
            }
            let weight = 1.0 / request.output as f64;
            self.weights.0 -= weight;
            self.weights.1 -= weight * request.arrival;
            self.latencies += weight * (self.clock - request.arrival);
            self.outcome.completed.push((request, self.clock));
        }
        Ok(())
    }

    /// Returns whether the mean normalized latency of the whole trace will exceed the limit even if all open requests
    /// complete now.
    fn is_above_the_limit(&self) -> bool {
        let open = self.clock * self.weights.0 - self.weights.1;
        self.latencies + open > self.server.limit * self.expected as f64
    }
}

fn group(id: u64, request: &TraceRequest, pool: &BlockPool) -> SequenceGroup {
    let mut prompt = vec![OWN; request.prompt];
    prompt[..request.prefix].fill(COMMON);
    let width = request.method.width();
    let beam = Beam { width, length_penalty: 1.0, early_stopping: EarlyStopping::Never };
    let params = SamplingParams {
        n: width,
        best_of: width,
        max_tokens: request.output,
        ignore_eos: true,
        beam: matches!(request.method, Method::Beams(_)).then_some(beam),
        ..SamplingParams::default()
    };
    SequenceGroup::new(id, prompt, params, 0, request.output, &[], pool)
}

/// Returns the proposals of a beam that has `children` children. All beams of a step score the same, so each proposal
/// survives.
fn beams(children: usize) -> Sampled {
    Sampled { token: OWN, logprob: -1.0, top: vec![(OWN, -1.0); children] }
}

/// Returns how a paged memory is used. Slots that a block has not filled count as internal fragmentation.
fn paged(usage: PoolUsage, block_size: usize) -> MemoryUse {
    MemoryUse {
        tokens: usage.filled_slots as f64,
        reserved: 0.0,
        internal: (usage.used_slots - usage.filled_slots) as f64,
        external: (usage.num_blocks * block_size - usage.used_slots) as f64,
    }
}
