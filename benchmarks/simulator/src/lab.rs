//! What figures are made with: a seed, the length of traces, and somebody who hears how far it is.

use anyhow::Result;

use crate::cost::{CostModel, StepCost};
use crate::deployment::Deployment;
use crate::jobs::{self, JobProgress};
use crate::lineage::Lineages;
use crate::outcome::Outcome;
use crate::request::Method;
use crate::server::{BLOCK_SIZE, MAX_NUM_SEQS, SimulatedServer};
use crate::sustained::{self, BOUND, Sustained};
use crate::system::System;
use crate::traces::{PublishedLengths, Trace, TraceWorkload};

/// Seconds of a trace of the paper's.
pub const HOUR: f64 = 3600.0;

/// What figures are made with.
#[derive(Clone, Copy)]
pub struct Lab<'a> {
    /// Of lengths and arrivals.
    pub seed: u64,
    /// Seconds of traces for most models. That of OPT-175B is a quarter of it, as in the paper.
    pub seconds: f64,
    /// Lengths that take the place of those like the paper's data sets.
    pub published: PublishedLengths<'a>,
    /// Hears of each piece that is done.
    pub progress: JobProgress<'a>,
}

/// A curve of a figure: a system on a workload.
#[derive(Clone, Debug)]
pub struct Curve {
    /// In which panel it is drawn.
    pub panel: usize,
    /// The system.
    pub system: System,
    /// What it runs on.
    pub deployment: Deployment,
    /// What is asked of it.
    pub workload: TraceWorkload,
    /// How tokens are chosen.
    pub method: Method,
    /// Whether the prefix that requests have in common is kept.
    pub keeps_prefix: bool,
    /// Tokens in a block.
    pub block_size: usize,
    /// Most sequences that run at a time.
    pub max_num_seqs: usize,
    /// Seconds of a step in which the GPU waits for the host.
    pub host: f64,
    /// Seconds of the trace.
    pub seconds: f64,
    /// A rate to begin the search at.
    pub guess: f64,
}

impl Curve {
    /// A curve of basic sampling.
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

    /// What happens at a rate.
    ///
    /// # Errors
    /// If a request does not fit.
    pub fn run(
        &self,
        lab: &Lab<'_>,
        cost: &dyn StepCost,
        lineages: &Lineages,
        rate: f64,
        change: impl FnOnce(&mut SimulatedServer<'_>),
    ) -> Result<Outcome> {
        let (max_len, seed) = (self.deployment.max_len, lab.seed);
        let workload = lab.published.of(&self.workload).clone();
        let trace = Trace { workload, method: self.method, seconds: self.seconds, max_len, seed };
        self.system.run(&self.deployment, cost, lineages, &trace.requests(rate), |server| {
            server.keeps_prefix = self.keeps_prefix;
            (server.block_size, server.max_num_seqs) = (self.block_size, self.max_num_seqs);
            change(server);
        })
    }

    /// The highest rate that the system sustains.
    ///
    /// # Errors
    /// If a request does not fit.
    pub fn sustained(&self, lab: &Lab<'_>, cost: &CostModel, lineages: &Lineages) -> Result<Sustained> {
        let cost = self.system.cost(cost).with_host(self.host);
        sustained::search(BOUND, self.guess, |rate| {
            let outcome = self.run(lab, &cost, lineages, rate, |server| server.limit = 1.2 * BOUND)?;
            Ok(outcome.normalized_latency())
        })
    }
}

impl Lab<'_> {
    /// What each curve sustains, in their order.
    ///
    /// # Errors
    /// The first that any curve has.
    pub fn sustained(&self, curves: &[Curve], lineages: &Lineages) -> Result<Vec<Sustained>> {
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
                let (_, cost) = cost.ok_or_else(|| anyhow::anyhow!("{} has no price", curve.deployment.model))?;
                curve.sustained(self, cost, lineages)
            },
        )
    }
}
