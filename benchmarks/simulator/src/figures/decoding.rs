//! Figure 14: parallel sampling and beam search.

use anyhow::Result;

use super::rates::{self, Panel};
use super::searches;
use crate::admission::Reservation;
use crate::deployment::OPT_13B;
use crate::figure::{Figure, FigureOrigin};
use crate::lab::{Curve, Lab};
use crate::lineage::Lineages;
use crate::request::Method;
use crate::sustained::Sustained;
use crate::system::System;
use crate::traces::ALPACA_LIKE;

/// Outputs or beams of the panels.
pub const WIDTHS: [usize; 3] = [2, 4, 6];

/// The curves of a panel.
pub fn curves(panel: usize, method: Method, lab: &Lab<'_>) -> Vec<Curve> {
    let orca = [Reservation::Oracle, Reservation::Pow2, Reservation::Max].map(System::Orca);
    let systems = [System::Paged].into_iter().chain(orca).chain([System::Quire]);
    let guess = 40.0 / method.width() as f64;
    systems.map(|system| Curve { method, ..Curve::new(panel, system, OPT_13B, ALPACA_LIKE, guess, lab) }).collect()
}

/// Draws it.
///
/// # Errors
/// If the bundled model cannot be run, or a request does not fit.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let mut panels = Vec::new();
    let (mut curves_of, mut found): (Vec<Curve>, Vec<Sustained>) = Default::default();
    for width in WIDTHS {
        let paper = if width == 6 { "less than with beams" } else { "" };
        let own = curves(panels.len(), Method::Samples(width), lab);
        found.extend(lab.sustained(&own, &Lineages::default())?);
        curves_of.extend(own);
        panels.push(Panel { title: format!("OPT-13B, Alpaca, {width} samples"), paper: paper.into() });
    }
    for width in WIDTHS {
        let paper = if width == 6 { "2.3x Oracle (1.3x for one output)" } else { "" };
        let lineages = searches::record(width, lab)?;
        let own = curves(panels.len(), Method::Beams(width), lab);
        found.extend(lab.sustained(&own, &lineages)?);
        curves_of.extend(own);
        panels.push(Panel { title: format!("OPT-13B, Alpaca, {width} beams"), paper: paper.into() });
    }
    let (table, charts) = rates::draw(&panels, &curves_of, &found);
    Ok(Figure {
        number: "14",
        title: "parallel sampling and beam search",
        origin: FigureOrigin::Simulated,
        paper: "The more outputs and the more sharing, the greater the gain: over Orca (Oracle) 1.3 times the rate for one output \
                and 2.3 times for beams of width 6."
            .into(),
        notes: vec![
            "Which beams survive is replayed from searches of the bundled model. In contiguous memory each output has its own \
             copy of the prompt, and a beam with several children is copied for each but the first, as far as it was \
             generated. FasterTransformer is not in the paper's figure."
                .into(),
        ],
        tables: vec![table],
        charts,
    })
}
