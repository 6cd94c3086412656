//! `quire bench`: what a model costs and what sharing saves, computed or measured. A file for each command.

mod drive;
#[cfg(feature = "cuda")]
pub mod floor;
#[cfg(feature = "cuda")]
mod gpu;
pub mod latency;
mod measured;
#[cfg(feature = "cuda")]
mod model;
mod options;
pub mod prefix;
pub mod serve;
pub mod sharing;
mod stand_in;
#[cfg(feature = "cuda")]
mod step;
pub mod throughput;
