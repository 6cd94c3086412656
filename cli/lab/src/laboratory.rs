//! The settings of all figures: a seed, the length of traces, and a progress callback.

use anyhow::Result;

use crate::jobs::{self, JobProgress};
use simulator::beam_record::BeamRecord;
use simulator::cost::{CostModel, StepCost};
use simulator::deployment::Deployment;
use simulator::outcome::Outcome;
use simulator::request::Method;
use simulator::server::{BLOCK_SIZE, MAX_NUM_SEQS, SimulatedServer};
use simulator::sustained::{self, BOUND, Sustained};
use simulator::system::System;
use simulator::traces::{PublishedLengths, Trace, TraceWorkload};

/// Seconds of a trace in the paper.
pub const HOUR: f64 = 3600.0;

/// The settings of all figures.
#[derive(Clone, Copy)]
pub struct Lab<'a> {
    /// Seed of lengths and arrivals.
    pub seed: u64,
    /// Seconds of a trace. OPT-175B's traces are a quarter as long, as in the paper.
    pub seconds: f64,
    /// Published lengths that replace the distributions fitted to the paper's data sets.
    pub published: PublishedLengths<'a>,
    /// Receives the name of each finished job.
    pub progress: JobProgress<'a>,
}

/// A curve of a figure: a system on a workload.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The index of its panel.
    pub panel: usize,
    /// The system.
    pub system: System,
    /// The deployment that it runs on.
    pub deployment: Deployment,
    /// The requests' lengths.
    pub workload: TraceWorkload,
    /// How tokens are chosen.
    pub method: Method,
    /// Whether the server keeps the prefix that requests share.
    pub keeps_prefix: bool,
    /// Tokens per block.
    pub block_size: usize,
    /// Maximum number of running sequences.
    pub max_num_seqs: usize,
    /// Seconds per step that the GPU waits for the host.
    pub host: f64,
    /// Seconds of the trace.
    pub seconds: f64,
    /// A rate to start the search at.
    pub guess: f64,
}

impl Curve {
    /// Creates a curve with one output per request.
    pub fn new(
        panel: usize,
        system: System,
        deployment: Deployment,
        workload: TraceWorkload,
        guess: f64,
        lab: &Lab<'_>,
    ) -> Self {
        let is_largest = deployment.gpus >= 8;
        Curve {
            panel,
            system,
            deployment,
            workload,
            method: Method::Single,
            keeps_prefix: false,
            block_size: BLOCK_SIZE,
            max_num_seqs: MAX_NUM_SEQS,
            host: 0.0,
            seconds: if is_largest { lab.seconds / 4.0 } else { lab.seconds },
            guess,
        }
    }

    /// Simulates the system at `rate` requests per second.
    ///
    /// # Errors
    /// If a request does not fit the memory.
    pub fn run(
        &self,
        lab: &Lab<'_>,
        cost: &dyn StepCost,
        beam_record: &BeamRecord,
        rate: f64,
        change: impl FnOnce(&mut SimulatedServer<'_>),
    ) -> Result<Outcome> {
        let (max_len, seed) = (self.deployment.max_len, lab.seed);
        let workload = lab.published.of(&self.workload).clone();
        let trace = Trace { workload, method: self.method, seconds: self.seconds, max_len, seed };
        self.system.run(&self.deployment, cost, beam_record, &trace.requests(rate), |server| {
            server.keeps_prefix = self.keeps_prefix;
            (server.block_size, server.max_num_seqs) = (self.block_size, self.max_num_seqs);
            change(server);
        })
    }

    /// Searches for the highest rate that the system sustains.
    ///
    /// # Errors
    /// If a request does not fit the memory.
    pub fn sustained(&self, lab: &Lab<'_>, cost: &CostModel, beam_record: &BeamRecord) -> Result<Sustained> {
        let cost = self.system.cost(cost).with_host(self.host);
        sustained::search(BOUND, self.guess, |rate| {
            let outcome = self.run(lab, &cost, beam_record, rate, |server| server.limit = 1.2 * BOUND)?;
            Ok(outcome.normalized_latency())
        })
    }
}

impl Lab<'_> {
    /// Searches for the highest rate that each curve's system sustains, in the order of the curves.
    ///
    /// # Errors
    /// The error of the first curve that failed.
    pub fn sustained(&self, curves: &[Curve], beam_record: &BeamRecord) -> Result<Vec<Sustained>> {
        let mut costs: Vec<(Deployment, CostModel)> = Vec::new();
        for curve in curves {
            if !costs.iter().any(|(deployment, _)| *deployment == curve.deployment) {
                costs.push((curve.deployment, curve.deployment.cost()?));
            }
        }
        let name = |curve: &Curve| format!("{} on {}", curve.system.name(), curve.deployment.model);
        // Requests of the trace at the first rate.
        let requests = |curve: &Curve| curve.guess * curve.seconds;
        jobs::panels(
            curves,
            self.progress,
            name,
            |curve| curve.panel,
            requests,
            |curve| {
                let cost = costs.iter().find(|(deployment, _)| *deployment == curve.deployment);
                let (_, cost) = cost.ok_or_else(|| anyhow::anyhow!("{} has no cost model", curve.deployment.model))?;
                curve.sustained(self, cost, beam_record)
            },
        )
    }
}
