//! Figure 13: the number of requests in a batch.

use anyhow::Result;

use crate::chart::{Chart, ChartData};
use crate::figure::{Figure, FigureOrigin, FigureTable};
use crate::jobs;
use crate::laboratory::{Curve, Lab};
use simulator::admission::Reservation;
use simulator::beam_record::BeamRecord;
use simulator::deployment::{Deployment, OPT_13B};
use simulator::efficiency::PAPER_HOST;
use simulator::outcome::Outcome;
use simulator::system::System;
use simulator::traces::{ALPACA_LIKE, SHAREGPT_LIKE, TraceWorkload};

/// The systems of figures 2 and 13.
pub const SYSTEMS: [System; 4] =
    [System::Orca(Reservation::Max), System::Orca(Reservation::Pow2), System::Orca(Reservation::Oracle), System::Paged];

/// Requests per second. This is more than any of the systems can serve.
pub const SATURATED_SHAREGPT: f64 = 6.0;
const SATURATED_ALPACA: f64 = 120.0;
/// Most seconds of these traces. Their queues only grow.
const SECONDS: f64 = 600.0;

/// Runs each of [`SYSTEMS`] on a trace to its end. Requests arrive at `rate` per second, and in each step the GPU waits
/// `host` seconds for the host.
///
/// # Errors
/// If a request does not fit the memory.
pub fn at_rate(
    lab: &Lab<'_>,
    deployment: Deployment,
    workload: &TraceWorkload,
    rate: f64,
    host: f64,
) -> Result<Vec<Outcome>> {
    let cost = deployment.cost()?.with_host(host);
    let name = |system: &System| format!("{} at {rate} req/s", system.name());
    jobs::all(&SYSTEMS, lab.progress, name, |&system| {
        let curve = Curve {
            seconds: lab.seconds.min(SECONDS),
            ..Curve::new(0, system, deployment, workload.clone(), rate, lab)
        };
        curve.run(lab, &system.cost(&cost), &BeamRecord::default(), rate, |_| {})
    })
}

/// Draws the figure.
///
/// # Errors
/// If a request does not fit the memory.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let cases = [
        ("ShareGPT", SHAREGPT_LIKE, 2.0, SATURATED_SHAREGPT, [7.00, 9.81, 13.62, 30.42]),
        ("Alpaca", ALPACA_LIKE, 30.0, SATURATED_ALPACA, [7.00, 43.24, 72.75, 132.44]),
    ];
    let headings = [
        "trace",
        "system",
        "paper",
        "at the paper's rate",
        "with a slow host",
        "saturated",
        "Quire / this, paper",
        "with a slow host",
        "saturated",
    ];
    let mut table = FigureTable::new("Requests in a step, on average while requests arrive", &headings);
    let mut charts = Vec::new();
    for (trace, workload, rate, saturated, paper) in cases {
        let batches = |rate, host| -> Result<Vec<f64>> {
            Ok(at_rate(lab, OPT_13B, &workload, rate, host)?.iter().map(Outcome::mean_batch).collect())
        };
        let (same, slow, most) = (batches(rate, 0.0)?, batches(rate, PAPER_HOST)?, batches(saturated, 0.0)?);
        for (at, system) in SYSTEMS.iter().enumerate() {
            table.row([
                format!("{trace}, {rate} req/s"),
                system.name().into(),
                format!("{:.2}", paper[at]),
                format!("{:.2}", same[at]),
                format!("{:.2}", slow[at]),
                format!("{:.2}", most[at]),
                format!("{:.2}x", paper[3] / paper[at]),
                format!("{:.2}x", slow[3] / slow[at]),
                format!("{:.2}x", most[3] / most[at]),
            ]);
        }
        let names = SYSTEMS.iter().map(|system| system.name().replace("Quire, paper's steps", "Quire")).collect();
        let series = vec![
            ("paper".to_owned(), paper.to_vec()),
            ("at the same rate".to_owned(), same),
            ("with a slow host".to_owned(), slow),
            ("saturated".to_owned(), most),
        ];
        charts.push(Chart::new(format!("{trace}: requests in a step"), "", "", ChartData::Bars(names, series)));
    }
    Ok(Figure {
        number: "13",
        title: "batched requests, OPT-13B",
        origin: FigureOrigin::Simulated,
        paper: "At 2 ShareGPT requests per second, vLLM batches 2.2 times as many requests as Orca (Oracle) and 4.3 times as \
                many as Orca (Max)."
            .into(),
        notes: vec![format!(
            "The number of running requests depends on the speed of steps as well as on memory. Here steps take \
             the time of kernels close to the hardware's limits, without the time that the paper's host took. At the \
             paper's rate memory does not limit Quire, so fewer requests are in flight. At {SATURATED_SHAREGPT} and \
             {SATURATED_ALPACA} requests per second it limits all systems. With a slow host the GPU waits {:.0} ms \
             per step. This time is chosen to make Quire batch as many requests as vLLM did on Alpaca. No other \
             number here is fitted.",
            1e3 * PAPER_HOST
        )],
        tables: vec![table],
        charts,
    })
}
