//! Output files of a run: a text, JSON and an image for each figure, and a page with all figures.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use loadgen::svg::escaped;

use crate::figure::{Figure, FigureTable};

/// Writes a figure's files into a folder, which is created if it does not exist.
///
/// # Errors
/// If the folder or a file cannot be written.
pub fn write_figure(folder: &Path, figure: &Figure) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let name = format!("figure{}", figure.number);
    write(&folder.join(format!("{name}.md")), &figure.text())?;
    write(&folder.join(format!("{name}.json")), &format!("{:#}\n", figure.json()))?;
    write(&folder.join(format!("{name}.svg")), &figure.svg())
}

/// Writes `index.html`, which shows these figures.
///
/// # Errors
/// If it cannot be written.
pub fn write_index(folder: &Path, figures: &[Figure], seed: u64) -> Result<()> {
    write(&folder.join("index.html"), &index(figures, seed))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:1400px;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:1em 0;font-size:13px}td,th{border:1px solid #ccc;padding:2px 8px;text-align:left}\
    .origin{background:#d55e00;color:#fff;border-radius:4px;padding:1px 7px;font-size:13px}svg{max-width:100%;height:auto}";

fn index(figures: &[Figure], seed: u64) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>The paper, reproduced</title>\
         <style>{STYLE}</style></head>\n<body>\n<h1>The paper, reproduced</h1>\n<p>The evaluation of \"Efficient Memory \
         Management for Large Language Model Serving with PagedAttention\" (SOSP 2023), with this engine's scheduler and block \
         manager. Simulated figures ran on a virtual clock. No GPU was used, and times are computed from the launches \
         of each step. Seed {seed}.</p>\n"
    );
    for figure in figures {
        let _ = writeln!(
            page,
            "<h2 id=\"figure{0}\">Figure {0}: {1} <span class=\"origin\">{2}</span></h2>\n<p><b>The paper:</b> {3}</p>\n{4}",
            figure.number,
            escaped(figure.title),
            figure.origin.name(),
            escaped(&figure.paper),
            figure.svg()
        );
        page.extend(figure.tables.iter().map(html));
        page.extend(figure.notes.iter().map(|note| format!("<p>{}</p>\n", escaped(note))));
    }
    page.push_str("</body></html>\n");
    page
}

fn html(table: &FigureTable) -> String {
    let row = |entries: &[String], tag: &str| {
        let entries: String = entries.iter().map(|entry| format!("<{tag}>{}</{tag}>", escaped(entry))).collect();
        format!("<tr>{entries}</tr>\n")
    };
    let rows: String = table.rows.iter().map(|entries| row(entries, "td")).collect();
    format!("<h3>{}</h3>\n<table>\n{}{rows}</table>\n", escaped(&table.title), row(&table.headings, "th"))
}
