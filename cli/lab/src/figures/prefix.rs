//! Figure 16: translation with a prefix that all requests share.

use anyhow::Result;

use super::rates::{self, Panel};
use crate::figure::{Figure, FigureOrigin};
use crate::laboratory::{Curve, Lab};
use simulator::admission::Reservation;
use simulator::beam_record::BeamRecord;
use simulator::deployment::LLAMA_13B;
use simulator::system::System;
use simulator::traces::TraceWorkload;

/// The prefix of each panel in tokens, its title, and the paper's factor.
const CASES: [(usize, &str, &str); 2] =
    [(80, "one-shot prefix, 80 tokens", "1.67x Oracle"), (341, "five-shot prefix, 341 tokens", "3.58x Oracle")];

/// Returns the curves of both panels.
pub fn curves(lab: &Lab<'_>) -> Vec<Curve> {
    let systems = [System::Paged, System::Orca(Reservation::Oracle), System::Quire];
    let panel_curves = |(panel, (tokens, _, _)): (usize, &(usize, &str, &str))| {
        let workload = TraceWorkload::Translation(*tokens);
        systems.map(|system| Curve {
            keeps_prefix: !matches!(system, System::Orca(_)),
            ..Curve::new(panel, system, LLAMA_13B, workload.clone(), 30.0, lab)
        })
    };
    CASES.iter().enumerate().flat_map(panel_curves).collect()
}

/// Draws the figure.
///
/// # Errors
/// If a request does not fit the memory.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let curves = curves(lab);
    let found = lab.sustained(&curves, &BeamRecord::default())?;
    let panels = CASES.map(|(_, title, paper)| Panel { title: format!("LLaMA-13B, {title}"), paper: paper.into() });
    let (table, charts) = rates::draw(&panels, &curves, &found);
    Ok(Figure {
        number: "16",
        title: "translation with a common prefix",
        origin: FigureOrigin::Simulated,
        paper: "With the prefix of one example vLLM has 1.67 times the throughput of Orca (Oracle), with five examples 3.58 \
                times."
            .into(),
        notes: vec![
            "The paper does not give the lengths of its sentences, which determine the prefix's share of a request. We \
             assume 33 tokens on average for WMT16's English to German, and as many for the translation. The prefix is computed \
             once, before the trace."
                .into(),
        ],
        tables: vec![table],
        charts,
    })
}
