//! A load generator for language models, with statistics of how servers handle the load.
//!
//! A [`Workload`](workload::Workload) determines the lengths of prompts and outputs, and [`arrivals`] their times. An
//! [`Endpoint`](endpoint::Endpoint) sends requests over HTTP, and [`load::serve`] records the outcome of each. A
//! program that drives an engine itself makes the same records. A [`Summary`](summary::Summary) is computed from
//! records alone. A [`Report`](report::Report) holds one summary for each point of a sweep, and [`plot`] draws it.

pub mod arrivals;
mod client;
pub mod dataset;
pub mod endpoint;
pub mod load;
pub mod plot;
pub mod random;
mod received;
pub mod record;
pub mod report;
mod sse;
pub mod summary;
pub mod svg;
pub mod trace;
pub mod workload;
