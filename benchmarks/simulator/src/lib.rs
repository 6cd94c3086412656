//! The engine's own scheduler, block manager and sequence groups on a virtual clock, on GPUs that need not be there: the
//! evaluation of the PagedAttention paper, drawn again.
//!
//! [`simulation`] makes the steps that the engine would make, and [`cost`] says how long they take. The paper's baselines are
//! policies of [`admission`], or a loop of their own. [`figures`] has what the paper shows.

pub mod admission;
pub mod bound;
pub mod buddy;
pub mod chart;
pub mod cost;
pub mod cpu_clock;
pub mod deployment;
pub mod efficiency;
pub mod faster_transformer;
pub mod figure;
pub mod figures;
pub mod fitted;
pub mod gpu;
pub mod jobs;
pub mod lab;
pub mod lineage;
pub mod memory;
pub mod model;
pub mod outcome;
pub mod page;
pub mod plan;
pub mod price;
pub mod reality;
pub mod request;
pub mod server;
pub mod simulation;
pub mod sustained;
pub mod system;
pub mod traces;
