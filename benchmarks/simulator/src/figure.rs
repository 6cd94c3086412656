//! A figure: tables and charts of ours, beside what the paper has.

use serde_json::{Value, json};

use crate::chart::Chart;

/// Where numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureOrigin {
    /// The engine's scheduler on a virtual clock.
    Simulated,
    /// Computed from shapes or distributions, without a clock.
    Computed,
    /// Run on this machine.
    Measured,
}

/// A figure of the paper, drawn again.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its number in the paper, such as `12`.
    pub number: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Where our numbers come from.
    pub origin: FigureOrigin,
    /// What the paper says, in a sentence or two.
    pub paper: String,
    /// What is to be known of ours: what was assumed, and what is not modelled.
    pub notes: Vec<String>,
    /// The numbers.
    pub tables: Vec<FigureTable>,
    /// The same, drawn.
    pub charts: Vec<Chart>,
}

/// Numbers under headings.
#[derive(Clone, Debug, Default)]
pub struct FigureTable {
    /// What they are.
    pub title: String,
    /// Of the columns.
    pub headings: Vec<String>,
    /// As many entries each as there are headings.
    pub rows: Vec<Vec<String>>,
}

impl FigureOrigin {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            FigureOrigin::Simulated => "simulated",
            FigureOrigin::Computed => "computed",
            FigureOrigin::Measured => "measured",
        }
    }
}

impl FigureTable {
    /// A table without rows.
    pub fn new(title: impl Into<String>, headings: &[&str]) -> Self {
        let headings = headings.iter().map(|&heading| heading.to_owned()).collect();
        FigureTable { title: title.into(), headings, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, entries: [String; N]) {
        self.rows.push(entries.into());
    }

    /// The table in Markdown.
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
    /// All of it as text: a heading, what the paper says, tables and notes.
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

    /// All of it as JSON.
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

    /// All charts of it in one SVG image.
    pub fn svg(&self) -> String {
        let title = format!("Figure {}: {} ({})", self.number, self.title, self.origin.name());
        crate::chart::svg(&title, &self.charts)
    }
}
