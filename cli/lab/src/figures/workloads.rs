//! Beyond the paper: the share of memory that holds tokens on several workloads, and the gain from choosing a block
//! size for each.

use anyhow::{Result, anyhow};

use super::batched::SYSTEMS;
use crate::chart::Chart;
use crate::figure::{Figure, FigureOrigin, FigureTable};
use crate::jobs;
use crate::laboratory::{Curve, Lab};
use simulator::beam_record::BeamRecord;
use simulator::deployment::{Deployment, LLAMA_3_8B, OPT_13B};
use simulator::memory::MemoryUse;
use simulator::plan;
use simulator::server::BLOCK_SIZE;
use simulator::system::System;
use simulator::traces::{ALPACA_LIKE, SHAREGPT_LIKE, TraceWorkload};

/// Block sizes to compare.
pub const SIZES: [usize; 4] = [8, 16, 32, 64];
/// Most seconds of these traces.
const SECONDS: f64 = 600.0;
/// Rate at which memory is observed, as a multiple of the rate that Quire sustains with blocks of 16. Requests wait at
/// this rate.
const OVERLOAD: f64 = 1.5;

/// A workload and the deployment that serves it.
#[derive(Clone, Debug)]
pub struct ServedWorkload {
    /// Its name.
    pub name: &'static str,
    /// The deployment that serves it.
    pub deployment: Deployment,
    /// Its lengths.
    pub workload: TraceWorkload,
    /// A rate to start searches at, in requests per second.
    pub guess: f64,
}

/// Returns the paper's two workloads on its OPT-13B, and the workloads of `quire plan`, whose prompts are longer, on
/// LLaMA-3-8B.
///
/// # Errors
/// If `quire plan` does not know a workload.
pub fn served() -> Result<Vec<ServedWorkload>> {
    let planned = |name: &'static str, guess| -> Result<ServedWorkload> {
        let workload = plan::workload(name).map_err(|why| anyhow!(why))?;
        Ok(ServedWorkload { name, deployment: LLAMA_3_8B, workload, guess })
    };
    Ok(vec![
        ServedWorkload { name: "ShareGPT-like", deployment: OPT_13B, workload: SHAREGPT_LIKE, guess: 5.0 },
        ServedWorkload { name: "Alpaca-like", deployment: OPT_13B, workload: ALPACA_LIKE, guess: 90.0 },
        planned("chat", 1.0)?,
        planned("code", 2.0)?,
        planned("long-document", 0.5)?,
    ])
}

fn curve(served: &ServedWorkload, system: System, block_size: usize, lab: &Lab<'_>) -> Curve {
    let new = Curve::new(0, system, served.deployment, served.workload.clone(), served.guess, lab);
    Curve { block_size, seconds: lab.seconds.min(SECONDS), ..new }
}

/// Returns the highest rate that Quire sustains with blocks of each of [`SIZES`], in requests per second.
///
/// # Errors
/// If a request does not fit the memory.
pub fn rates(served: &ServedWorkload, lab: &Lab<'_>) -> Result<Vec<f64>> {
    let curves = SIZES.map(|size| curve(served, System::Quire, size, lab));
    Ok(lab.sustained(&curves, &BeamRecord::default())?.into_iter().map(|found| found.rate).collect())
}

/// Returns how the memory is used, as shares, while requests wait and arrive at `rate` per second. The three Orcas come
/// first, in the order of figure 2, then Quire with blocks of each of [`SIZES`].
///
/// # Errors
/// If a request does not fit the memory.
pub fn memory_shares(served: &ServedWorkload, rate: f64, lab: &Lab<'_>) -> Result<Vec<MemoryUse>> {
    let orcas = SYSTEMS.into_iter().filter(|system| matches!(system, System::Orca(_)));
    let orcas = orcas.map(|system| curve(served, system, BLOCK_SIZE, lab));
    let curves: Vec<_> = orcas.chain(SIZES.map(|size| curve(served, System::Quire, size, lab))).collect();
    let cost = served.deployment.cost()?;
    let name = |curve: &Curve| format!("{}: {}", served.name, curve.system.name());
    let outcomes = jobs::all(&curves, lab.progress, name, |curve| {
        curve.run(lab, &curve.system.cost(&cost), &BeamRecord::default(), rate, |_| {})
    })?;
    Ok(outcomes.into_iter().map(|outcome| outcome.memory.shares()).collect())
}

/// Draws the figure.
///
/// # Errors
/// If a request does not fit the memory.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let headings = ["workload", "Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "Quire, 8", "16", "32", "64"];
    let mut memory = FigureTable::new("Memory that holds tokens while requests wait, in per cent", &headings);
    let headings = ["workload", "holds tokens", "taken, not filled yet", "free"];
    let mut rest = FigureTable::new("Use of the memory with blocks of 16, in per cent", &headings);
    let headings = ["workload", "blocks of 8", "16", "32", "64", "best / 16"];
    let mut sustained = FigureTable::new(
        "Highest rate at a normalized latency of at most 1 s/token, in requests per second",
        &headings,
    );
    let mut lines = Vec::new();
    for workload in served()? {
        let rates = rates(&workload, lab)?;
        let (usual, best) = (rates[1], rates.iter().copied().fold(0.0, f64::max));
        let shares = memory_shares(&workload, OVERLOAD * usual, lab)?;
        let name = format!("{}, {}", workload.name, workload.deployment.model);
        let gain = format!("{:.2}x", best / usual);
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        let states = |at: usize| if at == 0 { name.clone() } else { percent(shares[at - 1].tokens) };
        memory.row(std::array::from_fn::<_, 8, _>(states));
        let of_16 = shares[4];
        rest.row([name.clone(), percent(of_16.tokens), percent(of_16.internal), percent(of_16.external)]);
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| format!("{:.2}", rates[at]));
        sustained.row([name, a, b, c, d, gain]);
        let points = SIZES.iter().zip(&shares[3..]).map(|(size, share)| (*size as f64, 100.0 * share.tokens)).collect();
        lines.push((workload.name.to_owned(), points));
    }
    let chart = Chart { top: Some(100.0), ..Chart::lines("Memory that holds tokens", "block size", "%", lines) };
    Ok(Figure {
        number: "workloads",
        title: "other workloads and their block sizes",
        origin: FigureOrigin::Simulated,
        paper: "The paper only has figures for ShareGPT and Alpaca, both with 16 tokens per block.".into(),
        notes: vec![format!(
            "Memory is observed while requests arrive at {OVERLOAD} times the rate that Quire sustains with blocks of 16. \
             Quire is this engine as it is today."
        )],
        tables: vec![memory, rest, sustained],
        charts: vec![chart],
    })
}
