//! Figure 14: parallel sampling and beam search.

use anyhow::Result;

use super::rates::{self, Panel};
use super::searches;
use crate::figure::{Figure, FigureOrigin};
use crate::laboratory::{Curve, Lab};
use simulator::admission::Reservation;
use simulator::beam_record::BeamRecord;
use simulator::deployment::OPT_13B;
use simulator::efficiency::PAPER_HOST;
use simulator::request::Method;
use simulator::server::MAX_NUM_SEQS;
use simulator::sustained::Sustained;
use simulator::system::System;
use simulator::traces::ALPACA_LIKE;

/// The settings of a panel: how tokens are chosen, seconds per step that the GPU waits for the host, and the
/// maximum number of running sequences.
type Case = (Method, f64, usize);

/// Maximum number of running sequences in the last panels. It is more than fit the memory.
const MANY: usize = 1024;
const CASES: [Case; 10] = [
    (Method::Samples(2), 0.0, MAX_NUM_SEQS),
    (Method::Samples(4), 0.0, MAX_NUM_SEQS),
    (Method::Samples(6), 0.0, MAX_NUM_SEQS),
    (Method::Beams(2), 0.0, MAX_NUM_SEQS),
    (Method::Beams(4), 0.0, MAX_NUM_SEQS),
    (Method::Beams(6), 0.0, MAX_NUM_SEQS),
    (Method::Beams(6), PAPER_HOST, MAX_NUM_SEQS),
    (Method::Beams(2), PAPER_HOST, MANY),
    (Method::Samples(6), PAPER_HOST, MANY),
    (Method::Beams(6), PAPER_HOST, MANY),
];

/// Returns the curves of a panel.
fn curves(panel: usize, (method, host, max_num_seqs): Case, lab: &Lab<'_>) -> Vec<Curve> {
    let orca = [Reservation::Oracle, Reservation::Pow2, Reservation::Max].map(System::Orca);
    let systems = [System::Paged].into_iter().chain(orca).chain([System::Quire]);
    let guess = 40.0 / method.width() as f64;
    let curve =
        |system| Curve { method, host, max_num_seqs, ..Curve::new(panel, system, OPT_13B, ALPACA_LIKE, guess, lab) };
    systems.map(curve).collect()
}

/// Draws the figure.
///
/// # Errors
/// If the bundled model cannot be run, or a request does not fit the memory.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let mut panels = Vec::new();
    let (mut curves_of, mut found): (Vec<Curve>, Vec<Sustained>) = Default::default();
    for case in CASES {
        let (method, host, max_num_seqs) = case;
        let (outputs, beam_record, paper) = match method {
            Method::Beams(6) => ("6 beams".into(), searches::record(6, lab)?, "2.3x Oracle (1.3x for one output)"),
            Method::Beams(width) => (format!("{width} beams"), searches::record(width, lab)?, ""),
            Method::Samples(6) => ("6 samples".into(), BeamRecord::default(), "less than with beams"),
            other => (format!("{} samples", other.width()), BeamRecord::default(), ""),
        };
        let own = curves(panels.len(), case, lab);
        found.extend(lab.sustained(&own, &beam_record)?);
        curves_of.extend(own);
        let slow = if host > 0.0 { ", slow host" } else { "" };
        let many = if max_num_seqs > MAX_NUM_SEQS { format!(", up to {MANY} sequences") } else { String::new() };
        panels.push(Panel { title: format!("OPT-13B, Alpaca, {outputs}{slow}{many}"), paper: paper.into() });
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
            "The surviving beams are replayed from searches of the bundled model. In contiguous memory each output has its \
             own copy of the prompt, and the generated tokens of a beam are copied for each child after its first. \
             FasterTransformer is not in the paper's figure. Up to 256 sequences run at a time, vLLM's limit at the \
             time, unless a panel says otherwise. The slow host is figure 13's: the GPU waits {:.0} ms per step.",
            1e3 * PAPER_HOST
        )],
        tables: vec![table],
        charts,
    })
}
