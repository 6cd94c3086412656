//! The results of a sweep.

use std::fmt;

use serde::Serialize;

use crate::summary::Summary;

/// The quantity that a sweep varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Requests that arrive per second.
    Rate,
    /// Requests in progress at a time.
    Concurrency,
    /// Requests that arrive at once.
    Batch,
}

/// A point of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Its position on the axis.
    pub at: f64,
    /// The measurements there.
    #[serde(flatten)]
    pub summary: Summary,
}

/// A sweep. `--json` writes its serialised form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The command, as in `quire bench`.
    pub bench: &'static str,
    /// The model's name.
    pub model: String,
    /// Lengths and arrivals, in words.
    pub load: String,
    /// The quantity that varies.
    pub axis: Axis,
    /// The points, in the order of measurement.
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
