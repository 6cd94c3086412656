//! `quire bench`: computes or measures a model's cost and the savings of sharing. Each command has its own file.

mod fake_model;
#[cfg(feature = "cuda")]
pub mod floor;
pub mod latency;
mod measured;
mod options;
pub mod prefix;
mod run_requests;
pub mod serve;
pub mod sharing;
#[cfg(feature = "cuda")]
mod step;
pub mod throughput;
pub mod trace;
