//! Figure 18: block sizes. Part (a), the time of kernels, needs a GPU. The book has the kernels' counts from the
//! emulator.

use anyhow::Result;

use crate::chart::Chart;
use crate::figure::{Figure, FigureOrigin, FigureTable};
use crate::jobs;
use crate::laboratory::{Curve, Lab};
use simulator::beam_record::BeamRecord;
use simulator::deployment::OPT_13B;
use simulator::sustained::BOUND;
use simulator::system::System;
use simulator::traces::{ALPACA_LIKE, SHAREGPT_LIKE};

/// Block sizes that figures 18 and 19 compare.
pub const SIZES: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Rate at which the sizes are compared, as a share of the rate that is sustained with blocks of 16.
const LOAD: f64 = 0.9;
/// Most seconds of these traces.
const SECONDS: f64 = 900.0;

/// Draws the figure.
///
/// # Errors
/// If a request does not fit the memory.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let cost = System::Paged.cost(&OPT_13B.cost()?);
    let headings =
        ["trace", "req/s", "block size", "s/token", "relative to 16", "token states while requests wait", "preempted"];
    let mut table = FigureTable::new("Normalized latency by block size", &headings);
    let mut lines = Vec::new();
    let mut rates = Vec::new();
    for (trace, workload, guess) in [("ShareGPT", SHAREGPT_LIKE, 4.0), ("Alpaca", ALPACA_LIKE, 80.0)] {
        let new = Curve::new(0, System::Paged, OPT_13B, workload, guess, lab);
        let curve = Curve { seconds: lab.seconds.min(SECONDS), ..new };
        let rate = LOAD * curve.sustained(lab, &OPT_13B.cost()?, &BeamRecord::default())?.rate;
        let name = |size: &usize| format!("{trace}, blocks of {size}");
        let outcomes = jobs::all(&SIZES, lab.progress, name, |&size| {
            curve.run(lab, &cost, &BeamRecord::default(), rate, |server| {
                server.block_size = size;
                server.limit = 20.0 * BOUND;
            })
        })?;
        let latencies: Vec<Option<f64>> = outcomes.iter().map(|outcome| outcome.normalized_latency()).collect();
        let usual = SIZES.iter().position(|size| *size == 16).and_then(|at| latencies[at]);
        for ((size, outcome), latency) in SIZES.iter().zip(&outcomes).zip(&latencies) {
            let shown =
                |value: Option<f64>, unit: &str| value.map_or("overloaded".into(), |value| format!("{value:.3}{unit}"));
            table.row([
                trace.into(),
                format!("{rate:.2}"),
                size.to_string(),
                shown(*latency, ""),
                shown(latency.zip(usual).map(|(latency, usual)| latency / usual), "x"),
                match outcome.memory.shares().tokens {
                    0.0 => "no request waits".into(),
                    tokens => format!("{:.1} %", 100.0 * tokens),
                },
                outcome.preempted.to_string(),
            ]);
        }
        // Sizes are powers of two, so their indices are equally spaced.
        let points = latencies.iter().enumerate().filter_map(|(at, latency)| Some((at as f64, (*latency)?)));
        lines.push((format!("{trace} at {rate:.1} req/s"), points.collect()));
        rates.push(rate);
    }
    let chart =
        Chart { top: Some(BOUND), ..Chart::lines("OPT-13B", "block size, as a power of two", "s/token", lines) };
    Ok(Figure {
        number: "18",
        title: "block sizes, end to end (part b)",
        origin: FigureOrigin::Simulated,
        paper: "On ShareGPT blocks of 16 to 128 tokens are best. On Alpaca 16 and 32 are good, and larger ones much worse, since \
                requests are shorter than the blocks."
            .into(),
        notes: vec![
            "The cost of small blocks in a kernel is not modelled. Attention takes the same time at all sizes, so sizes \
             below 8 look better than they are. This engine's GPU kernels support 8, 16 and 32. Part (a) of the figure, \
             the time of attention over blocks compared with a contiguous kernel, was not measured. The paper's 20 to \
             26 % are assumed for paged attention everywhere here. In the emulator a block table costs the plainest loop 13 % more instructions \
             (`cargo run -p examples --example attention`)."
                .into(),
        ],
        tables: vec![table],
        charts: vec![chart],
    })
}
