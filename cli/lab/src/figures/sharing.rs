//! Figure 15: blocks saved by sharing.

use anyhow::Result;

use super::searches;
use crate::chart::{Chart, ChartData};
use crate::figure::{Figure, FigureOrigin, FigureTable};
use crate::jobs;
use crate::laboratory::{Curve, Lab};
use simulator::beam_record::BeamRecord;
use simulator::deployment::OPT_13B;
use simulator::request::Method;
use simulator::system::System;
use simulator::traces::{ALPACA_LIKE, SHAREGPT_LIKE};

/// Numbers of samples or beams per request.
const WIDTHS: [usize; 3] = [2, 4, 6];

/// Most seconds of these traces. The saving does not change over time.
const SECONDS: f64 = 600.0;

/// Draws the figure.
///
/// # Errors
/// If the bundled model cannot be run, or a request does not fit the memory.
pub fn figure(lab: &Lab<'_>) -> Result<Figure> {
    let cost = System::Paged.cost(&OPT_13B.cost()?);
    let none = BeamRecord::default();
    let searches: Vec<BeamRecord> = WIDTHS.iter().map(|width| searches::record(*width, lab)).collect::<Result<_>>()?;
    let traces = [
        ("Alpaca", ALPACA_LIKE, 20.0, ["6.1 to 9.8 %", "37.6 to 55.2 %"]),
        ("ShareGPT", SHAREGPT_LIKE, 1.0, ["16.2 to 30.5 %", "44.3 to 66.3 %"]),
    ];
    let mut table =
        FigureTable::new("Blocks saved by sharing", &["trace", "method", "width", "saved", "paper, widths 2 to 6"]);
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
            let beam_record = if beams { &searches[at] } else { &none };
            let outcome = curve.run(lab, &cost, beam_record, rate / width as f64, |_| {})?;
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
        let data = ChartData::Bars(widths, series);
        charts.push(Chart::new(format!("{trace}: blocks saved"), "outputs or beams", "%", data));
    }
    Ok(Figure {
        number: "15",
        title: "memory saved by sharing",
        origin: FigureOrigin::Simulated,
        paper: "Parallel sampling saves 6.1 to 9.8 % of the blocks on Alpaca and 16.2 to 30.5 % on ShareGPT, beam search 37.6 to \
                55.2 % and 44.3 to 66.3 %."
            .into(),
        notes: vec![
            "The surviving beams are replayed from searches of the bundled model, a small model of stories. Beams of a \
             larger model on other texts diverge earlier or later."
                .into(),
        ],
        tables: vec![table],
        charts,
    })
}
