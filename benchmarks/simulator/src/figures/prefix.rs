//! Figure 16: translation behind a prefix that all requests have in common.

use anyhow::Result;

use super::rates::{self, Panel};
use crate::admission::Reservation;
use crate::deployment::LLAMA_13B;
use crate::figure::{Figure, FigureOrigin};
use crate::lab::{Curve, Lab};
use crate::lineage::Lineages;
use crate::system::System;
use crate::traces::TraceWorkload;

/// The prefix of each panel in tokens, what it is, and the paper's factor.
const CASES: [(usize, &str, &str); 2] =
    [(80, "one-shot prefix, 80 tokens", "1.67x Oracle"), (341, "five-shot prefix, 341 tokens", "3.58x Oracle")];

/// The curves of both panels.
pub fn curves(lab: &Lab<'_>) -> Vec<Curve> {
    let systems = [System::Paged, System::Orca(Reservation::Oracle), System::Quire];
    let of = |(panel, (tokens, _, _)): (usize, &(usize, &str, &str))| {
        let workload = TraceWorkload::Translation(*tokens);
        systems.map(|system| Curve {
            keeps_prefix: !matches!(system, System::Orca(_)),
            ..Curve::new(panel, system, LLAMA_13B, workload.clone(), 30.0, lab)
        })
    };
    CASES.iter().enumerate().flat_map(of).collect()
}

/// Draws it.
///
/// # Errors
/// If a request does not fit.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let curves = curves(lab);
    let found = lab.sustained(&curves, &Lineages::default())?;
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
            "The paper does not give the lengths of its sentences, which decide how much of a request the prefix is: 33 tokens \
             on average are assumed for WMT16's English to German, and as many for the translation. The prefix is computed \
             once, before the trace."
                .into(),
        ],
        tables: vec![table],
        charts,
    })
}
