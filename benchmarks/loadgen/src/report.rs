//! What was measured, over a sweep.

use std::fmt;

use serde::Serialize;

use crate::summary::Summary;

/// What varies over a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Requests that arrive in a second.
    Rate,
    /// Requests in progress at a time.
    Concurrency,
    /// Requests that come at once.
    Batch,
}

/// A point of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Where on the axis.
    pub at: f64,
    /// What was measured there.
    #[serde(flatten)]
    pub summary: Summary,
}

/// A sweep. Its serialised form is that of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The command, as in `quire bench`.
    pub bench: &'static str,
    /// The model's name.
    pub model: String,
    /// Lengths and arrivals, in words.
    pub load: String,
    /// What varies.
    pub axis: Axis,
    /// The points, in the order in which they were measured.
    pub points: Vec<Point>,
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Axis::Rate => "rate",
            Axis::Concurrency => "concurrency",
            Axis::Batch => "batch",
        })
    }
}
