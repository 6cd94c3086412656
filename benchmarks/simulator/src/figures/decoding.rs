//! Figure 14: parallel sampling and beam search.

use anyhow::Result;

use super::rates::{self, Panel};
use super::searches;
use crate::admission::Reservation;
use crate::deployment::OPT_13B;
use crate::efficiency::PAPER_HOST;
use crate::figure::{Figure, FigureOrigin};
use crate::lab::{Curve, Lab};
use crate::lineage::Lineages;
use crate::request::Method;
use crate::sustained::Sustained;
use crate::system::System;
use crate::traces::ALPACA_LIKE;

/// Outputs or beams of the panels.
pub const WIDTHS: [usize; 3] = [2, 4, 6];

/// The curves of a panel, where the GPU waits so many seconds of each step for the host.
pub fn curves(panel: usize, method: Method, host: f64, lab: &Lab<'_>) -> Vec<Curve> {
    let orca = [Reservation::Oracle, Reservation::Pow2, Reservation::Max].map(System::Orca);
    let systems = [System::Paged].into_iter().chain(orca).chain([System::Quire]);
    let guess = 40.0 / method.width() as f64;
    let curve = |system| Curve { method, host, ..Curve::new(panel, system, OPT_13B, ALPACA_LIKE, guess, lab) };
    systems.map(curve).collect()
}

/// Draws it.
///
/// # Errors
/// If the bundled model cannot be run, or a request does not fit.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let mut panels = Vec::new();
    let (mut curves_of, mut found): (Vec<Curve>, Vec<Sustained>) = Default::default();
    let usual = [Method::Samples as fn(usize) -> Method, Method::Beams]
        .into_iter()
        .flat_map(|method| WIDTHS.map(|width| (method(width), 0.0)));
    let slow = [Method::Samples(6), Method::Beams(2), Method::Beams(6)].map(|method| (method, PAPER_HOST));
    for (method, host) in usual.chain(slow) {
        let (outputs, lineages, paper) = match method {
            Method::Beams(6) => ("6 beams".into(), searches::record(6, lab)?, "2.3x Oracle (1.3x for one output)"),
            Method::Beams(width) => (format!("{width} beams"), searches::record(width, lab)?, ""),
            Method::Samples(6) => ("6 samples".into(), Lineages::default(), "less than with beams"),
            other => (format!("{} samples", other.width()), Lineages::default(), ""),
        };
        let own = curves(panels.len(), method, host, lab);
        found.extend(lab.sustained(&own, &lineages)?);
        curves_of.extend(own);
        let slow = if host > 0.0 { ", slow host" } else { "" };
        panels.push(Panel { title: format!("OPT-13B, Alpaca, {outputs}{slow}"), paper: paper.into() });
    }
    let (table, charts) = rates::draw(&panels, &curves_of, &found);
    Ok(Figure {
        number: "14",
        title: "parallel sampling and beam search",
        origin: FigureOrigin::Simulated,
        paper: "The more outputs and the more sharing, the greater the gain: over Orca (Oracle) 1.3 times the rate for one output \
                and 2.3 times for beams of width 6."
            .into(),
        notes: vec![format!(
            "Which beams survive is replayed from searches of the bundled model. In contiguous memory each output has its own \
             copy of the prompt, and a beam with several children is copied for each but the first, as far as it was \
             generated. FasterTransformer is not in the paper's figure. Up to 256 sequences run at a time, vLLM's limit then. In \
             the last panels the GPU waits {:.0} ms of each step for the host, as figure 13 has it.",
            1e3 * PAPER_HOST
        )],
        tables: vec![table],
        charts,
    })
}
