//! A reproduced figure: our tables and charts, together with the paper's claim.

use serde_json::{Value, json};

use crate::chart::Chart;

/// Where a figure's numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureOrigin {
    /// The engine's scheduler on a virtual clock.
    Simulated,
    /// Computed from shapes or distributions, without a clock.
    Computed,
    /// Run on this machine.
    Measured,
}

/// A reproduced figure of the paper.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its number in the paper, such as `12`.
    pub number: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Where our numbers come from.
    pub origin: FigureOrigin,
    /// The paper's claim, in a sentence or two.
    pub paper: String,
    /// Our assumptions, and effects that are not modelled.
    pub notes: Vec<String>,
    /// The numbers.
    pub tables: Vec<FigureTable>,
    /// The numbers, drawn.
    pub charts: Vec<Chart>,
}

/// A table of numbers.
#[derive(Clone, Debug, Default)]
pub struct FigureTable {
    /// Its title.
    pub title: String,
    /// Headings of the columns.
    pub headings: Vec<String>,
    /// Rows, each with one entry per heading.
    pub rows: Vec<Vec<String>>,
}

impl FigureOrigin {
    /// Returns its name, in one word.
    pub fn name(self) -> &'static str {
        match self {
            FigureOrigin::Simulated => "simulated",
            FigureOrigin::Computed => "computed",
            FigureOrigin::Measured => "measured",
        }
    }
}

impl FigureTable {
    /// Creates a table without rows.
    pub fn new(title: impl Into<String>, headings: &[&str]) -> Self {
        let headings = headings.iter().map(|&heading| heading.to_owned()).collect();
        FigureTable { title: title.into(), headings, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, entries: [String; N]) {
        self.rows.push(entries.into());
    }

    /// Formats the table as Markdown.
    pub fn markdown(&self) -> String {
        let line = |entries: &[String]| format!("| {} |\n", entries.join(" | "));
        let rule = format!("|{}\n", " --- |".repeat(self.headings.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}{rule}{rows}", line(&self.headings))
    }

    fn json(&self) -> Value {
        json!({ "title": self.title, "headings": self.headings, "rows": self.rows })
    }
}

impl Figure {
    /// Formats the figure as text: a heading, the paper's claim, tables and notes.
    pub fn text(&self) -> String {
        let mut text =
            format!("Figure {}: {} ({})\n\nPaper: {}\n", self.number, self.title, self.origin.name(), self.paper);
        for table in &self.tables {
            text += &format!("\n{}\n\n{}", table.title, table.markdown());
        }
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        text
    }

    /// Returns the figure as JSON.
    pub fn json(&self) -> Value {
        json!({
            "figure": self.number,
            "title": self.title,
            "origin": self.origin.name(),
            "paper": self.paper,
            "notes": self.notes,
            "tables": self.tables.iter().map(FigureTable::json).collect::<Vec<_>>(),
            "charts": self.charts.iter().map(Chart::json).collect::<Vec<_>>(),
        })
    }

    /// Draws all its charts in one SVG image.
    pub fn svg(&self) -> String {
        let title = format!("Figure {}: {} ({})", self.number, self.title, self.origin.name());
        crate::chart::svg(&title, &self.charts)
    }
}
