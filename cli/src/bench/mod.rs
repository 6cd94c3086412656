//! `quire bench`: what a model costs and what sharing saves, computed or measured. A file for each command.

mod drive;
#[cfg(feature = "cuda")]
pub mod floor;
pub mod latency;
mod measured;
mod options;
pub mod prefix;
pub mod serve;
pub mod sharing;
mod stand_in;
#[cfg(feature = "cuda")]
mod step;
pub mod throughput;
pub mod trace;
