//! Charts of normalized latency against request rate, as in figures 12, 14, 16 and 17.

use crate::chart::Chart;
use crate::figure::FigureTable;
use crate::laboratory::Curve;
use simulator::sustained::{BOUND, Sustained};
use simulator::system::System;

/// A panel of a figure.
pub struct Panel {
    /// Its title.
    pub title: String,
    /// The paper's factors, as it states them.
    pub paper: String,
}

/// Draws a chart for each panel, and a table of the rate that each system sustains.
pub fn draw(panels: &[Panel], curves: &[Curve], found: &[Sustained]) -> (FigureTable, Vec<Chart>) {
    let headings = ["panel", "system", "sustains, req/s", "Quire with the paper's steps sustains", "paper"];
    let mut table = FigureTable::new(
        format!("Highest rate at a normalized latency of at most {BOUND} s/token (simulated)"),
        &headings,
    );
    let mut charts = Vec::new();
    for (at, panel) in panels.iter().enumerate() {
        let own: Vec<_> = curves.iter().zip(found).filter(|(curve, _)| curve.panel == at).collect();
        let ours = own.iter().find(|(curve, _)| curve.system == System::Paged).map_or(0.0, |(_, found)| found.rate);
        for (i, (curve, found)) in own.iter().enumerate() {
            table.row([
                panel.title.clone(),
                curve.system.name().into(),
                rate(found.rate),
                if found.rate > 0.0 { format!("{:.2}x", ours / found.rate) } else { "-".into() },
                if i == 0 { panel.paper.clone() } else { String::new() },
            ]);
        }
        let lines = own.iter().map(|(curve, found)| (curve.system.name().to_owned(), found.points.clone())).collect();
        let chart = Chart::lines(&panel.title, "requests/s", "s/token", lines);
        charts.push(Chart { top: Some(BOUND), ..chart });
    }
    (table, charts)
}

/// Formats a rate with its significant digits.
fn rate(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.1}") } else { format!("{rate:.2}") }
}
