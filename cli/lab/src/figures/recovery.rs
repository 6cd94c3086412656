//! Figure 19: swapping compared with recomputation.

use anyhow::Result;
use engine::Preemption;

use super::block_size::SIZES;
use crate::chart::Chart;
use crate::figure::{Figure, FigureOrigin, FigureTable};
use crate::jobs;
use crate::laboratory::{Curve, Lab};
use simulator::beam_record::BeamRecord;
use simulator::cost::{CostModel, StepCost, StepLoad};
use simulator::deployment::OPT_13B;
use simulator::price;
use simulator::server::{SimulatedServer, Swapping};
use simulator::sustained::BOUND;
use simulator::system::System;
use simulator::traces::SHAREGPT_LIKE;

/// Tokens of the microbenchmark's request. The paper does not give them, so this is ShareGPT's mean prompt plus mean
/// output.
const TOKENS: usize = 499;
/// Rate of the end-to-end comparison, as a share of the sustained rate. At this rate requests are preempted, but
/// latencies are still bounded.
const LOAD: f64 = 0.97;
/// Most seconds of these traces.
const SECONDS: f64 = 900.0;

/// The ways to recover: a name, the handling of a preempted request, and how blocks are moved.
const WAYS: [(&str, Preemption, Swapping); 3] = [
    ("recompute", Preemption::Recompute, Swapping::PerBlock),
    ("swap, one copy per block", Preemption::Swap, Swapping::PerBlock),
    ("swap, gathered", Preemption::Swap, Swapping::Gathered),
];

/// Computes the times of one request that leaves the memory and comes back.
fn micro(cost: &CostModel) -> (FigureTable, Chart) {
    let mut micro = FigureTable::new(
        format!("A request of {TOKENS} tokens, milliseconds (computed)"),
        &[
            "block size",
            "recompute",
            "swap in or out, one copy per block",
            "out and in",
            "out and in, gathered",
            "recompute / swap out and in",
        ],
    );
    let recompute = cost.seconds(&StepLoad { prompts: vec![(TOKENS, TOKENS)], logits: 1, ..StepLoad::default() });
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = WAYS.iter().map(|way| (way.0.to_owned(), Vec::new())).collect();
    for (at, size) in SIZES.into_iter().enumerate() {
        let once = |swapping| {
            let server =
                SimulatedServer { block_size: size, swapping, ..SimulatedServer::as_in_the_paper(cost, OPT_13B.slots) };
            price::swap_seconds(&server, TOKENS.div_ceil(size))
        };
        let (single, gathered) = (once(Swapping::PerBlock), once(Swapping::Gathered));
        let ms = |seconds: f64| format!("{:.1}", 1e3 * seconds);
        let ratio = format!("{:.2}x", recompute / (2.0 * single));
        micro.row([size.to_string(), ms(recompute), ms(single), ms(2.0 * single), ms(2.0 * gathered), ratio]);
        for ((_, line), seconds) in lines.iter_mut().zip([recompute, 2.0 * single, 2.0 * gathered]) {
            line.push((at as f64, 1e3 * seconds));
        }
    }
    (micro, Chart::lines("A request out and in again", "block size, as a power of two", "ms", lines))
}

/// Draws the figure.
///
/// # Errors
/// If a request does not fit the memory.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let cost = System::Paged.cost(&OPT_13B.cost()?);
    let (micro, micro_chart) = micro(&cost);
    let new = Curve::new(0, System::Paged, OPT_13B, SHAREGPT_LIKE, 4.0, lab);
    let curve = Curve { seconds: lab.seconds.min(SECONDS), ..new };
    let rate = LOAD * curve.sustained(lab, &OPT_13B.cost()?, &BeamRecord::default())?.rate;
    let cases: Vec<(usize, usize)> =
        (0..WAYS.len()).flat_map(|way| (0..SIZES.len()).map(move |at| (way, at))).collect();
    let name = |&(way, at): &(usize, usize)| format!("{}, blocks of {}", WAYS[way].0, SIZES[at]);
    let outcomes = jobs::all(&cases, lab.progress, name, |&(way, at)| {
        curve.run(lab, &cost, &BeamRecord::default(), rate, |server| {
            (server.preemption, server.swapping) = (WAYS[way].1, WAYS[way].2);
            server.block_size = SIZES[at];
            server.limit = 20.0 * BOUND;
        })
    })?;
    let mut whole = FigureTable::new(
        format!("Normalized latency at {rate:.2} requests per second of ShareGPT-like lengths, s/token (simulated)"),
        &["way", "block size", "s/token", "preempted"],
    );
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = WAYS.iter().map(|way| (way.0.to_owned(), Vec::new())).collect();
    for (&(way, at), outcome) in cases.iter().zip(&outcomes) {
        let latency = outcome.normalized_latency();
        let shown = latency.map_or("overloaded".into(), |latency| format!("{latency:.3}"));
        whole.row([WAYS[way].0.into(), SIZES[at].to_string(), shown, outcome.preempted.to_string()]);
        lines[way].1.extend(latency.map(|latency| (at as f64, latency)));
    }
    let whole_chart = Chart::lines("End to end", "block size, as a power of two", "s/token", lines);
    Ok(Figure {
        number: "19",
        title: "recomputation against swapping",
        origin: FigureOrigin::Simulated,
        paper: "Swapping is slow with small blocks, which make many small copies. The overhead of recomputation does not depend \
                on the block size, and is never more than 20 % above that of swapping. From 16 to 64 the two are \
                similar end to end."
            .into(),
        notes: vec![
            "The paper's swapping copies each block separately, keys and values, layer by layer. This engine gathers a \
             request's blocks and moves them in one copy, so the block size does not matter. The paper's claim is compared \
             with the first way."
                .into(),
        ],
        tables: vec![micro, whole],
        charts: vec![micro_chart, whole_chart],
    })
}
