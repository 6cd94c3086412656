//! The systems of figure 12 with a small model on this machine, measured and compared with the simulator.

use anyhow::{Context, Result};
use engine::ModelFiles;
use engine::{Device, Llm, Options};

use crate::chart::Chart;
use crate::figure::{Figure, FigureOrigin, FigureTable};
use crate::fitted::FittedCost;
use crate::jobs::Progress;
use crate::laboratory::Lab;
use crate::real_engine::{self, Gate};
use simulator::admission::{Contiguous, Reservation};
use simulator::beam_record::BeamRecord;
use simulator::deployment::Deployment;
use simulator::request::Method;
use simulator::server::{OURS, SimulatedServer};
use simulator::sustained;
use simulator::system::System;
use simulator::traces::{Trace, TraceWorkload};

/// The bundled model has a quarter of OPT's positions. The memory is scaled to them as in table 1, and lengths have the
/// shape of ShareGPT's and are a quarter as long.
const MAX_LEN: usize = 512;
const SLOTS: usize = 15_700 / 4;
const QUARTER: TraceWorkload = TraceWorkload::LogNormal([(29.3, 0.8), (61.4, 0.8)]);
/// Seconds of a trace.
const SECONDS: f64 = 10.0;
/// Rates to run at, as shares of the rate that the simulator predicts Quire to sustain.
const PARTS: [f64; 4] = [0.3, 0.5, 0.7, 0.9];
/// Highest normalized latency of a sustained rate, as a multiple of the latency of a single request. The
/// paper's bound does not apply, since this model is a thousand times smaller.
const BOUND: f64 = 10.0;

const SYSTEMS: [System; 5] = [
    System::Quire,
    System::Orca(Reservation::Oracle),
    System::Orca(Reservation::Pow2),
    System::Orca(Reservation::Max),
    System::FasterTransformer,
];

fn load(slots: usize, token_bytes: usize) -> Result<Llm> {
    // With one thread, processor time equals elapsed time.
    let (kv_memory, threads) = (Some(slots * token_bytes), Some(1));
    let mut options = Options { device: Device::Cpu, kv_memory, threads, ..Options::default() };
    options.scheduler.prefix_caching = false;
    options.scheduler.max_request_share = 1.0;
    Ok(Llm::load(&ModelFiles::bundled(), &options)?)
}

fn gate(system: System) -> Gate {
    match system {
        System::Paged | System::Quire => Gate::Open,
        System::Orca(reservation) => Gate::AdmissionPolicy(Box::new(Contiguous::new(reservation, SLOTS, MAX_LEN))),
        System::FasterTransformer => Gate::Batches(SLOTS / MAX_LEN),
    }
}

/// Predicts the normalized latency with the measured step times.
fn predict(system: System, cost: &FittedCost, trace: &Trace, rate: f64, limit: f64) -> Result<Option<f64>> {
    let deployment = Deployment { model: "", gpu: "", gpus: 1, slots: SLOTS, max_len: MAX_LEN };
    let change = |server: &mut SimulatedServer<'_>| (server.stepping, server.limit) = (OURS, limit);
    let outcome = system.run(&deployment, cost, &BeamRecord::default(), &trace.requests(rate), change)?;
    Ok(outcome.normalized_latency())
}

/// Returns the entries of a row. `predicted` are the latency and its error.
fn entries(system: System, rate: f64, measured: f64, predicted: Option<(f64, f64)>) -> [String; 5] {
    let (ms, error) = match predicted {
        Some((ms, error)) => (format!("{ms:.2}"), format!("{:+.0} %", 100.0 * error)),
        None => ("-".into(), "-".into()),
    };
    [system.name().into(), format!("{rate:.1}"), format!("{measured:.2}"), ms, error]
}

/// Draws the figure.
///
/// # Errors
/// If the bundled model cannot be run.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let config = ModelFiles::bundled().config()?;
    let token_bytes = 2 * 4 * config.layers * config.kv_heads * config.head_dim;
    let cost = FittedCost::measure(&mut load(4 * SLOTS, token_bytes)?)?;
    let measurements = SYSTEMS.len() * PARTS.len();
    let report = |name: &str, done| (lab.progress)(Progress { name, done, of: measurements, unit: "measurements" });
    report("single steps", 0);
    let seconds = SECONDS.min(lab.seconds);
    let trace = Trace { workload: QUARTER, method: Method::Single, seconds, max_len: MAX_LEN, seed: lab.seed };
    let alone = predict(System::Quire, &cost, &trace, 0.2, f64::INFINITY)?.context("no request was simulated")?;
    let found = sustained::search(BOUND * alone, 20.0, |rate| {
        predict(System::Quire, &cost, &trace, rate, 2.0 * BOUND * alone)
    })?;
    let headings = ["system", "requests/s", "measured, ms/token", "predicted, ms/token", "error"];
    let mut table = FigureTable::new("Normalized latency on this machine", &headings);
    let (mut lines, mut errors) = (Vec::new(), Vec::new());
    for system in SYSTEMS {
        let mut points = Vec::new();
        for part in PARTS {
            let rate = part * found.rate;
            let slots = if system == System::Quire { SLOTS } else { 2 * SLOTS };
            let outcome =
                real_engine::run(&mut load(slots, token_bytes)?, &mut gate(system), &trace.requests(rate), lab.seed)?;
            let measured = 1e3 * outcome.normalized_latency().context("no request was answered")?;
            // The simulated FasterTransformer pads requests to the longest of the batch. This engine does not.
            let predicted = match system {
                System::FasterTransformer => None,
                _ => predict(system, &cost, &trace, rate, f64::INFINITY)?.map(|seconds| 1e3 * seconds),
            };
            let error = predicted.map(|predicted| predicted / measured - 1.0);
            errors.extend(error.map(f64::abs));
            table.row(entries(system, rate, measured, predicted.zip(error)));
            points.push((rate, measured));
            let done = lines.len() * PARTS.len() + points.len();
            report(&format!("{} at {rate:.1} req/s", system.name()), done);
        }
        lines.push((system.name().to_owned(), points));
    }
    let mean_error = 100.0 * errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    Ok(Figure {
        number: "measured",
        title: "the same policies on this machine's CPU",
        origin: FigureOrigin::Measured,
        paper:
            "The paper has no such figure. This one repeats figure 12's comparison with a model that this machine can run, \
                and compares the simulator with the measurements."
                .into(),
        notes: vec![
            format!(
                "The bundled model on the CPU with {SLOTS} slots. Lengths have ShareGPT's shape and are a quarter as long, since \
                 the model has a quarter of the positions. Requests arrive for {} seconds, by a clock that counts \
                 the processor time of one thread, so other programs on the machine do not matter. Storage stays paged for \
                 all systems, and reservations are imposed by admission alone. Contiguous memory would require copies that \
                 are not made, and FasterTransformer's padding is not imposed.",
                seconds
            ),
            format!(
                "The simulator's steps take the time of a linear function fitted to single steps. The function is {:.0} % off \
                 on average over these steps. The simulated normalized latencies are {mean_error:.0} % off on average.",
                100.0 * cost.error
            ),
        ],
        tables: vec![table],
        charts: vec![Chart::lines("Bundled model, CPU", "requests/s", "ms/token", lines)],
    })
}
