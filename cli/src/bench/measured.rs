//! Prints measured figures as tables and writes them as JSON.

use std::fs;
use std::io::{self, Write};

use anyhow::{Context, Result};
use loadgen::report::Report;
use loadgen::summary::{Distribution, Summary};

use crate::table::Table;

type Figure = fn(&Summary) -> Option<Distribution>;

/// Prints the tables, and writes the JSON if a file is given.
pub fn show(report: &Report, json: Option<&str>) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}: {}\n\n{}\n{}", report.model, report.load, rates(report), times(report))?;
    for point in &report.points {
        let Summary { failed, failures, uncounted, requests, .. } = &point.summary;
        for (why, times) in failures {
            writeln!(out, "{} {}: {times} of {requests} requests failed: {why}", report.axis, point.at)?;
        }
        if *uncounted > 0 {
            let answered = requests - failed;
            writeln!(
                out,
                "{} {}: {uncounted} of {answered} answers report no token counts; the requested prompt tokens and the text pieces are counted instead",
                report.axis, point.at
            )?;
        }
    }
    let Some(file) = json else { return Ok(()) };
    write_file(file, &format!("{}\n", serde_json::to_string_pretty(report)?))
}

/// Writes a file and names it in errors.
pub fn write_file(file: &str, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {file}"))
}

fn rates(report: &Report) -> Table {
    let axis = report.axis.to_string();
    let mut table = Table::new(&[
        &axis,
        "requests",
        "failed",
        "prompt tokens",
        "output tokens",
        "seconds",
        "requests/s",
        "output tokens/s",
        "tokens/s",
    ]);
    for point in &report.points {
        let s = &point.summary;
        table.row([
            point.at.to_string(),
            s.requests.to_string(),
            s.failed.to_string(),
            s.prompt_tokens.to_string(),
            s.output_tokens.to_string(),
            format!("{:.3}", s.seconds),
            format!("{:.3}", s.requests_per_second),
            format!("{:.1}", s.output_tokens_per_second),
            format!("{:.1}", s.tokens_per_second),
        ]);
    }
    table
}

fn times(report: &Report) -> Table {
    let axis = report.axis.to_string();
    let mut table = Table::new(&["milliseconds", &axis, "mean", "50 %", "90 %", "99 %"]);
    let figures: [(&str, Figure); 4] = [
        ("time to first token", |s| s.time_to_first_token),
        ("time per output token", |s| s.time_per_output_token),
        ("latency", |s| s.latency),
        ("normalized latency per token", |s| s.normalized_latency),
    ];
    for (name, figure) in figures {
        for point in &report.points {
            let d = figure(&point.summary);
            let ms = |of: fn(&Distribution) -> f64| d.as_ref().map_or("-".into(), |d| format!("{:.3}", 1e3 * of(d)));
            table.row([name.into(), point.at.to_string(), ms(|d| d.mean), ms(|d| d.p50), ms(|d| d.p90), ms(|d| d.p99)]);
        }
    }
    table
}
