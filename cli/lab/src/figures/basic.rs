//! Figure 12: one output per request, three models, two traces.

use anyhow::Result;

use super::rates::{self, Panel};
use crate::figure::{Figure, FigureOrigin};
use crate::laboratory::{Curve, Lab};
use simulator::beam_record::BeamRecord;
use simulator::deployment::{Deployment, OPT_13B, OPT_66B, OPT_175B};
use simulator::system::{PAPER, System};
use simulator::traces::{ALPACA_LIKE, SHAREGPT_LIKE, TraceWorkload};

/// Deployment, workload, name of the trace, a rate to start the search at, and the paper's factors.
type Case = (Deployment, TraceWorkload, &'static str, f64, &'static str);

const SHAREGPT_FACTORS: &str = "1.7-2.7x Oracle, 2.7-8x Max, up to 22x FasterTransformer";
const ALPACA_FACTORS: &str = "similar";

const CASES: [Case; 6] = [
    (OPT_13B, SHAREGPT_LIKE, "ShareGPT", 2.0, SHAREGPT_FACTORS),
    (OPT_66B, SHAREGPT_LIKE, "ShareGPT", 1.0, SHAREGPT_FACTORS),
    (OPT_175B, SHAREGPT_LIKE, "ShareGPT", 2.0, SHAREGPT_FACTORS),
    (OPT_13B, ALPACA_LIKE, "Alpaca", 30.0, ALPACA_FACTORS),
    (OPT_66B, ALPACA_LIKE, "Alpaca", 20.0, ALPACA_FACTORS),
    (OPT_175B, ALPACA_LIKE, "Alpaca", 20.0, "the gap shrinks: bound by compute"),
];

/// Returns the curves of all panels, for the paper's systems and for this engine as it steps today.
pub fn curves(lab: &Lab<'_>) -> Vec<Curve> {
    let systems = || PAPER.into_iter().chain([System::Quire]);
    let panel_curves = |(panel, case): (usize, &Case)| {
        let (deployment, workload, _, guess, _) = case.clone();
        systems()
            .map(move |system| Curve::new(panel, system, deployment, workload.clone(), guess, lab))
            .collect::<Vec<_>>()
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
    let panels = CASES.map(|(deployment, _, trace, _, paper)| Panel {
        title: format!("{}, {trace}", deployment.title()),
        paper: paper.into(),
    });
    let (table, charts) = rates::draw(&panels, &curves, &found);
    Ok(Figure {
        number: "12",
        title: "normalized latency against request rate, one output per request",
        origin: FigureOrigin::Simulated,
        paper: "On ShareGPT vLLM sustains 1.7 to 2.7 times the rate of Orca (Oracle), 2.7 to 8 times that of Orca (Max), and \
                up to 22 times that of FasterTransformer, at similar latencies. With OPT-175B on Alpaca memory is ample, and \
                the systems are bound by compute."
            .into(),
        notes: vec![
            "\"Quire\" is this engine as it steps today: decodes and chunks of prompts in one step, and attention as fast \
             over blocks as over contiguous memory."
                .into(),
        ],
        tables: vec![table],
        charts,
    })
}
