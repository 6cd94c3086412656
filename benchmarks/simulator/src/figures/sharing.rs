//! Figure 15: blocks that sharing saves.

use anyhow::Result;

use super::searches;
use crate::chart::{Chart, ChartData};
use crate::deployment::OPT_13B;
use crate::figure::{Figure, FigureOrigin, FigureTable};
use crate::jobs;
use crate::lab::{Curve, Lab};
use crate::lineage::Lineages;
use crate::request::Method;
use crate::system::System;
use crate::traces::{ALPACA_LIKE, SHAREGPT_LIKE};

/// Samples or beams of a request.
const WIDTHS: [usize; 3] = [2, 4, 6];

/// Seconds of these traces at most: what is shared does not change over time.
const SECONDS: f64 = 600.0;

/// Draws it.
///
/// # Errors
/// If the bundled model cannot be run, or a request does not fit.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let cost = System::Paged.cost(&OPT_13B.cost()?);
    let none = Lineages::default();
    let searches: Vec<Lineages> = WIDTHS.iter().map(|width| searches::record(*width, lab)).collect::<Result<_>>()?;
    let traces = [
        ("Alpaca", ALPACA_LIKE, 20.0, ["6.1 to 9.8 %", "37.6 to 55.2 %"]),
        ("ShareGPT", SHAREGPT_LIKE, 1.0, ["16.2 to 30.5 %", "44.3 to 66.3 %"]),
    ];
    let mut table =
        FigureTable::new("Blocks that sharing saves", &["trace", "method", "width", "saved", "paper, widths 2 to 6"]);
    let mut charts = Vec::new();
    for (trace, workload, rate, paper) in traces {
        let cases: Vec<(bool, usize)> =
            [false, true].into_iter().flat_map(|beams| (0..3).map(move |at| (beams, at))).collect();
        let name = |case: &(bool, usize)| format!("{trace}, width {}", WIDTHS[case.1]);
        let saved = jobs::all(&cases, lab.progress, name, |&(beams, at)| {
            let width = WIDTHS[at];
            let method = if beams { Method::Beams(width) } else { Method::Samples(width) };
            let new = Curve::new(0, System::Paged, OPT_13B, workload.clone(), rate, lab);
            let curve = Curve { method, seconds: lab.seconds.min(SECONDS), ..new };
            let lineages = if beams { &searches[at] } else { &none };
            let outcome = curve.run(lab, &cost, lineages, rate / width as f64, |_| {})?;
            Ok(100.0 * outcome.sharing_saved())
        })?;
        for ((beams, at), saved) in cases.iter().zip(&saved) {
            table.row([
                trace.into(),
                if *beams { "beam search" } else { "parallel sampling" }.into(),
                WIDTHS[*at].to_string(),
                format!("{saved:.1} %"),
                paper[usize::from(*beams)].into(),
            ]);
        }
        let widths = WIDTHS.iter().map(usize::to_string).collect();
        let series = vec![
            ("parallel sampling".to_owned(), saved[..3].to_vec()),
            ("beam search".to_owned(), saved[3..].to_vec()),
        ];
        charts.push(Chart {
            title: format!("{trace}: blocks saved"),
            x: "outputs or beams".into(),
            y: "%".into(),
            data: ChartData::Bars(widths, series),
            top: None,
        });
    }
    Ok(Figure {
        number: "15",
        title: "memory that sharing saves",
        origin: FigureOrigin::Simulated,
        paper: "Parallel sampling saves 6.1 to 9.8 % of the blocks on Alpaca and 16.2 to 30.5 % on ShareGPT, beam search 37.6 to \
                55.2 % and 44.3 to 66.3 %."
            .into(),
        notes: vec![
            "Which beams survive is replayed from searches of the bundled model, a small one that tells stories: beams of a larger \
             model on other texts part earlier or later."
                .into(),
        ],
        tables: vec![table],
        charts,
    })
}
