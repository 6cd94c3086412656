//! `quire bench`: measures an engine or a server. Each command has its own file.

pub mod latency;
mod measured;
pub mod options;
mod run_requests;
pub mod serve;
pub mod throughput;
