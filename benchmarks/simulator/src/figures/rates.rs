//! Figures of normalized latency against request rate: what 12, 14, 16 and 17 have in common.

use crate::chart::Chart;
use crate::figure::FigureTable;
use crate::lab::Curve;
use crate::sustained::{BOUND, Sustained};
use crate::system::System;

/// A panel: its title, and what the paper says of the factors in it.
pub struct Panel {
    /// What is drawn.
    pub title: String,
    /// The factors of the paper, as it gives them.
    pub paper: String,
}

/// A chart for each panel, and a table of what each system sustains.
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

/// A rate with as many digits as mean something.
fn rate(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.1}") } else { format!("{rate:.2}") }
}
