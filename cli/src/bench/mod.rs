//! `quire bench`: what a model costs and what sharing saves, computed or measured. A file for each command.

mod drive;
pub mod floor;
mod gpu;
pub mod latency;
mod measured;
mod model;
mod options;
pub mod prefix;
pub mod serve;
pub mod sharing;
mod stand_in;
mod step;
pub mod throughput;
