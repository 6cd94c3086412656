//! Load for language models, and figures of how they deal with it.
//!
//! A [`Workload`](workload::Workload) says how long prompts and outputs are, [`arrivals`] when requests come. An
//! [`Endpoint`](endpoint::Endpoint) answers them over HTTP and [`load::serve`] records what happens; a program that
//! drives an engine itself records the same. A [`Summary`](summary::Summary) is computed from records alone, a
//! [`Report`](report::Report) holds one for each point of a sweep, and [`plot`] draws it.

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
