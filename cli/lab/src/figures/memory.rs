//! Figure 2: how the memory for keys and values is used.

use anyhow::Result;

use super::batched::{SATURATED_SHAREGPT, SYSTEMS, at_rate};
use crate::chart::{Chart, ChartData};
use crate::figure::{Figure, FigureOrigin, FigureTable};
use crate::laboratory::Lab;
use simulator::deployment::OPT_13B;
use simulator::memory::MemoryUse;
use simulator::traces::SHAREGPT_LIKE;

/// The paper's numbers, in per cent: token states, reserved, internal fragmentation, and external fragmentation with
/// others.
const PAPER: [(&str, [&str; 4]); 4] = [
    ("Orca (Max)", ["20.4", "13.3", "57.3", "8.9"]),
    ("Orca (Pow2)", ["26.8", "17.9", "13.6", "41.6"]),
    ("Orca (Oracle)", ["38.2", "25.2", "-", "36.6"]),
    ("Quire, paper's steps", ["96.3", "-", "-", "-"]),
];

/// Draws the figure.
///
/// # Errors
/// If a request does not fit the memory.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let outcomes = at_rate(lab, OPT_13B, &SHAREGPT_LIKE, SATURATED_SHAREGPT, 0.0)?;
    let mut table = FigureTable::new(
        "Share of the memory for keys and values, in per cent: simulated / paper",
        &["system", "token states", "reserved", "internal fragmentation", "external fragmentation and others"],
    );
    let mut series: Vec<(String, Vec<f64>)> =
        MemoryUse::NAMES.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
    for (system, outcome) in SYSTEMS.iter().zip(&outcomes) {
        let shares = outcome.memory.shares().parts();
        let paper = PAPER.iter().find(|(name, _)| *name == system.name()).map_or(["-"; 4], |(_, paper)| *paper);
        let entry = |at: usize| format!("{:.1} / {}", 100.0 * shares[at], paper[at]);
        table.row([system.name().into(), entry(0), entry(1), entry(2), entry(3)]);
        series.iter_mut().zip(shares).for_each(|(series, share)| series.1.push(100.0 * share));
    }
    let names = SYSTEMS.iter().map(|system| system.name().replace("Quire, paper's steps", "Quire")).collect();
    let title = "Memory for keys and values while requests wait for it";
    let chart = Chart { top: Some(100.0), ..Chart::new(title, "", "%", ChartData::Stacked(names, series)) };
    Ok(Figure {
        number: "2",
        title: "use of the memory for keys and values",
        origin: FigureOrigin::Simulated,
        paper: "Existing systems use 20.4 to 38.2 % of the memory for the states of tokens, vLLM 96.3 %.".into(),
        notes: vec![format!(
            "{} and ShareGPT-like lengths at {SATURATED_SHAREGPT} requests per second, which is more than any of the \
             systems serves. Shares are averages over the time in which a request waits for memory. External \
             fragmentation counts slots lost to an allocator's rounding, and free slots that the next request cannot use.",
            OPT_13B.title()
        )],
        tables: vec![table],
        charts: vec![chart],
    })
}
